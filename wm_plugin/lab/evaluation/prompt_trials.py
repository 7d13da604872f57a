"""Templates that a search for prompts tries, their scores, and a search's measures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from wm_plugin.data.schema import Transition
from wm_plugin.lab.evaluation.measures import Measure, mean, ratio
from wm_plugin.lab.evaluation.proposals import START


class Wrong(BaseModel):
    """One of a candidate's worst predictions: the transition's place in the search, and the text or why there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    place: int = Field(ge=0)
    predicted: str


class Candidate(BaseModel):
    """A template in a style, and its scores on the search's transitions. Refused ones have no scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    style: str  # its name; `START` for the template that the search starts from
    round: int  # the number of the round; 0 for `START`
    system: str = ""
    user: str = ""
    # why the proposer's answer was no template: the kind, and the words that the proposer is told
    refused: str = ""
    reason: str = ""
    # None if there is no prediction or no score, for the reason in `failures`, which else is ""
    scores: list[float | None] = Field(default_factory=list)
    failures: list[str] = Field(default_factory=list)
    worst: list[Wrong] = Field(default_factory=list)

    @property
    def score(self) -> float:
        """The mean by which templates are chosen; a row without a score counts 0, as in training."""
        return mean([value or 0.0 for value in self.scores]) or 0.0


@dataclass(frozen=True)
class Held:
    """Held-out transitions: those that choose the templates, and those of other tasks that measure the chosen ones."""

    search: Sequence[Transition]
    test: Sequence[Transition]


@dataclass(frozen=True)
class Trial:
    """A template on transitions."""

    predictions: Sequence[str]  # each prediction; the whole output if it holds none, "" if there is none
    # its score, or why it has none
    scores: Sequence[float | None]
    failures: Sequence[str]


def measured(
    candidates: Sequence[Candidate],
    best: Sequence[Candidate],
    tested: Mapping[str, Trial],
    held: Held,
    seed: int = 0,
) -> list[Measure]:
    """Measure a search.

    `test` and `gain` are over all chosen templates, and by style; the gain is over the template at the start on the same
    transitions, where a row without a score counts 0. `search` is by style of the chosen templates, and by candidate ("prose,
    round 3") of all. `refused` counts the proposer's answers that were no templates, by style.

    Args:
        tested: the start and the best candidates on the test.
    """
    searched, tests = ([one.trajectory for one in part] for part in (held.search, held.test))
    start = [value or 0.0 for value in tested[START].scores]

    def measure(
        name: str, scores: Sequence[float | None], clusters: Sequence[str], by: str = "", group: str = ""
    ) -> Measure:
        """Return the mean over the rows that have a score, with its interval over trajectories."""
        values, counts = [value or 0.0 for value in scores], [float(value is not None) for value in scores]
        failed = len(scores) - int(sum(counts))
        note = "" if failed < len(scores) else "no prediction has a score"
        made = ratio(name, "score", values, counts, clusters, by=by, group=group, failed=failed, note=note, seed=seed)
        return replace(made, with_failed=made.with_failed or 0.0)

    def gain(styles: Sequence[str], by: str = "", group: str = "") -> Measure:
        pairs = [pair for style in styles for pair in zip(tested[style].scores, start, strict=True)]
        differences = [(value or 0.0) - before for value, before in pairs]
        return measure("gain", differences, tests * len(styles), by, group)

    chosen, measures = [one.style for one in best], []
    if chosen:
        together = [value for style in chosen for value in tested[style].scores]
        measures = [measure("test", together, tests * len(chosen)), gain(chosen)]
    measures += [measure("test", tested[style].scores, tests, "style", style) for style in [START, *chosen]]
    measures += [gain([style], "style", style) for style in chosen]
    for one in [*(one for one in candidates if one.style == START), *best]:
        measures.append(measure("search", one.scores, searched, "style", one.style))
    for one in candidates:
        if not one.refused:
            measures.append(measure("search", one.scores, searched, "candidate", f"{one.style}, round {one.round}"))
    for style in dict.fromkeys(one.style for one in candidates if one.style != START):
        refused = [bool(one.refused) for one in candidates if one.style == style]
        measures.append(Measure("refused", sum(refused), "count", len(refused), "style", style))
    return measures
