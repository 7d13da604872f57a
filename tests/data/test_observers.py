"""Who is observed in the dumps of hosts, which write every answer to a call as a tool's result: what the world declares."""

import json
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest

from wm_plugin.cli.main import main
from wm_plugin.data.observers import Observed
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Trajectory
from wm_plugin.data.transitions import expand
from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.protocol import observers, refusals
from wm_plugin.worlds.specs import SPECS
from wm_plugin.worlds.worlds import load

TALK = [
    ("message_user", {"text": "Your email?"}, "The customer: a@b.c"),
    ("get_order", {"order_id": "7"}, "order 7: sent"),
]


def completion() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for name, arguments, answer in TALK:
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "name": name, "content": answer})
    return messages


def output() -> str:
    turns = []
    for name, arguments, answer in TALK:
        call = json.dumps({"name": name, "arguments": arguments})
        turns.append(
            f"<tool_call>\n{call}\n</tool_call>\nuser\n<tool_response>\n{answer}\n</tool_response>\nassistant\n"
        )
    return "".join(turns) + "Goodbye."


DUMPS = {
    "trl": {"prompt": [{"role": "user", "content": "Hello."}], "completion": completion(), "advantage": 0.5},
    "verl": {"input": "system\nA desk.\nuser\nHello.\nassistant\n", "output": output(), "score": 1.0, "step": 1},
}


@pytest.mark.parametrize("host", DUMPS)
def test_the_world_says_whose_answers_a_hosts_dump_holds(host: str, tmp_path: Path, capsys: Any) -> None:
    dump, out = tmp_path / "1.jsonl", tmp_path / "x.jsonl"
    dump.write_text(json.dumps(DUMPS[host]) + "\n")
    for options, kinds in (([], ["tool", "tool"]), (["--environment", "dialogue"], ["user", "tool"])):
        assert main(["data", "convert", str(dump), "--out", str(out), "--json", *options]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result["observations"] == {kind: kinds.count(kind) for kind in ("tool", "user", "environment")}
        assert [transition.observation.kind for transition in expand(read(out))] == kinds


def test_two_worlds_that_disagree_are_converted_apart(tmp_path: Path, capsys: Any) -> None:
    dump = tmp_path / "1.jsonl"
    dump.write_text(json.dumps(DUMPS["trl"]) + "\n")
    convert = ["data", "convert", str(dump), "--out", str(tmp_path / "x.jsonl"), "--environment"]
    other = f"{__name__}:AskedEnvironment"
    assert main([*convert, "dialogue", "--environment", other]) == 2
    assert "what find_customer answers is observed as tool in one world and as user in" in capsys.readouterr().err
    assert main([*convert, "dialog"]) == 2
    assert "there is no 'dialog'; did you mean 'dialogue'?" in capsys.readouterr().err


def test_only_answers_to_the_agents_calls_change() -> None:
    observed = pickle.loads(pickle.dumps(Observed({"look": "environment"})))  # other processes get it
    answer = {"kind": "tool", "text": "a room", "tool": "look", "call": 0}
    texts = [answer, answer | {"tool": "other"}, {"kind": "user", "text": "hm", "tool": "look"}]
    turn = {"action": {"calls": [{"name": "look"}]}, "observations": texts}
    made = observed(Trajectory.model_validate({"turns": [turn, turn | {"actor": "user"}]}))
    assert [one.kind for one in made.turns[0].observations] == ["environment", "tool", "user"]
    assert [one.kind for one in made.turns[1].observations] == ["tool", "tool", "user"]


class AskedEnvironment:
    observer: ClassVar[Any] = "user"

    def reset(self, **_: Any) -> str:
        return ""

    def find_customer(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("observer", "message"),
    [
        ("users", "observer is 'users'; write tool, user or environment"),
        ({"find": "user"}, "observer names 'find', which is no tool; there is 'find_customer'"),
        ({"find_customer": None}, "observer is None; write tool, user or environment"),
        (3, "observer is 3; write tool, user or environment"),
    ],
)
def test_a_declaration_that_means_nothing_is_one_line(
    observer: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert observers(AskedEnvironment) == {"find_customer": "user"}
    monkeypatch.setattr(AskedEnvironment, "observer", observer)
    with pytest.raises(UserError, match=message):
        observers(AskedEnvironment)


REFUSED = {
    "Nothing happens.\nThe episode is over.": 1,
    "Nothing happens to be here.": 0,
    "You see a lamp.": 0,
    "Error: ": 0,
}


def test_answers_to_invalid_actions_are_told_by_what_the_world_declares() -> None:
    observed = Observed({"act": "environment", "go": "environment"}, {"act": ("Nothing happens.",)})
    for text, invalid in REFUSED.items():
        for tool in ("act", "go"):
            answer = {"kind": "tool", "text": text, "tool": tool, "call": 0, "data": {"score": 1}}
            turn = {"action": {"calls": [{"name": tool}]}, "observations": [answer]}
            (made,) = observed(Trajectory.model_validate({"turns": [turn]})).turns[0].observations
            counts = {"actions": 1, "invalid": invalid} if tool == "act" else {}
            assert made.data == {"score": 1, **counts}
    answer = {"kind": "tool", "text": "Invalid: 1 of 2\n..A>", "tool": "act", "call": 0}  # Filter reads the count
    turn = {"action": {"calls": [{"name": "act"}]}, "observations": [answer]}
    assert observed(Trajectory.model_validate({"turns": [turn]})).turns[0].observations[0].data == {}


@pytest.mark.parametrize("host", DUMPS)
def test_refused_calls_of_a_hosts_dump_are_left_out(host: str, tmp_path: Path, capsys: Any) -> None:
    dump, out, left = (tmp_path / name for name in ("1.jsonl", "x.jsonl", "y.jsonl"))
    dump.write_text(json.dumps(DUMPS[host]).replace("order 7: sent", "Error: there is no such order.") + "\n")
    for options, taken in (([], 0), (["--environment", "dialogue"], 1)):
        assert main(["data", "convert", str(dump), "--out", str(out), *options]) == 0
        capsys.readouterr()
        arguments = ["data", "filter", str(out), "--out", str(left), "--filters", "invalid_actions", "--json"]
        assert main(arguments) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["taken"] == {"invalid_actions": taken}


@pytest.mark.parametrize("declared", ["Error", ["Error"], ("Error", 3), ("",)])
def test_refusals_are_a_tuple_of_texts(declared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusals(AskedEnvironment) is None
    monkeypatch.setattr(AskedEnvironment, "refusals", declared, raising=False)
    with pytest.raises(UserError, match="AskedEnvironment.refusals is .*; write a tuple of texts"):
        refusals(AskedEnvironment)


@pytest.mark.parametrize("name", SPECS)
def test_every_world_of_ours_declares_who_is_observed(name: str) -> None:
    world = load(name)
    assert hasattr(world.environment, "observer")
    assert set(world.observers) == set(world.spec.tools)
    assert world.refusals is not None


def test_worlds_of_text_speak_themselves_and_desks_have_users() -> None:
    kinds = {name: set(load(name).observers.values()) for name in SPECS}
    assert kinds["alfworld"] == kinds["textworld"] == kinds["scienceworld"] == kinds["maze"] == {"environment"}
    assert kinds["sql"] == kinds["docs"] == kinds["forth"] == kinds["swe"] == {"tool"}
    for desk in ("dialogue", "tau2"):
        by_tool = load(desk).observers
        assert {tool for tool, kind in by_tool.items() if kind == "user"} == {"message_user"}
        assert kinds[desk] == {"tool", "user"}
