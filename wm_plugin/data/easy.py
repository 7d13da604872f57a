"""RWML's filter of easy samples (equation 1): what a briefly trained model predicts already teaches little.

A sample has K predictions, each with the binary reward 1 if its distance to the truth is below τ_d. The sample is easy if the
mean reward is strictly greater than τ_easy. (The paper prints ≥, which with its τ_easy = 0 would make every sample easy.) A share
of the easy samples is kept.
"""

import bisect
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

from wm_plugin.client.predict import Predictor
from wm_plugin.data.draws import uniform
from wm_plugin.data.errors import RowError
from wm_plugin.data.outputs import atomic, check_apart, check_derived, check_out
from wm_plugin.data.predictions import Repeatable, predictions
from wm_plugin.data.prompts import Prompts, load, render, target
from wm_plugin.data.schema import Transition
from wm_plugin.data.scores import NO_MODEL, Reward, ScoringOptions, real_valued, score
from wm_plugin.data.summary import scores_beside
from wm_plugin.data.transitions import transitions_in
from wm_plugin.data.write import holds, write_transitions
from wm_plugin.errors import UserError
from wm_plugin.options import Number, Whole, option
from wm_plugin.registry import import_object
from wm_plugin.tokens.message import Message

STAGE = "sft"  # of the prompts, both for training the filter model and for its predictions
SCORES = ("trajectory", "turn", "call", "easy", "kept", "mean", "distances")  # the keys of a transition's distances
TARGET_SHARE = 0.3  # the paper's share of easy samples, on both its benchmarks
_DIGITS = 9  # that a distance is rounded to, so that 1 - 0.8 is 0.2 and not below it


class EasyOptions(ScoringOptions):
    """How easy samples are found, and how many stay."""

    prompts: str = option("A family of prompts, or a file of your own.", default="rwml")
    k: Whole = option("Predictions of each sample.", default=10, ge=1)
    reward: str = option(
        "rwml (rouge for tools, else embedding), rouge, embedding, exact, ..., or package.module:NAME.", default="rwml"
    )
    threshold: Number | None = option("A prediction below this distance is right.", default=None, ge=0, le=1)
    target_easy_share: Number | None = option(
        "Find the threshold for this share of easy samples (default: the paper's 0.3).", default=None, ge=0, le=1
    )
    tau_easy: Number = option(
        "A sample is easy if more than this share of its predictions is right.", default=0.0, ge=0, le=1
    )
    keep: Number = option("Share of the easy samples that stays.", default=0.1, ge=0, le=1)
    filter_share: Number = option("Share of the tasks that trains the filter model.", default=0.1, ge=0, le=1)
    filter_data: str | None = option(
        "Train on these instead, e.g. the validation split; then all samples are predicted.", default=None
    )
    epochs: Number = option("Epochs of the filter model's training.", default=2.0, gt=0)
    learning_rate: Number = option("Learning rate of the filter model's training.", default=2e-6, gt=0)
    train_batch_size: Whole = option("Samples of a training step.", default=32, ge=1)


