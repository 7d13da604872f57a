"""Best of n: the outputs that Qwen-AgentWorld fine-tunes on (§3.3: n = 3, an independent judge, a threshold).

What is kept of a transition is its best output as the model wrote it, reasoning and all: that is what is learnt here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from wm_plugin.samples.prompts import Prompts, render
from wm_plugin.samples.sample import Sample
from wm_plugin.samples.scores import Reward, score
from wm_plugin.trajectories.schema import Transition

STAGE = "sft"  # of the prompts


@dataclass
class Report:
    """Counts of transitions.

    Attributes:
        transitions: all.
        candidates: with an output that holds a prediction which the judge scored.
        retained: whose best output reached the threshold.
    """

    transitions: int = 0
    candidates: int = 0
    retained: int = 0

    def as_dict(self) -> dict[str, Any]:
        rate = self.retained / self.candidates if self.candidates else None
        return {**vars(self), "retain_rate": rate}


def best(
    found: Iterable[tuple[Transition, list[str]]],
    judge: Reward,
    prompts: Prompts,
    *,
    threshold: float,
    seed: int = 0,
    report: Report | None = None,
) -> Iterator[Sample]:
    """The best output of each transition, if its score is at least `threshold`; of equally good ones the first.

    Args:
        found: transitions with their outputs, to prompts of the stage `sft` that ask for reasoning.
        judge: a reward; it sees predictions, not the reasoning.
        seed: the one of the predictions, which chose the prompts.
        report: is filled on the way.
    """
    report = Report() if report is None else report
    for transition, outputs, scores in score(found, judge, prompts):
        report.transitions += 1
        given = [(value, -place) for place, value in enumerate(scores) if value is not None]
        if not given:
            continue
        report.candidates += 1
        value, place = max(given)
        if value < threshold:
            continue
        report.retained += 1
        rendered = render(transition, prompts, stage=STAGE, seed=seed)
        answer = {"role": "assistant", "content": with_thought(outputs[-place])}
        columns = {
            "score": value,
            "prompt_variant": rendered.variant,
            "task_id": transition.task_id,
            "trajectory": transition.trajectory,
            "turn": transition.turn,
        }
        yield Sample([*rendered.messages, answer], [False] * len(rendered.messages) + [True], columns=columns)


def with_thought(output: str) -> str:
    """An output whose thought the chat template had opened in the prompt, with its beginning."""
    before, closed, _ = output.partition("</think>")
    return f"<think>\n{output.lstrip()}" if closed and "<think>" not in before else output
