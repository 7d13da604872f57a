"""Real OpenEnv servers in the real GRPO trainer: what the policy sees, what counts, and a server that leaves."""

from contextlib import contextmanager

import pytest
import yaml

from support import openenv_servers as servers
from support.environments import END, Episode, episodes
from support.episodes_on_trl import trainer_of
from support.on_trl import NEEDS_ENVIRONMENTS, make_model, make_tokenizer
from wm_plugin.hosting import config_file
from wm_plugin.trl import train
from wm_plugin.trl.config import WorldModelGRPOConfig
from wm_plugin.worlds.worlds import load

pytestmark = [pytest.mark.slow, NEEDS_ENVIRONMENTS]


def lengths(completions, tool=None):
    """The bytes of results, each of which is a token."""
    return sum(
        len(m["content"].encode()) for c in completions for m in c if m["role"] == "tool" and tool in (None, m["name"])
    )


def test_two_steps_in_a_server_count_the_tokens_of_what_each_tool_said():
    with servers.serving("support.openenv_safe:app") as url:
        name = f"openenv:{url}"
        found = episodes(name, "trl")
        rows = [dict(episode.row) for episode in found] * (4 // len(found))
        trainer = trainer_of(rows, found, load(name).environment, per_device_train_batch_size=4)
        before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        trainer.train()
    steps = [row for row in trainer.state.log_history if "loss" in row]
    assert len(steps) == len(trainer.seen) == 2
    assert any((now != old).any() for now, old in zip(trainer.model.parameters(), before, strict=True))
    for step, (inputs, completions, rewards) in zip(steps, trainer.seen, strict=True):
        for row, messages, reward in zip(inputs, completions, rewards, strict=True):
            expected = next(episode for episode in found if episode.row["seed"] == row["seed"])
            assert [m["content"] for m in messages if m["role"] == "tool"] == expected.observations
            assert reward == pytest.approx(expected.played.reward)
        tools = {m["name"] for c in completions for m in c if m["role"] == "tool"}
        assert tools == {"compare", "open-safe"}
        assert step["echo/tokens"] == lengths(completions) > 0
        for tool in tools:
            assert step[f"echo/tool/{tool}/tokens"] == lengths(completions, tool)
        assert step["wm/env/lost"] == 0


@contextmanager
def leaving(**fields):
    """A trainer whose server leaves in every episode."""
    with servers.serving("support.openenv_broken:app") as url:
        name = f"openenv:{url}"
        row = {**load(name).rows(1)[0], "fault": "closes"}
        (episode,) = episodes(name, "trl", 1)
        said = Episode(row, episode.played)
        yield trainer_of([row] * 4, [said], load(name).environment, per_device_train_batch_size=4, **fields)


def test_a_server_that_leaves_stops_the_run_before_it_trains():
    with leaving() as trainer:
        with pytest.raises(RuntimeError, match="4 of 4 episodes lost their world .*or allow more with max_lost"):
            trainer.train()
        assert trainer.state.global_step == 0


def test_a_server_that_leaves_loses_the_episode_and_its_text_does_not_count():
    with leaving(cls=WorldModelGRPOConfig, max_lost=1.0) as trainer:
        trainer.train()
    steps = [step for step in trainer.state.log_history if "loss" in step]
    assert len(steps) == 2
    for step, (_, completions, rewards) in zip(steps, trainer.seen, strict=True):
        assert step["wm/env/lost"] == 1
        assert rewards == [0.0] * 4
        for messages in completions:
            told = [message["content"] for message in messages if message["role"] == "tool"]
            assert "The world was lost" in told[0]
            assert all("over" in text for text in told[1:])
            assert messages[-1]["content"] == END
        assert step.get("echo/tokens", 0) == 0


def test_wm_train_takes_a_servers_address_and_says_that_it_is_full(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("wm_plugin.worlds.openenv.sessions.PATIENCE", 0.5)
    tokenizer = make_tokenizer()
    for one in (make_model(tokenizer), tokenizer):
        one.save_pretrained(tmp_path / "model")
    recipe = config_file.read(str(servers.TESTS.parent / "recipes" / "trl" / "echo_grpo_tiny.yaml"))
    with servers.serving("support.openenv_safe:app", SESSIONS="2") as url:
        recipe |= {
            "model_name_or_path": str(tmp_path / "model"),
            "output_dir": str(tmp_path / "out"),
            "environment": f"openenv:{url}",
            "train_rows": "wm_plugin.worlds.openenv:dataset_rows",
            "train_rows_kwargs": {"count": 8, "path": f"openenv:{url}"},
            "per_device_train_batch_size": 8,
            "max_completion_length": 8,
            "max_steps": 2,
        }
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(recipe))
        assert train.main(["--config", str(tmp_path / "run.yaml")]) == 2
    assert "max_concurrent_envs" in capsys.readouterr().err.splitlines()[-1]
