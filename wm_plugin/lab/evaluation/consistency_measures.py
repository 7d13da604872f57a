"""The measures of what `consistency` played."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from wm_plugin.lab.evaluation.bootstrap import by_cluster, draw, limits
from wm_plugin.lab.evaluation.consistency import ARMS, Arm, Episode
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, interval

HORIZONS = (5, 10, 20, 30, 40)  # turns; ours: the paper gives no table by them
CUT_TAKEN = ", cut taken"  # ends the names of the measures to which an answer that was cut is no failure
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
    """The measures of all episodes, and by agent, split and horizon. Intervals are over tasks.

    If an answer was cut there are also those of all episodes, and by agent and split, to which that is no failure.

    Args:
        subject, data, settings, notes: as in `Evaluation`.
        seed: of the intervals.
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
    return Evaluation(
        name="consistency",
        subject=subject,
        data=data,
        settings=settings,
        measures=measures,
        failures=dict(failures.most_common()),
        notes=[*notes, *_undefined(episodes, agents)],
    )


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
    """The measures of a group of episodes. With a horizon, what was won or parted later counts as not won or not parted."""
    whole = [one for one in episodes if not one.failure]
    common: dict[str, Any] = {"by": by, "group": group, "count": len(whole), "failed": len(episodes) - len(whole)}
    tasks, ones = [(one.split, one.number) for one in whole], [1.0] * len(whole)

    def share(name: str, values: list[bool], with_failed: list[bool]) -> Measure:
        totals = list(map(float, values))
        low, high = interval(totals, ones, tasks, seed=seed)
        return Measure(
            name, _mean(totals), "share", low=low, high=high, with_failed=_mean(list(map(float, with_failed))), **common
        )

    made = [
        share(arm, [one.won(arm, horizon) for one in whole], [one.won_at_least(arm, horizon) for one in episodes])
        for arm in ARMS
    ]
    made += _ratio_measures(episodes, whole, horizon, seed, common)
    together = [one.together(horizon) for one in whole]
    made.append(share("together", together, [not one.failure and one.together(horizon) for one in episodes]))
    parted = [one.parted for one in whole if one.parted is not None]
    if horizon is None:
        made.append(
            Measure(
                "parting_turn",
                statistics.median(parted) if parted else None,
                "count",
                note="the median" if parted else "no episode parts",
                **{**common, "count": len(parted)},
            )
        )
    return [replace(one, name=one.name + suffix) for one in made]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio_measures(
    episodes: Sequence[Episode], whole: Sequence[Episode], horizon: int | None, seed: int, common: Mapping[str, Any]
) -> list[Measure]:
    agents = list(dict.fromkeys(one.agent for one in episodes))

    def sums(rows: Sequence[Episode], won: Callable[[Episode, Arm], bool]) -> list[tuple[float, float]]:
        return [
            (
                float(sum(won(one, "real") for one in rows if one.agent == agent)),
                float(sum(won(one, "w2r") for one in rows if one.agent == agent)),
            )
            for agent in agents
        ]

    whole_ratios = ratios(sums(whole, lambda one, arm: one.won(arm, horizon)))
    all_ratios = ratios(sums(episodes, lambda one, arm: one.won_at_least(arm, horizon)))
    intervals = _ratio_intervals(whole, agents, horizon, seed)
    notes = (
        _UNDEFINED if whole_ratios.of_means is None else "",
        f"{_UNDEFINED} for {whole_ratios.undefined} of {len(agents)} agents, which are left out"
        if whole_ratios.undefined
        else "",
    )
    values = (
        ("cr", whole_ratios.of_means, all_ratios.of_means),
        ("cr_mean_of_ratios", whole_ratios.mean, all_ratios.mean),
    )
    return [
        Measure(name, value, "ratio", low=low, high=high, with_failed=with_failed, note=note, **common)
        for (name, value, with_failed), (low, high), note in zip(values, intervals, notes, strict=True)
    ]


@dataclass(frozen=True)
class Ratios:
    """W2R / Real of several agents: as the ratio of their means, and as the mean of their ratios.

    Attributes:
        of_means, mean: None where undefined.
        undefined: agents whose Real is 0, which have no ratio.
    """

    of_means: float | None
    mean: float | None
    undefined: int


def ratios(pairs: Sequence[tuple[float, float]]) -> Ratios:
    """The ratios of (Real, W2R), one pair an agent: shares, percentages or sums over as many tasks each."""
    total = sum(real for real, _ in pairs)
    single = [replayed / real for real, replayed in pairs if real > 0]
    of_means = sum(replayed for _, replayed in pairs) / total if total > 0 else None
    return Ratios(of_means, _mean(single), len(pairs) - len(single))


def _ratio_intervals(
    whole: Sequence[Episode], agents: Sequence[str], horizon: int | None, seed: int
) -> tuple[tuple[float | None, float | None], tuple[float | None, float | None]]:
    """Percentile intervals of both ratios, over tasks. A draw in which Real is 0 is left out."""
    tasks = [(one.split, one.number) for one in whole]
    if len(set(tasks)) < 2:
        return (None, None), (None, None)
    arms: tuple[Arm, ...] = ("real", "w2r")
    won = [[float(one.agent == agent and one.won(arm, horizon)) for one in whole] for arm in arms for agent in agents]
    drawn = draw(by_cluster(won, tasks), torch.Generator().manual_seed(seed))
    real, replayed = drawn.T.reshape(2, len(agents), -1)  # (agents, draws)
    return _limits(replayed.sum(0) / real.sum(0)), _limits((replayed / real).where(real > 0, torch.nan).nanmean(0))


def _limits(values: torch.Tensor) -> tuple[float | None, float | None]:
    values = values[values.isfinite()]
    return limits(values) if len(values) else (None, None)
