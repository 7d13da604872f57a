"""The measures of the episodes that `consistency` plays."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from wm_plugin.lab.evaluation.consistency import ARMS, Arm, Episode
from wm_plugin.lab.evaluation.intervals import NONE, Limits, by_cluster, draw, limits
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, mean, ratio

HORIZONS = (5, 10, 20, 30, 40)  # turns; the paper has no table by them
CUT_TAKEN = ", cut taken"  # ends the names of the measures for which an answer that was cut is no failure
_UNDEFINED = "undefined: Real is 0"


def evaluate(
    episodes: Sequence[Episode],
    *,
    subject: str,
    data: str,
    settings: Mapping[str, Any],
    notes: Sequence[str] = (),
    seed: int = 0,
) -> Evaluation:
    """Measure all episodes, and those of each agent, split and horizon. Intervals are over tasks.

    If an answer was cut, there are also the measures for which that is no failure, without horizons.
    """
    agents = list(dict.fromkeys(one.agent for one in episodes))
    splits = list(dict.fromkeys(one.split for one in episodes))
    measures = _measures(episodes, seed=seed)
    for agent in agents:
        rows = [one for one in episodes if one.agent == agent]
        measures += _measures(rows, by="agent", group=agent, seed=seed)
        for split in splits if len(splits) > 1 and len(agents) > 1 else ():
            part = [one for one in rows if one.split == split]
            measures += _measures(part, by="agent, split", group=f"{agent}, {split}", seed=seed)
    for split in splits:
        measures += _measures([one for one in episodes if one.split == split], by="split", group=split, seed=seed)
    taken = [one.cut_taken() for one in episodes]
    if taken != list(episodes):
        measures += _measures(taken, suffix=CUT_TAKEN, seed=seed)
        for by, names in (("agent", agents), ("split", splits)):
            for name in names:
                rows = [one for one in taken if getattr(one, by) == name]
                measures += _measures(rows, by=by, group=name, suffix=CUT_TAKEN, seed=seed)
    longest = max((len(t.turns) for one in episodes for arm in ARMS if (t := one.trajectory(arm))), default=0)
    for horizon in HORIZONS:
        if horizon < longest:
            measures += _measures(episodes, by="horizon", group=str(horizon), horizon=horizon, seed=seed)
    failures = Counter(one.failure for one in episodes if one.failure)
    all_notes = [*notes, *_undefined(episodes, agents)]
    return Evaluation("consistency", subject, data, settings, measures, dict(failures.most_common()), all_notes)


def _undefined(episodes: Sequence[Episode], agents: Sequence[str]) -> Iterator[str]:
    for agent in agents:
        if not any(one.won("real") for one in episodes if one.agent == agent and not one.failure):
            yield f"CR of {agent} is {_UNDEFINED}."


def _measures(
    episodes: Sequence[Episode],
    *,
    seed: int,
    by: str = "",
    group: str = "",
    horizon: int | None = None,
    suffix: str = "",
) -> list[Measure]:
    """Measure a group of episodes. With a horizon, what was won or parted later counts as not won or not parted."""
    whole = [one for one in episodes if not one.failure]
    tasks, failed = [(one.split, one.number) for one in whole], len(episodes) - len(whole)
    common: dict[str, Any] = {"by": by, "group": group, "failed": failed}

    def share(name: str, values: list[bool], with_failed: list[bool]) -> Measure:
        made = ratio(name, "share", list(map(float, values)), [1.0] * len(whole), tasks, seed=seed, **common)
        return replace(made, with_failed=mean(list(map(float, with_failed))))

    made = [
        share(arm, [one.won(arm, horizon) for one in whole], [one.won_at_least(arm, horizon) for one in episodes])
        for arm in ARMS
    ]
    made += _ratio_measures(episodes, whole, horizon, seed, {**common, "count": len(whole)})
    together = [one.together(horizon) for one in whole]
    made.append(share("together", together, [not one.failure and one.together(horizon) for one in episodes]))
    if horizon is None:
        parted = [one.parted for one in whole if one.parted is not None]
        value, note = (statistics.median(parted), "the median") if parted else (None, "no episode parts")
        made.append(Measure("parting_turn", value, "count", len(parted), note=note, **common))
    return [replace(one, name=one.name + suffix) for one in made]


def _ratio_measures(
    episodes: Sequence[Episode], whole: Sequence[Episode], horizon: int | None, seed: int, common: Mapping[str, Any]
) -> list[Measure]:
    agents = list(dict.fromkeys(one.agent for one in episodes))

    def sums(rows: Sequence[Episode], won: Callable[[Episode, Arm], bool]) -> list[tuple[float, float]]:
        own = ([one for one in rows if one.agent == agent] for agent in agents)
        return [(float(sum(won(o, "real") for o in of)), float(sum(won(o, "w2r") for o in of))) for of in own]

    found = ratios(sums(whole, lambda one, arm: one.won(arm, horizon)))
    lowest = ratios(sums(episodes, lambda one, arm: one.won_at_least(arm, horizon)))
    (low, high), limits_of_mean = _ratio_intervals(whole, agents, horizon, seed)
    note = _UNDEFINED if found.of_means is None else ""
    left = f"{_UNDEFINED} for {found.undefined} of {len(agents)} agents, which are left out" if found.undefined else ""
    cr = Measure("cr", found.of_means, "ratio", low=low, high=high, with_failed=lowest.of_means, note=note, **common)
    low, high = limits_of_mean
    of = {"low": low, "high": high, "with_failed": lowest.mean, "note": left, **common}
    return [cr, Measure("cr_mean_of_ratios", found.mean, "ratio", **of)]


@dataclass(frozen=True)
class Ratios:
    """W2R / Real of several agents: as the ratio of their means, and as the mean of their ratios."""

    # None if undefined
    of_means: float | None
    mean: float | None
    undefined: int  # how many agents have a Real of 0, and so no ratio


def ratios(pairs: Sequence[tuple[float, float]]) -> Ratios:
    """Return the ratios of (Real, W2R), one pair an agent: shares, percentages or sums over as many tasks each."""
    total = sum(real for real, _ in pairs)
    single = [replayed / real for real, replayed in pairs if real > 0]
    of_means = sum(replayed for _, replayed in pairs) / total if total > 0 else None
    return Ratios(of_means, mean(single), len(pairs) - len(single))


def _ratio_intervals(
    whole: Sequence[Episode], agents: Sequence[str], horizon: int | None, seed: int
) -> tuple[Limits, Limits]:
    """Return percentile intervals of both ratios, over tasks.

    Tasks without a real success are drawn, since W2R may have one; draws in which Real is 0 are left out.
    """
    tasks = [(one.split, one.number) for one in whole]
    if len(set(tasks)) < 2:
        return NONE, NONE
    arms: tuple[Arm, ...] = ("real", "w2r")
    won = [[float(one.agent == agent and one.won(arm, horizon)) for one in whole] for arm in arms for agent in agents]
    drawn = draw(by_cluster(won, tasks), torch.Generator().manual_seed(seed))
    real, replayed = drawn.T.reshape(2, len(agents), -1)  # (agents, draws)
    return _limits(replayed.sum(0) / real.sum(0)), _limits((replayed / real).where(real > 0, torch.nan).nanmean(0))


def _limits(values: torch.Tensor) -> Limits:
    values = values[values.isfinite()]
    return limits(values) if len(values) else NONE
