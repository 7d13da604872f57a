"""Templates that a search for prompts tries, what they score, and the measures of a search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from wm_plugin.data.schema import Transition
from wm_plugin.lab.evaluation.measures import Measure, interval
from wm_plugin.lab.evaluation.proposals import START


class Wrong(BaseModel):
    """One of a candidate's worst predictions: the transition's place in the search, and the text or why there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    place: int = Field(ge=0)
    predicted: str


class Candidate(BaseModel):
    """A template in a style, and what it scored on the transitions of the search. Refused ones have no scores.

    Attributes:
        style: its name; `START` for the template that the search starts from.
        round: the number of the round; 0 for `START`.
        refused, reason: why the proposer's answer was no template: the kind, and the words that it is told.
        scores: None where there is no prediction or no score, for the reason in `failures`, which else is "".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    style: str
    round: int
    system: str = ""
    user: str = ""
    refused: str = ""
    reason: str = ""
    scores: list[float | None] = Field(default_factory=list)
    failures: list[str] = Field(default_factory=list)
    worst: list[Wrong] = Field(default_factory=list)

    @property
    def score(self) -> float:
        """By which templates are chosen: the mean, where a row without a score counts 0, as in training."""
        return _mean([value or 0.0 for value in self.scores])


@dataclass(frozen=True)
class Held:
    """Held-out transitions: those that choose the templates, and those of other tasks that measure what was chosen."""

    search: Sequence[Transition]
    test: Sequence[Transition]


@dataclass(frozen=True)
class Trial:
    """A template on transitions.

    Attributes:
        predictions: what was predicted of each; the whole output where it holds no prediction, "" where there is none.
        scores, failures: its score, or why it has none.
    """

    predictions: Sequence[str]
    scores: Sequence[float | None]
    failures: Sequence[str]


def measured(
    candidates: Sequence[Candidate],
    best: Sequence[Candidate],
    tested: Mapping[str, Trial],
    held: Held,
    seed: int = 0,
) -> list[Measure]:
    """The measures of a search.

    `test` and `gain` are of all chosen templates, and by style; the gain is over the template at the start, on the same
    transitions, where a row without a score counts 0. `search` is by style of the chosen templates, and by candidate ("prose,
    round 3") of all. `refused` counts the answers of the proposer, by style, that were no templates.

    Args:
        candidates: of all rounds. best: the chosen ones.
        tested: the start and the chosen ones on the test.
    """
    searched, tests = ([one.trajectory for one in part] for part in (held.search, held.test))
    start = [value or 0.0 for value in tested[START].scores]

    def gain(styles: Sequence[str], by: str = "", group: str = "") -> Measure:
        differences = [
            (value or 0.0) - before
            for style in styles
            for value, before in zip(tested[style].scores, start, strict=True)
        ]
        return _measure("gain", differences, tests * len(styles), seed, by, group)

    chosen, measures = [one.style for one in best], []
    if chosen:
        together = [value for style in chosen for value in tested[style].scores]
        measures = [_measure("test", together, tests * len(chosen), seed), gain(chosen)]
    for style in [START, *chosen]:
        measures.append(_measure("test", tested[style].scores, tests, seed, "style", style))
    measures += [gain([style], "style", style) for style in chosen]
    for one in [*(one for one in candidates if one.style == START), *best]:
        measures.append(_measure("search", one.scores, searched, seed, "style", one.style))
    for one in candidates:
        if not one.refused:
            group = f"{one.style}, round {one.round}"
            measures.append(_measure("search", one.scores, searched, seed, "candidate", group))
    for style in dict.fromkeys(one.style for one in candidates if one.style != START):
        refused = [bool(one.refused) for one in candidates if one.style == style]
        measures.append(Measure("refused", sum(refused), "count", len(refused), "style", style))
    return measures


def _measure(
    name: str, scores: Sequence[float | None], clusters: Sequence[str], seed: int, by: str = "", group: str = ""
) -> Measure:
    """The mean score over the rows that have one, with its interval over trajectories."""
    values, counts = [value or 0.0 for value in scores], [float(value is not None) for value in scores]
    low, high = interval(values, counts, clusters, seed=seed)
    known = int(sum(counts))
    return Measure(
        name,
        sum(values) / known if known else None,
        "score",
        known,
        by,
        group,
        low,
        high,
        failed=len(scores) - known,
        with_failed=_mean(values),
        note="" if known else "no prediction has a score",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
