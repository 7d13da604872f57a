"""What look-ahead gains a policy at equal compute, and how often what it imagined came true.

One policy plays the same tasks in several arms:

* plain: it acts as it samples.
* majority, best-of-n: it takes the most frequent of n samples of an action, or the likeliest by its own log-probability, of as
  many samples as cost the tokens that look-ahead generates a decision.
* coin: it looks ahead, and a coin instead of a world model decides whether each imagined episode is won.
* look-ahead: it imagines episodes with its world model and takes the first action that is worth most.
* oracle: the same, and the real environment answers, at no cost of tokens.

The first sample of a turn has the same seed in every arm. Differences are paired by task.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import wm_plugin.worlds.agents.rollout as rollout
from wm_plugin.client.answers import Answers
from wm_plugin.client.predict import seed_of
from wm_plugin.data.schema import Action, Trajectory
from wm_plugin.lab.agents.imagined_worlds import ControlWorld
from wm_plugin.lab.agents.lookahead import Decider, Decision, Decisions, LookAhead, Sampled, Way, decision
from wm_plugin.lab.agents.lookahead_values import samples_for
from wm_plugin.lab.evaluation.consistency import check_success, failure_of
from wm_plugin.lab.evaluation.measures import Evaluation, Key, Measure, Sums, differences
from wm_plugin.runtime.workers import Lost
from wm_plugin.worlds.agents.acting import Situation
from wm_plugin.worlds.agents.players import Row, rounds
from wm_plugin.worlds.kit.start import task_of
from wm_plugin.worlds.worlds import World

PLAIN, MAJORITY, BEST, COIN, AHEAD, ORACLE = "plain", "majority", "best-of-n", "coin", "look-ahead", "oracle"
ARMS = (PLAIN, MAJORITY, BEST, COIN, AHEAD, ORACLE)
_BINS = 5


@dataclass(frozen=True)
class Played:
    """A task in an arm. `trajectory` is None if it was lost, and `failure` says why."""

    arm: str
    number: int
    task: str
    trajectory: Trajectory | None
    decisions: Sequence[Decision]
    failure: str = ""

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.decisions)


@dataclass(frozen=True)
class Setting:
    """How every arm plays.

    Args:
        folder: keeps each arm's decisions; None keeps nothing.
        asked: how many new decisions each arm made, those that were kept from before aside.
    """

    world: World
    rows: Sequence[Row]
    folder: Path | None = None
    seed: int = 0
    max_turns: int = 64
    host: rollout.Host = "trl"
    at_once: int = 64
    asked: Counter[str] = field(default_factory=Counter)


def play(setting: Setting, arm: str, decider: Decider) -> Iterator[Played]:
    """Play an arm's episodes, in order of the tasks."""
    path = None if setting.folder is None else setting.folder / f"decisions-{arm}.jsonl"
    answers = Answers(Decisions(decider), path)
    made: dict[int, list[Decision]] = {}

    def act(states: Mapping[int, Trajectory]) -> Mapping[int, Action | Lost | None]:
        seeds = [seed_of(f"{setting.seed}/{number}/{len(state.turns)}") for number, state in states.items()]
        asked = [Situation(state) for state in states.values()]
        actions: dict[int, Action | Lost | None] = {}
        for number, answer in zip(states, answers(asked, seeds=seeds, at_once=decider.at_once), strict=True):
            one = decision(answer)
            made[number].append(one)
            actions[number] = Lost(one.failure, "the policy's server gave no answer") if one.failure else one.action
        return actions

    with answers:
        for start in range(0, len(setting.rows), setting.at_once):
            tasks = list(enumerate(setting.rows[start : start + setting.at_once], start))
            made.update((number, []) for number, _ in tasks)
            played = rounds(setting.world, tasks, act, max_turns=setting.max_turns, host=setting.host)
            check_success(setting.world, played)
            for (number, row), one in zip(tasks, played, strict=True):
                lost = failure_of(one)
                trajectory = None if lost or isinstance(one, Lost) else one
                yield Played(arm, number, f"{number}: {task_of(row)}", trajectory, made.pop(number), lost)
            setting.asked[arm] = answers.asked


