"""The best of n outputs: by the judge's score, above a threshold, with its reasoning."""

import pytest

from support.predictions import PROMPTS, grid_transitions
from wm_plugin.data.best import Report, best, with_thought
from wm_plugin.data.prompts import load, render
from wm_plugin.errors import UserError
from wm_plugin.rewards import RougeReward


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text(PROMPTS)
    return load(str(path))


def output(text, thought="hm"):
    return f"<think>\n{thought}\n</think>\n\n<next_state>\n{text}\n</next_state>"


def judge(scores):
    """Scores by prediction; the target does not matter."""
    return lambda predictions, targets, **_: [scores[prediction] for prediction in predictions]


def test_the_best_is_kept_whole_if_it_is_good_enough(prompts):
    transitions = grid_transitions(5)[:5]
    outputs = [
        [output("a"), output("c", "the reason"), output("b")],
        [output("a"), output("a"), "nothing"],
        [output("b", "first"), output("b", "second")],
        ["nothing", "<think>c"],
        [],
    ]
    report = Report()
    samples = list(
        best(
            zip(transitions, outputs, strict=True),
            judge({"a": 0.1, "b": 0.5, "c": 0.9}),
            prompts,
            threshold=0.5,
            report=report,
        )
    )
    assert [sample.messages[-1]["content"] for sample in samples] == [outputs[0][1], outputs[2][0]]
    assert [sample.columns["score"] for sample in samples] == [0.9, 0.5]
    assert report.as_dict() == {"transitions": 5, "candidates": 3, "compared": 0, "retained": 2, "retain_rate": 2 / 3}
    prompt = render(transitions[0], prompts, stage="sft").messages
    assert list(samples[0].messages[:-1]) == prompt
    assert samples[0].train == [False] * len(prompt) + [True]
    assert samples[0].columns["trajectory"] == transitions[0].trajectory


def test_pairs_decide_before_scores_and_scores_before_places(prompts):
    """By hand: b beats a and c; then d and e each win once and tie once, and e has the higher score."""
    transitions = grid_transitions(5)[:4]
    better = {("a", "b"): 0.0, ("a", "c"): 1.0, ("b", "c"): 1.0, ("d", "e"): 0.5, ("d", "f"): 1.0, ("e", "f"): 1.0}
    asked = []

    def compare(predictions, targets, reference, context, **_):
        asked.extend(zip(predictions, targets, reference, context, strict=True))
        return [better.get(pair) for pair in zip(predictions, reference, strict=True)]

    outputs = [
        [output("a"), output("b"), output("c")],
        [output("d"), output("e"), output("f")],
        [output("g"), output("h")],
    ]
    outputs.append([output("b"), "nothing"])  # no pair
    scores = judge({"a": 0.9, "b": 0.5, "c": 0.8, "d": 0.6, "e": 0.7, "f": 0.9, "g": 0.5, "h": 0.5})
    report = Report()
    rows = zip(transitions, outputs, strict=True)
    samples = list(best(rows, scores, prompts, threshold=0.5, compare=compare, report=report))
    assert [sample.messages[-1]["content"] for sample in samples] == [
        output("b"),
        output("e"),
        output("g"),
        output("b"),
    ]
    assert [sample.columns["wins"] for sample in samples] == [2.0, 1.5, 0.0, 0.0]
    assert report.compared == 6  # the comparison of g and h said nothing
    assert len(asked) == 7
    assert {target for _, target, _, _ in asked[:3]} == {transitions[0].observation.text}
    assert all(context for _, _, _, context in asked)
    low = judge({"b": 0.4, **dict.fromkeys("acdefgh", 0.9)})
    rows = zip(transitions[:1], outputs[:1], strict=True)
    assert not list(
        best(rows, low, prompts, threshold=0.5, compare=compare)
    )  # the winner itself must reach the threshold


def test_what_cannot_be_compared(prompts):
    transition = grid_transitions(1)[0]
    rows = [(transition, [output("a"), output("b")])]
    with pytest.raises(UserError, match="the reward gave 0 values for 1 predictions"):
        list(best(rows, judge({"a": 1, "b": 1}), prompts, threshold=0, compare=lambda *_, **__: []))
    report = Report()
    assert list(best([(transition, ["?"])], RougeReward(), prompts, threshold=0, report=report)) == []
    assert report.as_dict()["retain_rate"] is None


@pytest.mark.parametrize(
    ("output", "whole"),
    [
        ("<think>a</think>b", "<think>a</think>b"),
        ("a\n</think>b", "<think>\na\n</think>b"),
        ("b", "b"),
        ("<think>b", "<think>b"),
    ],
)
def test_a_thought_that_the_template_had_opened_gets_its_beginning(output, whole):
    assert with_thought(output) == whole
