"""Exact match of what a world model writes, by hand and through the command."""

import json

import pytest

from support.openai_server import OpenAIServer
from wm_plugin.cli.main import main
from wm_plugin.errors import UserError
from wm_plugin.evaluation.fidelity import fidelity
from wm_plugin.samples.prompts import load
from wm_plugin.trajectories.schema import Action, Context, Observation, Trajectory, Turn
from wm_plugin.trajectories.write import write

PROMPTS = load("word2world")


def episode(*steps: tuple[str, str], success: bool) -> Trajectory:
    turns = tuple(
        Turn(action=Action(text=action), observations=(Observation(kind="environment", text=text),))
        for action, text in steps
    )
    context = Context(task="Take it.", world_context="It is in the drawer.")
    return Trajectory(turns=turns, context=context, task_id=steps[0][0], success=success)


EPISODES = [
    episode(("go", "a hall"), ("open", "a drawer"), ("take", "yours"), success=True),
    episode(("jump", "Nothing happens."), success=False),
]


class Says:
    """Answers by the last action, at temperature 0."""

    def __init__(self, answers, temperature=0.0):
        self.answers, self.settings, self.asked = answers, {"temperature": temperature}, []

    def __call__(self, conversations, *, k, seed):
        self.asked += conversations
        texts = [self.answers[messages[-1]["content"]] for messages in conversations]
        return [[] if text is None else [text] for text in texts]


def test_the_share_is_of_all_turns_and_includes_the_mark():
    model = Says({"go": " a hall\n", "open": "a drawer", "take": "yours", "jump": "Nothing happens."})
    result = fidelity(EPISODES, model, PROMPTS).as_dict()
    assert (result["turns"], result["exact"]) == (4, 3 / 4)  # a mean of episodes would be (2/3 + 1) / 2
    assert (result["text"], result["mark"]) == (1.0, 3 / 4)  # only the mark of `yours [SUCCESS]` was forgotten
    assert [result["by_step"][step]["exact"] for step in "123"] == [1.0, 1.0, 0.0]
    assert [result["by_step"][step]["turns"] for step in "123"] == [2, 1, 1]


@pytest.mark.parametrize(
    ("answer", "exact", "text", "mark"),
    [
        ("yours [SUCCESS]", 1, 1, 1),
        ("yours [SUCCESS]  \n", 1, 1, 1),
        ("yours", 0, 1, 0),
        ("mine [SUCCESS]", 0, 0, 1),
        ("Yours [SUCCESS]", 0, 0, 1),
        ("yours[SUCCESS]", 0, 1, 1),
        ("", 0, 0, 0),
        (None, 0, 0, 0),
    ],
)
def test_a_last_turn(answer, exact, text, mark):
    made = fidelity([episode(("take", "yours"), success=True)], Says({"take": answer}), PROMPTS).all
    assert (made.exact, made.text, made.mark, made.turns) == (exact, text, mark, 1)
    assert made.unanswered == (answer is None)


def test_the_model_reads_the_real_dialogue_before_each_action():
    model = Says(dict.fromkeys(("go", "open", "take", "jump"), "wrong"))
    fidelity(EPISODES, model, PROMPTS, at_once=2)
    assert [[m["content"] for m in asked[1:]] for asked in model.asked] == [
        ["go"],
        ["go", "a hall", "open"],
        ["go", "a hall", "open", "a drawer", "take"],
        ["jump"],
    ]
    assert all("It is in the drawer." in asked[0]["content"] for asked in model.asked)
    without = Says(model.answers)
    fidelity(EPISODES, without, PROMPTS, world_context=False)
    assert not any("It is in the drawer." in asked[0]["content"] for asked in without.asked)


def test_a_model_that_samples_is_refused():
    with pytest.raises(UserError, match=r"exact match is at temperature 0, not 1\.0"):
        fidelity(EPISODES, Says({}, temperature=1.0), PROMPTS)


def test_the_command_asks_a_server_at_temperature_0(tmp_path, capsys):
    write(EPISODES, tmp_path / "x.jsonl")
    texts = {"go": "a hall", "open": "a wall", "take": "yours [SUCCESS]", "jump": "Nothing happens."}
    with OpenAIServer(reply=lambda body: texts[body["messages"][-1]["content"]]) as server:
        arguments = ["eval", "one-step", str(tmp_path / "x.jsonl"), "--server", server.base_url, "--server-model", "m"]
        assert main([*arguments, "--json"]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert {body["temperature"] for body in server.bodies} == {0.0}
        assert (result["turns"], result["exact"], result["mark"]) == (4, 3 / 4, 1.0)
        assert main(arguments) == 0
        assert "75.0% of 4 turns exact, success mark included" in capsys.readouterr().out
    assert main(["eval", "one-step", str(tmp_path / "x.jsonl")]) == 2
    assert "name one model: --model or --server" in capsys.readouterr().err


@pytest.mark.host
def test_the_command_runs_a_model_in_this_process(tmp_path, capsys):
    from support.predictions import save_tiny

    write(EPISODES, tmp_path / "x.jsonl")
    arguments = ["eval", "one-step", tmp_path / "x.jsonl", "--model", save_tiny(tmp_path / "model"), "--json"]
    results = []
    for _ in range(2):
        assert main([*map(str, arguments), "--max-new-tokens", "4"]) == 0
        results.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert results[0] == results[1]  # nothing is sampled
    assert (results[0]["turns"], results[0]["exact"], results[0]["unanswered"]) == (4, 0.0, 0)
