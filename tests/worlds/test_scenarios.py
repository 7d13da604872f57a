"""Scenarios: files, rows, and worlds that begin in the state of a scenario."""

from pathlib import Path

import pytest

from support.cases import CASES
from support.openai_server import OpenAIServer
from wm_plugin.errors import UserError
from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.hosting.world import missing_columns, tool_names
from wm_plugin.lab.synthesis.scenarios import of_world, write
from wm_plugin.worlds import scenarios
from wm_plugin.worlds.kit.protocol import world_context_of
from wm_plugin.worlds.scenarios import Scenario, dataset_rows, staged
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.simulated import simulated

SEED = Scenario(query="Refund order 5.", id="s1", initial_state="Orders: 5, 6", tools=("refund: Refunds an order.",))


def test_a_file_comes_back(tmp_path: Path) -> None:
    many = [SEED, Scenario(query="é", id="x", rubric=("A.",), verifier={"equals": "7"}, columns={"a": 1}, seed="s1")]
    write(many, tmp_path / "x.jsonl")
    assert scenarios.read(tmp_path / "x.jsonl") == many
    (tmp_path / "y.jsonl").write_text('{"query": "a"}\n\n{"query": "b", "id": "b"}\n')
    assert [one.id for one in scenarios.read(tmp_path / "y.jsonl")] == ["s1", "b"]


@pytest.mark.parametrize(("line", "message"), CASES["scenario_mistakes"])
def test_mistakes_in_a_file(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(UserError, match=message) as error:
        scenarios.read(tmp_path / "x.jsonl")
    assert "\n" not in str(error.value)


def test_rows_hold_seeds_out_with_their_variants(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    many = [Scenario(query=f"q{n}-{m}", id=f"{n}-{m}", seed=f"seed{n}") for n in range(20) for m in range(3)]
    write(many, path)
    train, held_out = dataset_rows(path=str(path)), dataset_rows(held_out=True, path=str(path))
    assert len(train) + len(held_out) == 60
    of = [{row["task_id"].split("-")[0] for row in rows} for rows in (train, held_out)]
    assert not of[0] & of[1]
    assert of[1]
    assert len(dataset_rows(200, path=str(path))) == 200
    with pytest.raises(UserError, match="held-out scenarios, and 999 are asked for"):
        dataset_rows(999, held_out=True, path=str(path))


def test_a_world_begins_in_the_state_of_a_scenario() -> None:
    seeds = of_world(load("wordle"), load("wordle").rows(1))
    assert seeds[0].columns
    assert seeds[0].tools[0].startswith("act: ")
    assert seeds[0].world_context.startswith("The hidden word is")
    world = staged(load("wordle").environment)
    assert tool_names(world) == ["act"]
    row = scenarios.row_of(Scenario(**{**vars(seeds[0]), "initial_state": "A new state.", "world_context": "Hidden."}))
    environment = world()
    assert environment.reset(**row) == "A new state."
    assert world_context_of(environment) == "Hidden."
    plain = {name: value for name, value in row.items() if name not in ("initial_state", "world_context")}
    assert environment.reset(**plain) == seeds[0].initial_state
    assert world_context_of(environment) == seeds[0].world_context
    assert staged(load("wordle").environment) is world
    assert missing_columns(staged(load("sql").environment), ["initial_state"]) == missing_columns(
        load("sql").environment, ["initial_state"]
    )


@pytest.mark.host
def test_a_scenario_is_played_in_a_world_model_and_decided_by_its_own_rule() -> None:
    """From a row to the request, which has the row's state, and to the reward, by the row's rule."""
    (seed,) = of_world(load("wordle"), load("wordle").rows(1))
    values = {"initial_state": "A new state.", "world_context": "Hidden.", "verifier": {"regex": "it is crane"}}
    row = scenarios.row_of(Scenario(**{**vars(seed), **values}))
    with OpenAIServer(lambda body: "Green all over.") as server:
        config = {"url": server.base_url, "model": "m", "api_key_env": None, "scenarios": True}
        config |= {"success": "rule", "rule": "wm_plugin.worlds.scenarios:verified"}
        world = simulated(load("wordle").environment, config)
        for answer, reward in (("it is crane", 1.0), ("I give up", 0.0)):
            environment = world()
            assert environment.reset(**row) == "A new state."
            assert environment.act("crane") == "Green all over."
            EpisodePort(environment).turn({"role": "assistant", "content": answer})
            EpisodePort(environment).end()
            assert environment.get_reward() == reward
        system = server.bodies[0]["messages"][0]["content"]
    assert "A new state." in system
    assert "Hidden." in system
    assert seed.world_context not in system
