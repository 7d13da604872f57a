"""AgentWorldBench's judges by our own prompts: rewards that keep their answers, and what they said of each row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wm_plugin.client.answers import Answers
from wm_plugin.client.server import Completion, Failure, Server
from wm_plugin.lab.evaluation.bench_rows import Row
from wm_plugin.rewards import prompts
from wm_plugin.rewards.base import mean as mean_or_zero
from wm_plugin.rewards.comparison import TuringReward
from wm_plugin.rewards.judge import JudgedReward
from wm_plugin.rewards.judge import Row as Judged
from wm_plugin.rewards.rubric import RubricReward, parse
from wm_plugin.tokens.message import Message

_AT_ONCE = 256  # rows whose questions are in memory


@dataclass(frozen=True)
class Judge:
    """A model that scores, with its name in the tables. `server` only gives its settings: `answers` asks it."""

    label: str
    server: Server
    answers: Answers


def rubric_scores(
    judge: Judge, predictions: Sequence[str], targets: Sequence[str], **columns: Sequence[Any]
) -> tuple[dict[int, dict[str, float]], dict[int, str]]:
    """Return a judge's five scores by the prediction's number, and why the others have none.

    Args:
        columns: as `RubricReward` takes them: `action`, `context`, `domain`. A domain without guidance is a general one.
    """
    reward = _Rubric(judge.answers, judge.server)
    domains = [name if name in prompts.DOMAINS else "general" for name in columns.pop("domain")]
    call_in_parts(reward, predictions, targets, **columns, domain=domains)
    failed = [number for number in range(len(predictions)) if number not in reward.values]
    return reward.values, {number: reward.kinds.get(number, "forged verdict") for number in failed}


class _Kept(JudgedReward):
    """A judge that keeps its answers, and what it said of each row by the column `number`."""

    def __init__(self, answers: Answers, server: Server, **settings: Any) -> None:
        super().__init__(server, max_failure_share=1.0, **settings)
        self.answers = answers
        self.values: dict[int, Any] = {}
        self.kinds: dict[int, str] = {}  # why a row that was asked has no value
        self.round = 0

    def _ask(self, questions: Iterable[list[Message]], seeds: list[int] | None) -> list[Completion | Failure]:  # noqa: ARG002
        kept = self.answers(questions, seed=self.round)
        self.round += 1
        return [Failure(one.failure, "") if one.failure else Completion(one.text, one.cut) for one in kept]

    def _end(self, batch: Any) -> list[float]:
        for name, answer in batch.replies.items():
            kind = answer.kind if isinstance(answer, Failure) else "cut" if answer.cut else "no verdict"
            self.kinds |= {row.columns["number"]: of_judge(kind) for _, row in batch.rows[name]}
        return super()._end(batch)


class _Rubric(_Kept, RubricReward):
    uses = (*RubricReward.uses, "number")

    def _read(self, row: Judged, reply: str, notes: Any) -> float | None:  # noqa: ARG002
        scores = parse(reply, row.target)
        if scores is None:
            return None
        self.values[row.columns["number"]] = scores
        return self.reward(mean_or_zero(list(scores.values())))


class KeptTuring(_Kept, TuringReward):
    """A value is (whether the real one was picked, whether it came first)."""

    uses = (*TuringReward.uses, "number")

    def _read(self, row: Judged, reply: str, notes: Any) -> float | None:
        score = super()._read(row, reply, notes)
        if score is not None:
            self.values[row.columns["number"]] = (score == 0.0, not self._prediction_is_first(row))
        return score


def call_in_parts(reward: _Kept, predictions: Sequence[str], targets: Sequence[str], **columns: Sequence[Any]) -> None:
    """Ask about predictions, some at a time; their places are their numbers."""
    columns = {**columns, "number": list(range(len(predictions)))}
    for start in range(0, len(predictions), _AT_ONCE):
        chunk = slice(start, start + _AT_ONCE)
        reward.round = 0
        reward(predictions[chunk], targets[chunk], **{name: values[chunk] for name, values in columns.items()})


def columns_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return what a judge sees of rows."""
    return {
        "targets": [row.real for row in rows],
        "action": [row.action for row in rows],
        "context": [row.conversation()[:-1] for row in rows],
        "domain": [row.domain for row in rows],
    }


def of_judge(kind: str) -> str:
    return f"judge: {kind}"
