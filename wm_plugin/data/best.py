"""Best of n: the outputs that Qwen-AgentWorld fine-tunes on (§3.3: n = 3, an independent judge, a threshold).

An independent judge scores the outputs of a transition, they are compared in pairs, and the winner is kept if its score reaches
the threshold: as the model wrote it, with its reasoning, which is what the training teaches. The winner has the most comparisons
won, then the higher score, then comes first; the paper leaves this open.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from wm_plugin.client.predict import Predictor
from wm_plugin.data.kinds import Exclusions, informative
from wm_plugin.data.outputs import check_apart, files_in
from wm_plugin.data.predictions import Repeatable, predictions
from wm_plugin.data.prompts import Prompts, load, render
from wm_plugin.data.sample import Sample
from wm_plugin.data.schema import Transition
from wm_plugin.data.scores import AT_ONCE, Reward, ScoringOptions, real_valued, reward_arguments, rewarded, score
from wm_plugin.data.transitions import transitions_in
from wm_plugin.options import Number, Whole, option
from wm_plugin.rewards.extract import extract

STAGE = "sft"  # of the prompts
Scored = tuple[Transition, list[str], list[float | None]]


class BestOptions(ScoringOptions):
    """Which outputs are the best."""

    prompts: str = option("A domain (mcp, search, ...), or a file of your own.", default=...)
    judge: str = option("rubric, rouge, embedding, ..., or package.module:NAME.", default=...)
    threshold: Number = option("The score that the best output must reach.", default=...)
    n: Whole = option("Outputs for each transition.", default=3, ge=1)
    judge_args: str = option("The judge's arguments as JSON, such as a rubric's server.", default="{}")
    compare: str | None = option(
        "Compare the outputs in pairs by reference, or package.module:NAME (default: by score).", default=None
    )
    compare_args: str = option("Its arguments as JSON.", default="{}")
    turn_information: bool = option(
        "Leave transitions out with the probability of their category, as build does.", default=False
    )


@dataclass
class Report:
    """Counts of transitions.

    Attributes:
        candidates: those with at least one scored prediction.
        compared: pairs of outputs that were compared.
        retained: those whose best output reached the threshold.
    """

    transitions: int = 0
    candidates: int = 0
    compared: int = 0
    retained: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "retain_rate": self.retained / self.candidates if self.candidates else None}


def best_of_n(
    source: str | Path,
    out: Path,
    predictor: Callable[[], Predictor],
    work: Path,
    options: BestOptions,
    report: Report,
    *,
    inputs: Iterable[str | None] = (),
    shard_size: int = 256,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Iterator[Sample]:
    """Predict a file's transitions n times, and yield the best output of each.

    Args:
        out: where the samples go, which is none of the files that options and `inputs` name.
        predictor: makes the model that predicts, once everything else is in order.
    """
    from wm_plugin.rewards.make import make

    seed, compared = options.seed, options.compare
    arguments = reward_arguments(options.judge, options.judge_args, "--judge-args")
    kwargs = reward_arguments(compared, options.compare_args, "--compare-args") if compared else {}
    named = [source, options.prompts, options.embedding_model, *inputs, *files_in([arguments, kwargs])]
    check_apart(named, {"--out": out})
    judge = real_valued(options.judge, options.embedding_model, options.embedding_server, arguments)
    compare = make({"path": compared, "kwargs": kwargs}, field="--compare") if compared else None
    prompts = load(options.prompts)

    def transitions() -> Iterator[Transition]:
        read = transitions_in(source)
        return informative(read, seed, Exclusions()) if options.turn_information else read

    outputs = predictions(
        Repeatable(transitions),
        predictor(),
        prompts,
        k=options.n,
        folder=work / "predictions",
        shard_size=shard_size,
        seed=seed,
        stage=STAGE,
    )
    return best(watch(outputs), judge, prompts, threshold=options.threshold, compare=compare, seed=seed, report=report)


def best(
    predictions: Iterable[tuple[Transition, list[str]]],
    judge: Reward,
    prompts: Prompts,
    *,
    threshold: float,
    compare: Reward | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> Iterator[Sample]:
    """Yield the best output of each transition, if its score is at least `threshold`.

    Args:
        compare: a reward of predictions that compares them with the column `reference`, such as `ReferenceReward`: 1 if the
            prediction is better, 0 if the other is; None and NaN say nothing. None: the scores alone decide.
    """
    report = Report() if report is None else report
    scored = score(predictions, judge, prompts)
    while chunk := list(islice(scored, AT_ONCE)):
        wins = [[0.0] * len(outputs) for _, outputs, _ in chunk]
        if compare:
            _compare(chunk, wins, compare, prompts, report)
        for row, won in zip(chunk, wins, strict=True):
            sample = _winner(row, won, prompts, threshold, seed, report)
            if sample is not None:
                yield sample


def _winner(
    row: Scored, wins: Sequence[float], prompts: Prompts, threshold: float, seed: int, report: Report
) -> Sample | None:
    """Return the sample of the output that won, or None if none is good enough."""
    transition, outputs, scores = row
    report.transitions += 1
    ranked = [(wins[place], value, -place) for place, value in enumerate(scores) if value is not None]
    report.candidates += bool(ranked)
    won, value, place = max(ranked, default=(0.0, -float("inf"), 0))
    if not ranked or value < threshold:
        return None
    report.retained += 1
    rendered = render(transition, prompts, stage=STAGE, seed=seed)
    answer = {"role": "assistant", "content": with_thought(outputs[-place])}
    columns = {
        "score": value,
        "wins": won,
        "prompt_variant": rendered.variant,
        "task_id": transition.task_id,
        "trajectory": transition.trajectory,
        "turn": transition.turn,
    }
    return Sample([*rendered.messages, answer], [False] * len(rendered.messages) + [True], columns=columns)


def _compare(
    rows: Sequence[Scored], wins: list[list[float]], compare: Reward, prompts: Prompts, report: Report
) -> None:
    """Add the comparisons that each output won; a tie is half of one."""
    pairs = [
        (row, one, other)
        for row, (_, _, scores) in enumerate(rows)
        for one, other in combinations([place for place, value in enumerate(scores) if value is not None], 2)
    ]
    texts = [[extract(output, prompts.tag).prediction or "" for output in outputs] for _, outputs, _ in rows]
    transitions = [transition for transition, _, _ in rows]
    asked = [(row, texts[row][one]) for row, one, _ in pairs]
    others = [texts[row][other] for row, _, other in pairs]
    values = rewarded(compare, transitions, asked, prompts, reference=others)
    for (row, one, other), value in zip(pairs, values, strict=True):
        if value is not None:
            report.compared += 1
            wins[row][one] += value
            wins[row][other] += 1 - value


def with_thought(output: str) -> str:
    """Return an output with `<think>` put back at its start, where the chat template had written it into the prompt."""
    before, closed, _ = output.partition("</think>")
    return f"<think>\n{output.lstrip()}" if closed and "<think>" not in before else output
