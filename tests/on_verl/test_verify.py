"""Checks before irreversible actions in verl's agent loop."""

import asyncio
import time

import pytest

pytest.importorskip("verl")

from support.agent_loop import call, config, episode, make_tokenizer
from support.openai_server import OpenAIServer
from support.perfect import settings
from support.run_on_verl import run_recipe, walking_policy
from wm_plugin.errors import UserError
from wm_plugin.verl.config import read_config
from wm_plugin.worlds import grid

BOARD = {"raw_prompt": grid.dataset_rows(1)[0]["prompt"], "extra_info": {"board": "A..G\n....\n....\n...."}}
SAID = [call("move", direction="D"), call("move", direction="U"), "Hm. " + call("move", direction="R"), "Done."]
MODEL = {"model": "w", "url": "http://localhost:1/v1"}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(merges=False)


def test_episodes_ask_at_the_same_time_and_nobody_waits_for_another(tokenizer):
    beats, count = [], 12

    async def heart():
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def run(made):
        heartbeat = asyncio.create_task(heart())
        await asyncio.gather(*(episode(tokenizer, list(SAID), made, BOARD) for _ in range(count)))
        heartbeat.cancel()

    with OpenAIServer(lambda body: "no", latency=0.25) as server:
        model = settings(server, cache=False)
        asyncio.run(run(config({"environment": "grid", "verify": {"tools": ["move"], "world_model": model}}, 2000)))
    assert len(server.bodies) == 3 * count
    assert server.most_at_once >= count * 0.8
    assert len(beats) > 5


@pytest.mark.parametrize(
    ("wm", "message"),
    [
        ({"environment": "shop", "verify": {"budgte": 1}}, "wm.verify has no field 'budgte'.*'budget'"),
        ({"environment": "shop", "verify": {"budget": 1}}, "wm.verify.world_model is missing"),
        ({"environment": "shop", "verify": "x"}, "wm.verify is 'x'; write fields"),
        ({"verify": {"world_model": MODEL}}, "wm.verify is for episodes in an environment"),
        ({"environment": "grid", "verify": {"world_model": MODEL}}, "wm.verify: GridEnvironment says of no tool"),
        (
            {"environment": {"a": "shop"}, "verify": {"world_model": MODEL, "worlds": ["b"]}},
            "wm.verify.worlds: there is no environment 'b'",
        ),
        ({"environment": "shop", "simulation": MODEL, "verify": {"world_model": MODEL}}, "wm.verify: .* is simulated"),
    ],
)
def test_mistakes_in_the_config_are_one_line(wm, message):
    with pytest.raises(UserError, match=message) as error:
        read_config(config(wm))
    assert "\n" not in str(error.value)


@pytest.mark.nightly
def test_main_ppo_checks_its_episodes(tmp_path):
    """Where all checks pass, a run's steps are those of a run without them; where none does, refused calls do not go out."""
    walking_policy(tmp_path / "runs" / "tiny_random")
    with OpenAIServer(lambda body: "You are there. [SUCCESS]") as yes, OpenAIServer(lambda body: "No.") as no:
        plain = run_recipe("echo_grpo_tiny", tmp_path, *TWO_STEPS)
        passed = run_recipe("echo_grpo_tiny", tmp_path, *TWO_STEPS, asks(yes, budget=50))
        refused = run_recipe("echo_grpo_tiny", tmp_path, *TWO_STEPS, asks(no, budget=2))
    for run in (plain, passed, refused):
        assert run.code == 0, run.output[-3000:]
        assert len(run.steps) == 2
    for one, other in zip(plain.steps, passed.steps, strict=True):
        assert other["wm/env/verify/checks"] > 0
        names = [name for name in one if name.startswith(("wm/", "echo/", "critic/", "actor/", "response_length"))]
        names = [name for name in names if "perf/" not in name]
        assert len(names) > 20
        for name in names:
            assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
    for before, step in zip(plain.steps, refused.steps, strict=True):
        assert 0 < step["wm/env/verify/checks"] <= 2
        assert step["wm/env/verify/refused"] == step["wm/env/verify/checks"]
        assert step["wm/env/actions"] < before["wm/env/actions"]


TWO_STEPS = ("trainer.total_training_steps=2",)


def asks(server, **fields):
    budget = "".join(f", {name}: {value}" for name, value in fields.items())
    return f'wm.verify={{tools: [move], world_model: {{url: "{server.base_url}", model: world, api_key_env: null}}{budget}}}'
