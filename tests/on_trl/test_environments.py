"""Every environment in the real GRPO trainer: two training steps, and the episodes that the rollout without a host has."""

import pytest

from support.environments import END, NAMES, NEW, SEED, TURNS, episodes, new_world, world
from support.episodes_on_trl import trainer_of
from wm_plugin.worlds import mixture


@pytest.mark.parametrize("name", [*NAMES, NEW])
def test_an_environment_is_trained_in_for_two_steps_and_shows_what_it_shows_without_a_host(name, tmp_path, monkeypatch):
    new_world(tmp_path, monkeypatch)
    found = episodes(name, "trl")
    rows = [dict(episode.row) for episode in found] * 2  # a batch has two prompts
    trainer = trainer_of(rows, found, world(name).environment, per_device_train_batch_size=4)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    steps = [row for row in trainer.state.log_history if "loss" in row]
    assert len(steps) == len(trainer.seen) == 2
    assert any((now != old).any() for now, old in zip(trainer.model.parameters(), before, strict=True))
    for inputs, completions, rewards in trainer.seen:
        for row, messages, reward in zip(inputs, completions, rewards, strict=True):
            expected = next(e for e in found if all(row[key] == value for key, value in e.row.items()))
            assert [m["content"] for m in messages if m["role"] == "tool"] == expected.observations
            assert reward == pytest.approx(expected.played.reward)
            assert messages[-1]["content"] == END
    figures = {tuple(sorted(episode.played.metadata["figures"].items())) for episode in found}
    assert {tuple(sorted(one.items())) for one in trainer.reports} == figures
    for step in steps:
        assert step["echo/tokens"] > 0
        assert step["wm/env/turns"] <= TURNS + 1 <= step["wm/env/budget"]
        assert 0 <= step["wm/env/invalid_share"] <= 1


@pytest.mark.slow
def test_several_environments_in_one_run():
    names = ("grid", "sql", "wordle")
    found = {name: episodes(name, "trl", 1)[0] for name in names}
    rows = mixture.dataset_rows(dict.fromkeys(names, 1), seed=SEED)
    factory = {name: world(name).environment for name in names}
    trainer = trainer_of(rows, list(found.values()), factory, per_device_train_batch_size=6)
    trainer.train()
    for inputs, completions, _ in trainer.seen:
        for row, messages in zip(inputs, completions, strict=True):
            shown = [message["content"] for message in messages if message["role"] == "tool"]
            assert shown == found[row["environment"]].observations
