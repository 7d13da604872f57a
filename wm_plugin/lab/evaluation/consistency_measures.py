"""Measures the episodes that `consistency` plays, and writes them: W2R episodes in Word2World's form, and a row for each turn."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from wm_plugin.data.readers.word2world import SUCCESS
from wm_plugin.data.render import sides
from wm_plugin.data.schema import Trajectory
from wm_plugin.data.thoughts import words
from wm_plugin.data.transitions import with_success
from wm_plugin.lab.evaluation.consistency import ARMS, Arm, Episode
from wm_plugin.lab.evaluation.intervals import NONE, Limits, by_cluster, draw, limits
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, mean, mean_of

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

    def of(by: str, name: str, rows: Sequence[Episode] = episodes, suffix: str = "") -> list[Measure]:
        return _measures([one for one in rows if getattr(one, by) == name], by=by, group=name, suffix=suffix, seed=seed)

    measures = _measures(episodes, seed=seed)
    for agent in agents:
        measures += of("agent", agent)
        for split in splits if len(splits) > 1 and len(agents) > 1 else ():
            part = [one for one in episodes if (one.agent, one.split) == (agent, split)]
            measures += _measures(part, by="agent, split", group=f"{agent}, {split}", seed=seed)
    for split in splits:
        measures += of("split", split)
    taken = [one.cut_taken() for one in episodes]
    if taken != list(episodes):
        measures += _measures(taken, suffix=CUT_TAKEN, seed=seed)
        for by, names in (("agent", agents), ("split", splits)):
            for name in names:
                measures += of(by, name, taken, CUT_TAKEN)
    longest = max((len(t.turns) for one in episodes for arm in ARMS if (t := one.trajectory(arm))), default=0)
    for horizon in HORIZONS:
        if horizon < longest:
            measures += _measures(episodes, by="horizon", group=str(horizon), horizon=horizon, seed=seed)
    failures = Counter(one.failure for one in episodes if one.failure)
    undefined = [
        agent
        for agent in agents
        if not any(one.won("real") for one in episodes if one.agent == agent and not one.failure)
    ]
    all_notes = [*notes, *(f"CR of {agent} is {_UNDEFINED}." for agent in undefined)]
    return Evaluation("consistency", subject, data, settings, measures, dict(failures.most_common()), all_notes)


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
        made = mean_of(name, "share", list(zip(map(float, values), tasks, strict=True)), by=by, group=group, seed=seed)
        return replace(made, failed=failed, with_failed=mean(list(map(float, with_failed))))

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
    arms: tuple[Arm, ...] = ("real", "w2r")

    def sums(rows: Sequence[Episode], won: Callable[[Episode, Arm], bool]) -> list[tuple[float, ...]]:
        return [tuple(float(sum(won(o, arm) for o in rows if o.agent == agent)) for arm in arms) for agent in agents]

    found = ratios(sums(whole, lambda one, arm: one.won(arm, horizon)))
    lowest = ratios(sums(episodes, lambda one, arm: one.won_at_least(arm, horizon)))
    limits_of_cr = limits_of_mean = NONE
    tasks = [(one.split, one.number) for one in whole]
    if len(set(tasks)) > 1:  # tasks without a real success are drawn, too, since W2R may have one
        won = [
            [float(one.agent == agent and one.won(arm, horizon)) for one in whole] for arm in arms for agent in agents
        ]
        drawn = draw(by_cluster(won, tasks), torch.Generator().manual_seed(seed))
        real, replayed = drawn.T.reshape(2, len(agents), -1)  # (agents, draws)
        limits_of_cr = _finite_limits(replayed.sum(0) / real.sum(0))
        limits_of_mean = _finite_limits((replayed / real).where(real > 0, torch.nan).nanmean(0))
    note = _UNDEFINED if found.of_means is None else ""
    left = f"{_UNDEFINED} for {found.undefined} of {len(agents)} agents, which are left out" if found.undefined else ""

    def ratio(name: str, value: float | None, low_high: Limits, with_failed: float | None, note: str) -> Measure:
        low, high = low_high
        return Measure(name, value, "ratio", low=low, high=high, with_failed=with_failed, note=note, **common)

    return [
        ratio("cr", found.of_means, limits_of_cr, lowest.of_means, note),
        ratio("cr_mean_of_ratios", found.mean, limits_of_mean, lowest.mean, left),
    ]


def _finite_limits(values: torch.Tensor) -> Limits:
    """Return the limits of the draws in which Real is not 0."""
    values = values[values.isfinite()]
    return limits(values) if len(values) else NONE


@dataclass(frozen=True)
class Ratios:
    """W2R / Real of several agents: as the ratio of their means, and as the mean of their ratios."""

    # None if undefined
    of_means: float | None
    mean: float | None
    undefined: int  # how many agents have a Real of 0, and so no ratio


def ratios(pairs: Sequence[Sequence[float]]) -> Ratios:
    """Return the ratios of (Real, W2R), one pair an agent: shares, percentages or sums over as many tasks each."""
    total = sum(real for real, _ in pairs)
    single = [replayed / real for real, replayed in pairs if real > 0]
    of_means = sum(replayed for _, replayed in pairs) / total if total > 0 else None
    return Ratios(of_means, mean(single), len(pairs) - len(single))


def w2r_rows(episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """Make rows in Word2World's W2R form, which `data.readers.word2world` reads.

    A conversation has the turns that were replayed; what the world model says after the real end is `after_the_end`. An episode
    without a replayed turn has no row: the form has no episode without an action.
    """
    for one in episodes:
        if one.replayed is None or not one.replayed.turns:
            continue
        steps, replayed = _steps(one.simulated), _steps(one.replayed)
        conversation = [
            {"react": react, "world_model_observation": predicted, "env_observation": real}
            for (react, predicted), (_, real) in zip(steps, replayed, strict=False)
        ]
        rest = [{"react": react, "world_model_observation": text} for react, text in steps[len(conversation) :]]
        yield {
            "item_id": one.task,
            "conversation": conversation,
            "success": bool(one.replayed.success),
            "reward": one.replayed.reward,
            "agent": one.agent,
            "split": one.split,
            "number": one.number,
            "real_success": one.won("real"),
            "world_model_success": one.won("wm"),
            "parted": one.parted,
            "failures": dict(one.failures),
            "after_the_end": rest,
        }


def turn_rows(episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """Make a row for each turn that was played in both worlds, for `measures.write_rows`."""
    for one in episodes:
        if one.replayed is None:
            continue
        context = one.simulated.context.initial_state
        pairs = zip(_steps(one.simulated), _steps(one.replayed), strict=False)
        for number, ((action, predicted), (_, real)) in enumerate(pairs, 1):
            yield {
                "context": context,
                "action": action,
                "real": real,
                "predicted": predicted,
                "scores": {"exact": float(predicted.strip() == real.strip())},
                "failure": one.failures.get("wm", ""),
                "agent": one.agent,
                "split": one.split,
                "task": one.task,
                "turn": number,
            }
            context = predicted


def _steps(trajectory: Trajectory) -> list[tuple[str, str]]:
    """Write each turn as (react, observation), as the dialogues of `data.prompts` have them."""
    steps = []
    for turn in with_success(trajectory).turns:
        marked = [one.text + SUCCESS * (one.data.get("success") is True) for one in turn.observations]
        blocks = dict(sides([turn], [marked]))
        thought = words(turn.action.thought)
        thought = f"Thought: {thought}\n\nAction: " if thought else ""
        steps.append((thought + blocks["actor"], blocks.get("world", "")))
    return steps
