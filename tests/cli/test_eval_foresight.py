"""`wm lab foresight` from rollout files and a judge behind a server to a table."""

import json
import re

import pytest

from support.openai_server import OpenAIServer, block
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.write import write
from wm_plugin.lab.evaluation.measures import read_result, read_rows

VERB = ("lab", "foresight")


def episode(task, *turns):
    """Turns of (thinking, tool, answer)."""
    made = [
        Turn(
            action=Action(thought=thinking, calls=(Call(name=tool, arguments={}),)),
            observations=(Observation(kind="tool", text=answer, tool=tool, call=0),),
        )
        for thinking, tool, answer in turns
    ]
    return Trajectory(turns=made, context=Context(action_space=({"name": "open"},)), task_id=task)


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = [
        episode("a", ("I expect: open", "open", "locked"), ("Hm.", "fly", "no such tool")),
        episode("b", ("I expect: open", "open", "open")),
    ]
    after = [
        episode("a", ("I expect: locked", "open", "locked")),
        episode("b", ("I expect: open", "open", "open"), ("Wait, what?", "open", "closed")),
    ]
    write(before, tmp_path / "before.jsonl")
    write(after, tmp_path / "after.jsonl")


def reply(body):
    """A judge: what follows "I expect:" is the prediction, which is right if the answer says the same."""
    if "[[begin thinking " in body["messages"][-1]["content"]:
        match = re.search("I expect: .*", block(body, "thinking"))
        value = {"prediction": match[0] if match else None, "factual": 1, "epistemic": 0, "perspective": 0}
    else:
        value = {"right": int(block(body, "predicted") == f"I expect: {block(body, 'observed')}")}
    return f"Read.\n<final_evaluation>\n{json.dumps(value)}\n</final_evaluation>"


def judged(server):
    return ("--server", server.base_url, "--server-model", "judge")


def test_before_and_after_with_a_judge(wm):
    with OpenAIServer(reply) as server:
        arguments = (*VERB, "after.jsonl", "--before", "before.jsonl", *judged(server), "--out", "out")
        made, asked = wm.json(*arguments), len(server.bodies)
        assert wm.json(*arguments) == made == read_result("out").as_dict() | {"ok": True}
        assert len(server.bodies) == asked  # nothing twice
    values = {(one["name"], one["group"]): one["value"] for one in made["measures"]}
    assert (values["accuracy", ""], values["accuracy", "before"]) == (1.0, 0.5)
    assert values["accuracy_difference", ""] == 0.5
    assert (values["predicts", ""], values["predicts", "before"]) == (2 / 3, 2 / 3)
    assert values["invalid_calls", "before"] == 1 / 3
    assert values["invalid_calls_difference", ""] == pytest.approx(-1 / 3)
    assert values["invalid_calls", "unknown tool"] == 0
    assert values["interrupts", ""] == 1 / 3
    assert [(row["data"], row["predicted"], row["real"]) for row in read_rows("out")][:2] == [
        ("after", "I expect: locked", "locked"),
        ("after", "I expect: open", "open"),
    ]
    assert made["settings"]["judge"]["model"] == "judge"


def test_a_server_that_fails_is_counted(wm):
    with OpenAIServer(reply, faults=lambda number: "400" if number == 0 else None) as server:
        made = wm.json(*VERB, "after.jsonl", *judged(server), "--concurrency", "1")
    (accuracy,) = [one for one in made["measures"] if (one["name"], one["by"]) == ("accuracy", "")]
    assert made["failures"] == {"refused": 1}
    assert (accuracy["value"], accuracy["count"], accuracy["failed"], accuracy["with_failed"]) == (1.0, 1, 1, 0.5)


def test_actions_alone_need_no_judge(wm):
    printed = wm.text(*VERB, "after.jsonl", "--before", "before.jsonl", "--passive", "open")
    assert re.search(r"\nineffective_actions +100%", printed)
    assert "no judge was named" in printed


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("gone.jsonl", "gone.jsonl"),
        ("after.jsonl --server http://localhost:1/v1", "--server URL and --server-model NAME go together"),
        ("after.jsonl --invalid (", "is no regular expression"),
        ("after.jsonl --out .", "holds files, but no evaluation.json of wm eval"),
    ],
)
def test_mistakes_are_a_line(wm, flags, words):
    assert words in wm.error(*VERB, *flags.split())