def turns_left(world: World, max_turns: int, host: rollout.Host = "trl") -> Callable[[Trajectory], int | None]:
    """Make a function that returns how many turns an episode has left by its environment's limit, asked once a task."""
    known: dict[str, int] = {}
    environment: list[Any] = []

    def left(trajectory: Trajectory) -> int | None:
        row = trajectory.metadata.get("reset")
        if not isinstance(row, dict):
            return None
        key = repr(sorted(row.items()))
        if key not in known:
            environment[:] = environment or [world.make()]
            next(rollout.episode(environment[0], row, max_turns=1, host=host), None)
            own = getattr(environment[0], "max_turns", None)
            known[key] = min(max_turns, own) if type(own) is int and own > 0 else max_turns
        return known[key] - len(trajectory.turns)

    return left


def play_all(
    setting: Setting,
    arms: Sequence[str],
    ahead: LookAhead,
    oracle: LookAhead | None,
    watch: Callable[[Iterator[Played], str], Iterator[Played]] = lambda played, _: played,
) -> dict[str, list[Played]]:
    """Play the named arms. Look-ahead plays first: its tokens set the number of samples of majority and best-of-n."""
    played: dict[str, list[Played]] = {}
    ways: dict[str, Way] = {PLAIN: "plain", MAJORITY: "majority", BEST: "best-of-n"}
    for arm in (one for one in (AHEAD, ORACLE, PLAIN, COIN, MAJORITY, BEST) if one in arms):
        decider: Decider
        if arm in ways:
            samples = 1
            if arm != PLAIN:
                samples = (equal_samples(played[AHEAD]) if AHEAD in played else None) or ahead.config.continuations
            decider = Sampled(ways[arm], ahead.imaginer, samples)
        elif arm == COIN:
            decider = LookAhead(ahead.imaginer, ControlWorld(COIN), ahead.config)
        elif arm == ORACLE:
            assert oracle is not None
            decider = oracle
        else:
            decider = ahead
        played[arm] = list(watch(play(setting, arm, decider), arm))
    return {arm: played[arm] for arm in ARMS if arm in played}


def equal_samples(played: Sequence[Played]) -> int | None:
    """Return how many samples of an action cost as many tokens as look-ahead's decision; None if no tokens are counted."""
    made = [one for episode in played for one in episode.decisions if one.first_tokens]
    drawn, firsts = sum(one.samples for one in made), sum(one.first_tokens for one in made)
    return samples_for(sum(one.tokens for one in made) / len(made), firsts / drawn) if made and drawn else None


def evaluate(
    played: Mapping[str, Sequence[Played]],
    *,
    subject: str,
    data: str,
    settings: Mapping[str, Any],
    notes: Sequence[str] = (),
    seed: int = 0,
) -> Evaluation:
    """Measure each arm, each against plain, and what look-ahead imagined. Intervals are over tasks."""
    sums = {arm: _sums(episodes) for arm, episodes in played.items()}
    first = AHEAD if AHEAD in sums else next(iter(sums))
    measures = sums[first].measures(seed=seed)
    for arm, one in sums.items():
        measures += one.measures(by="arm", group=arm, seed=seed)
        drawn = [each.samples for episode in played[arm] for each in episode.decisions]
        if drawn:
            measures.append(Measure("samples", sum(drawn) / len(drawn), "count", len(drawn), "arm", arm))
    for arm in sums if PLAIN in sums else ():
        if arm != PLAIN:
            names = ("success", "reward", "turns")
            measures += _compared(sums[arm], sums[PLAIN], names, "against plain", arm, seed)
    for arm in (MAJORITY, BEST, COIN) if AHEAD in sums else ():
        if arm in sums:
            measures += _compared(sums[AHEAD], sums[arm], ("success", "reward"), "look-ahead against", arm, seed)
    for arm in (AHEAD, ORACLE):
        if arm in played:
            measures += calibration(played[arm], arm, seed=seed)
    failures = Counter(f"{one.arm}: {one.failure}" for episodes in played.values() for one in episodes if one.failure)
    counts = dict(failures.most_common())
    if troubled := sum(one.troubled for episodes in played.values() for each in episodes for one in each.decisions):
        counts["imagined episodes"] = troubled
    all_notes = [*notes, *_compute(played)]
    return Evaluation("lookahead", subject, data, dict(settings), measures, counts, all_notes)


