"""The best of n outputs: by the judge's score, above a threshold, with its reasoning."""

import pytest

from support.predictions import PROMPTS, grid_transitions
from wm_plugin.rewards import RougeReward
from wm_plugin.samples.best import Report, best, with_thought
from wm_plugin.samples.prompts import load, render


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
    assert report.as_dict() == {"transitions": 5, "candidates": 3, "retained": 2, "retain_rate": 2 / 3}
    prompt = render(transitions[0], prompts, stage="sft").messages
    assert list(samples[0].messages[:-1]) == prompt
    assert samples[0].train == [False] * len(prompt) + [True]
    assert samples[0].columns["trajectory"] == transitions[0].trajectory


def test_without_a_candidate_there_is_no_rate(prompts):
    report = Report()
    transition = grid_transitions(1)[0]
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