def thin_out(
    source: str | Path,
    out: Path,
    predictor: Callable[[str | None], Predictor],
    work: Path,
    options: EasyOptions,
    *,
    base: str | None = None,
    filter_model: str | None = None,
    shard_size: int = 256,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> dict[str, Any]:
    """Write a file's transitions without most of the easy ones, and their distances beside it. Returns counts.

    Args:
        predictor: makes the predictor of a model: the trained filter model, `filter_model`, or None for a server's.
    """
    check_out(out, (".jsonl",))
    scores = check_scores(out)
    inputs = (source, options.filter_data, options.prompts, base, filter_model, options.embedding_model)
    check_apart(inputs, {"--out": out, "the scores": scores})
    if options.threshold is not None and options.target_easy_share is not None:
        raise UserError("--target-easy-share finds the threshold: leave it or --threshold out")
    if options.filter_data and not base:
        raise UserError("--filter-data is for training: name the base with --model")
    prompts, seed, k = load(options.prompts), options.seed, options.k
    reward = real_valued(options.reward, options.embedding_model, options.embedding_server)
    share = options.filter_share if base and not options.filter_data else 0.0
    everything = Repeatable(lambda: transitions_in(source))
    rest = Repeatable(lambda: (one for one in everything if not trains_filter(one, share, seed)))
    kinds = Counter(one.observation.kind for one in everything)
    if options.reward == "rwml" and not options.embedding_model and kinds.total() > kinds["tool"]:
        raise UserError(f"not all observations are tools' results: {NO_MODEL}")
    trained_on = 0
    if base:
        training = (one for one in everything if trains_filter(one, share, seed))
        trained_on = train_filter(
            transitions_in(options.filter_data) if options.filter_data else training,
            prompts,
            base,
            work / "filter",
            seed=seed,
            epochs=options.epochs,
            learning_rate=options.learning_rate,
            batch_size=options.train_batch_size,
        )
    outputs = predictions(
        rest,
        predictor(str(work / "filter") if base else filter_model),
        prompts,
        k=k,
        folder=work / "predictions",
        shard_size=shard_size,
        seed=seed,
        stage=STAGE,
        thinking=False,
    )
    found = list(distances(watch(outputs), reward, prompts))
    threshold, tau_easy = options.threshold, options.tau_easy
    if threshold is None:
        wanted = TARGET_SHARE if options.target_easy_share is None else options.target_easy_share
        threshold = solve_threshold((row.values for row in found), tau_easy, wanted)
    report = write_filtered(rest, found, out, threshold=threshold, tau_easy=tau_easy, keep=options.keep, seed=seed)
    return {
        "transitions": kinds.total(),
        "observations": {kind: kinds[kind] for kind in ("tool", "user", "environment")},
        "trained_on": trained_on,
        **report.as_dict(),
        "failed": sum(k - len(row.values) for row in found),
        "malformed": sum(row.malformed for row in found),
        "alike": sum(row.alike for row in found),
        "out": str(out),
        "scores": str(scores),
    }


@dataclass(frozen=True)
class Distances:
    """The distances of one transition's predictions to the truth.

    Attributes:
        values: 1 - similarity of each output's prediction; 1 for an output without a prediction.
        alike: whether all outputs are equal. If this holds for all transitions, the model was not sampled from.
    """

    trajectory: str
    turn: int
    call: int | None
    values: tuple[float, ...]
    malformed: int = 0
    alike: bool = False


@dataclass
class Report:
    """Counts of transitions. `means` counts them by the mean of their binary rewards."""

    threshold: float
    tau_easy: float
    predicted: int = 0
    easy: int = 0
    kept: int = 0
    dropped: int = 0
    means: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        share = self.easy / self.predicted if self.predicted else None
        return asdict(self) | {"easy_share": share, "means": dict(sorted(self.means.items()))}


def distances(
    predictions: Iterable[tuple[Transition, list[str]]], reward: Reward, prompts: Prompts
) -> Iterator[Distances]:
    """Yield the distances of each transition's predictions. `reward` is a similarity, at most 1."""
    for transition, outputs, scores in score(predictions, reward, prompts):
        yield Distances(
            transition.trajectory,
            transition.turn,
            transition.observation.call,
            tuple(1.0 if value is None else round(1 - value, _DIGITS) for value in scores),
            malformed=scores.count(None),
            alike=len(outputs) > 1 and len(set(outputs)) == 1,
        )


def mean_reward(values: Sequence[float], threshold: float) -> float:
    """Return the mean binary reward; 0 without predictions."""
    return sum(value < threshold for value in values) / len(values) if values else 0.0


def decisive(values: Sequence[float], tau_easy: float) -> float:
    """Return the distance that a threshold must exceed to make the sample easy; infinite if no threshold can.

    With n predictions and the smallest count c for which c/n > τ_easy, it is the c-th smallest distance.
    """
    count = len(values)
    needed = next((c for c in range(1, count + 1) if c / count > tau_easy), None)
    return math.inf if needed is None else sorted(values)[needed - 1]


def solve_threshold(samples: Iterable[Sequence[float]], tau_easy: float, target_share: float) -> float:
    """Find the threshold τ_d for which the share of easy samples is nearest to `target_share`.

    Of two equally near shares the smaller is taken, and of the thresholds that give it the largest, which is the next sample's
    decisive distance. It is at most 1, so that an output without a prediction never counts as right.
    """
    values = sorted(min(decisive(sample, tau_easy), 1.0) for sample in samples)
    if not values:
        raise UserError("no predictions: there is no sample to find a threshold for")
    target_count = Fraction(str(target_share)) * len(values)
    return min(sorted({*values, 1.0}), key=lambda threshold: abs(bisect.bisect_left(values, threshold) - target_count))


def write_filtered(
    transitions: Iterable[Transition],
    rows: Sequence[Distances],
    out: Path,
    *,
    threshold: float,
    tau_easy: float = 0.0,
    keep: float = 0.1,
    seed: int = 0,
) -> Report:
    """Write the remaining transitions to `out`, in order, and the distances of all transitions to `X.easy.jsonl` beside it.

    Args:
        keep: the probability with which an easy transition stays. The draw depends only on the seed and the transition.
    """
    report = Report(threshold, tau_easy)

    def remaining(scores: IO[str]) -> Iterator[Transition]:
        for transition, row in zip(transitions, rows, strict=True):
            mean = mean_reward(row.values, threshold)
            easy = mean > tau_easy
            stays = not easy or uniform(f"keep/{seed}/{row.trajectory}/{row.turn}/{row.call}") < keep
            report.predicted += 1
            report.easy += easy
            report.kept += stays
            report.dropped += not stays
            report.means[f"{mean:.2f}"] += 1
            values = (row.trajectory, row.turn, row.call, easy, stays, mean, row.values)
            scores.write(json.dumps(dict(zip(SCORES, values, strict=True))) + "\n")
            if stays:
                yield transition

    with atomic(check_scores(out), check=lambda: check_scores(out)) as unfinished, unfinished.open("w") as scores:
        write_transitions(remaining(scores), out)
    return report


def check_scores(out: Path) -> Path:
    """Refuse an output whose distances have no place. Returns where they go: `X.easy.jsonl` beside it."""
    path = scores_beside(out)
    what, mend = "distances of an earlier run", "name another file with --out"
    check_derived(path, lambda path: holds(path, SCORES), what, mend)
    return path


def trains_filter(transition: Transition, share: float, seed: int = 0) -> bool:
    """Tell whether a transition's task is in the share on which the filter model is trained.

    The draw depends only on the task and the seed. It is independent of the validation split, which may have been made before.
    """
    return uniform(f"filter/{seed}/{transition.task_id or transition.trajectory}") < share


def train_filter(
    transitions: Iterable[Transition], prompts: Prompts, model: str, out: Path, *, seed: int = 0, **options: Any
) -> int:
    """Train the filter model on transitions, into the folder `out`. Returns their number.

    A model that is already there, trained on the same data, is not trained again. The labels have no reasoning (RWML's WM-SFT).
    """
    rows: list[dict[str, list[Message]]] = []
    for transition in transitions:
        try:
            label = target(transition.observation, prompts)
        except RowError:  # the observation holds the tags themselves
            continue
        prompt = render(transition, prompts, stage=STAGE, seed=seed, thinking=False).messages
        rows.append({"prompt": list(prompt), "completion": [{"role": "assistant", "content": label}]})
    if not rows:
        raise UserError(
            "no transition to train the filter model on: raise --filter-share (it is a share of the tasks), "
            "or name a model that is trained, with --filter-model"
        )
    train = import_object("wm_plugin.trl.sft:train_world_model", field="the filter model")
    train(model, rows, out, seed=seed, **options)
    return len(rows)