def _compute(played: Mapping[str, Sequence[Played]]) -> list[str]:
    """Say what each arm generated."""
    parts = []
    for arm, episodes in played.items():
        made = [one for episode in episodes for one in episode.decisions]
        if made:
            tokens = sum(one.tokens for one in made)
            parts.append(f"{arm} {tokens / len(made):,.1f} ({tokens:,} in all)")
    if not sum(one.tokens for episodes in played.values() for one in episodes):
        return ["the server counts no tokens: majority and best-of-n have as many samples as look-ahead has episodes"]
    return [f"tokens generated a decision: {', '.join(parts)}"] if parts else []


def _sums(episodes: Sequence[Played]) -> Sums:
    sums = Sums()
    for one in episodes:
        if one.trajectory is None:
            sums.add(Key("success"), one.task, count=0.0, failed=1.0)
            continue
        sums.add(Key("success"), one.task, float(bool(one.trajectory.success)))
        if one.trajectory.reward is not None:
            sums.add(Key("reward", "score"), one.task, one.trajectory.reward)
        sums.add(Key("turns", "count"), one.task, len(one.trajectory.turns))
        sums.add(Key("tokens", "count"), one.task, one.tokens)
    return sums


def _compared(sums: Sums, others: Sums, names: Sequence[str], by: str, group: str, seed: int) -> list[Measure]:
    chosen = Sums({key: tasks for key, tasks in sums.of.items() if key.name in names})
    return [replace(one, by=by, group=group) for one in differences(chosen, others, seed=seed)]


def calibration(episodes: Sequence[Played], arm: str, *, seed: int = 0) -> list[Measure]:
    """Measure how often what was imagined came true.

    `imagines_success`: decisions in which some episode was imagined to be won. Over decisions with a score: `imagined` (the
    forecast: the share of the chosen action's episodes that were), `came` (the episode was won), `optimism` (their difference),
    `brier` (the mean squared one), and `came` by the bin of the forecast. `next_observation`: the imagined observation followed.
    Imagined episodes go on without looking ahead and real ones with it, so even a perfect world model may imagine too little.
    """
    sums, bins = Sums(), Sums()
    for episode in episodes:
        if episode.trajectory is None:
            continue

        def add(name: str, value: float, unit: str = "share", task: str = episode.task) -> None:
            sums.add(Key(name, unit, "imagined by", arm), task, value)

        won = float(bool(episode.trajectory.success))
        for turn, one in enumerate(episode.decisions):
            add("imagines_success", float(one.any_success))
            if one.score is not None:
                add("imagined", one.imagined)
                add("came", won)
                add("optimism", one.imagined - won, "score")
                add("brier", (one.imagined - won) ** 2, "score")
                low = min(int(one.imagined * _BINS), _BINS - 1)
                name = f"{arm}, {low / _BINS:.1f} to {(low + 1) / _BINS:.1f} imagined"
                bins.add(Key("came", "share", "forecast", name), episode.task, won)
            if one.observation is not None and turn < len(episode.trajectory.turns):
                add("next_observation", float(_seen(episode.trajectory, turn).strip() == one.observation.strip()))
    return sums.measures(seed=seed) + sorted(bins.measures(seed=seed), key=lambda one: one.group)


def _seen(trajectory: Trajectory, turn: int) -> str:
    return "\n".join(each.text for each in trajectory.turns[turn].observations)


def rows(played: Mapping[str, Sequence[Played]]) -> Iterator[dict[str, Any]]:
    """Make a row for each decision, as `wm report` shows rows."""
    for arm, episodes in played.items():
        for episode in episodes:
            if episode.failure:
                yield {"arm": arm, "task": episode.task, "failure": episode.failure}
            trajectory = episode.trajectory
            for turn, one in enumerate(episode.decisions):
                row: dict[str, Any] = {"arm": arm, "task": episode.task, "turn": turn + 1}
                row["action"] = one.action.to_bytes().decode()
                if trajectory is not None and turn < len(trajectory.turns):
                    row["real"] = _seen(trajectory, turn)
                if one.observation is not None:
                    row["predicted"] = one.observation
                row["scores"] = {"imagined": one.imagined, "tokens": float(one.tokens)}
                if one.score is not None:
                    row["scores"]["score"] = one.score
                yield {**row, "success": None if trajectory is None else bool(trajectory.success)}
