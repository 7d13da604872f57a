"""The hidden state of a world reaches the world model's samples, and nobody else: from a world to the rows of both hosts."""

import inspect
import json
from typing import Any

import pytest

from wm_plugin.cli.main import main
from wm_plugin.data import expand, samples
from wm_plugin.data.chat import chat
from wm_plugin.data.write import write
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import tool_names
from wm_plugin.worlds import not_a_tool, wordle
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.kit.protocol import world_context_of
from wm_plugin.worlds.wordle import WordleEnvironment

WORD = "crane"
HIDDEN = f"The hidden word is {WORD}."


def test_hosts_find_no_tool_in_it() -> None:
    environment = WordleEnvironment()
    environment.reset(WORD)
    assert environment.world_context() == HIDDEN
    assert tool_names(WordleEnvironment) == ["act"]
    functions = {name for name, _ in inspect.getmembers(WordleEnvironment, inspect.isfunction)}
    methods = {name for name, _ in inspect.getmembers(environment, inspect.ismethod)}
    assert "world_context" not in functions | methods  # as releases of TRL list them


class Open:
    def reset(self, **_: Any) -> str:
        return "a room"

    def world_context(self) -> str:
        return "a key is under the mat"


class Marked(Open):
    world_context = not_a_tool(Open.world_context)


class Number(Open):
    world_context = not_a_tool(lambda self: 5)


def test_a_class_whose_hidden_state_trl_would_show_is_refused() -> None:
    assert world_context_of(Marked()) == "a key is under the mat"
    assert world_context_of(GridEnvironment()) == ""  # it shows all of its state
    with pytest.raises(UserError, match="Open.world_context is a tool to TRL"):
        world_context_of(Open())
    with pytest.raises(UserError, match="Number.world_context gives 5; return a text"):
        world_context_of(Number())


@pytest.fixture(scope="module")
def played():
    pytest.importorskip("transformers")
    row = {"prompt": [{"role": "user", "content": wordle.INSTRUCTION}], "word": WORD}
    return play(WordleEnvironment(), row, scripted(wordle.expert()), max_turns=12)


@pytest.mark.host
def test_a_rollout_carries_it_and_the_agent_does_not_see_it(played) -> None:
    assert played.context.world_context == HIDDEN
    assert HIDDEN not in json.dumps(chat(played.context, played.turns))
    assert all(transition.context.world_context == HIDDEN for transition in expand([played]))


@pytest.fixture(scope="module")
def rollouts(played, tmp_path_factory):
    path = tmp_path_factory.mktemp("wordle") / "rollouts.jsonl"
    write([played], path)
    return path


@pytest.mark.host
@pytest.mark.parametrize("host", ["trl", "verl"])
@pytest.mark.parametrize(
    ("kind", "flags", "shown"),
    [
        ("word2world", (), True),
        ("word2world", ("--no-world-context",), False),
        ("rwml", ("--world-context",), True),
    ],
)
def test_samples_with_and_without(rollouts, tmp_path, host, kind, flags, shown) -> None:
    read_table = pytest.importorskip("pyarrow.parquet").read_table
    out = tmp_path / "x.parquet"
    arguments = ["data", "build", rollouts, "--as", kind, "--host", host, "--out", out, *flags]
    assert main(list(map(str, arguments))) == 0
    text = json.dumps(read_table(out).to_pylist())
    assert (HIDDEN in text) is shown
    assert ("the agent does not see it" in text) is shown


@pytest.mark.host
def test_what_the_agent_saw_has_none(rollouts) -> None:
    with pytest.raises(UserError, match="imitation has no option world_context"):
        list(samples(rollouts, "imitation", world_context=False))
