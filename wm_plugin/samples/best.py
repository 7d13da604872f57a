"""Best of n: the outputs that Qwen-AgentWorld fine-tunes on (§3.3: n = 3, an independent judge, a threshold).

The best output of a transition is kept as the model wrote it, with its reasoning, which is what the training teaches.
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
        candidates: those with at least one scored prediction.
        retained: those whose best output reached the threshold.
    """

    transitions: int = 0
    candidates: int = 0
    retained: int = 0

    def as_dict(self) -> dict[str, Any]:
        rate = self.retained / self.candidates if self.candidates else None
        return {**vars(self), "retain_rate": rate}


def best(
    predictions: Iterable[tuple[Transition, list[str]]],
    judge: Reward,
    prompts: Prompts,
    *,
    threshold: float,
    seed: int = 0,
    report: Report | None = None,
) -> Iterator[Sample]:
    """The best output of each transition, if its score is at least `threshold`. Of equally good outputs the first is taken.

    Args:
        predictions: transitions with their outputs, to prompts of the stage `sft` that ask for reasoning.
        judge: a reward of predictions; it does not see the reasoning.
        seed: the seed of the predictions, which drew the prompts.
        report: counts, updated with every transition.
    """
    report = Report() if report is None else report
    for transition, outputs, scores in score(predictions, judge, prompts):
        report.transitions += 1
        ranked = [(value, -place) for place, value in enumerate(scores) if value is not None]
        if not ranked:
            continue
        report.candidates += 1
        value, place = max(ranked)
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
    """An output with `<think>` put back at its start, where the chat template had written it into the prompt."""
    before, closed, _ = output.partition("</think>")
    return f"<think>\n{output.lstrip()}" if closed and "<think>" not in before else output
