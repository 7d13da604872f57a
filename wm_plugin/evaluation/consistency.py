"""Whether episodes in a world model hold in the real world (Word2World's consistency).

The same tasks are played three times by an agent:

* Real: in the real world.
* WM: in the world model at temperature 0, from the real first observation, until it marks a success or the turns are used up.
* W2R: the actions of every WM episode, won or not, in the real world, to its first end there.

CR is W2R / Real, undefined where Real is 0. As a ratio of means it is of all agents' episodes together; as a mean of ratios it is
the mean of the agents' own CRs. The paper prints the first in its tables 2 and 10 and the second in its table 3. Its means are
over agents; those of episodes are the same where all agents have as many without a failure.

Two episodes part at the first turn after which the world model and the real world do not say the same (white space at the ends
aside), or only one of them ends in success, or the real world has ended before.

An episode fails if a call of a model failed, an answer was cut or empty, or an environment was lost. Without a failure is a task
that has none in any arm; `with_failed` takes all tasks and counts what failed as not won.
"""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

import wm_plugin.agents.rollout as rollout
from wm_plugin.agents.acting import Agent
from wm_plugin.agents.players import Row, Task, lost_by
from wm_plugin.environments.simulated import MAX_TURNS, Simulation
from wm_plugin.environments.worlds import World
from wm_plugin.errors import UserError, nearest
from wm_plugin.evaluation.measures import Evaluation, Measure, interval
from wm_plugin.runtime.workers import Lost
from wm_plugin.samples.answers import Answers
from wm_plugin.samples.prompts import Prompts
from wm_plugin.trajectories.expand import with_success
from wm_plugin.trajectories.outputs import atomic
from wm_plugin.trajectories.readers.word2world import SUCCESS
from wm_plugin.trajectories.render import sides
from wm_plugin.trajectories.schema import Action, Observation, Trajectory, Turn

Arm = Literal["real", "wm", "w2r"]
ARMS: tuple[Arm, ...] = ("real", "wm", "w2r")
SPLITS = ("seen", "unseen")
HORIZONS = (5, 10, 20, 30, 40)  # turns; ours: the paper gives no table by them
_DRAWS, _CHUNK = 2000, 100
_UNDEFINED = "undefined: Real is 0"


@dataclass(frozen=True)
class Anchor:
    """Where the real world answers in a WM episode: in its first turns, and in turns with a call of a named tool."""

    turns: int = 0
    tools: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.turns > 0 or bool(self.tools)

    def holds(self, turn: int, action: Action) -> bool:
        return turn < self.turns or any(call.name in self.tools for call in action.calls)


@dataclass(frozen=True)
class Episode:
    """A task in the three arms. `failures` has a reason for each arm that failed."""

    agent: str
    split: str
    number: int
    task: str
    real: Trajectory | None
    simulated: Trajectory
    replayed: Trajectory | None
    failures: Mapping[Arm, str]

    @property
    def failure(self) -> str:
        """The first failure, with its arm; "" if there is none."""
        return next((f"{arm}: {self.failures[arm]}" for arm in ARMS if arm in self.failures), "")

    def trajectory(self, arm: Arm) -> Trajectory | None:
        return {"real": self.real, "wm": self.simulated, "w2r": self.replayed}[arm]

    def won(self, arm: Arm, horizon: int | None = None) -> bool:
        """Whether an arm was won, within so many turns."""
        trajectory = self.trajectory(arm)
        return trajectory is not None and bool(trajectory.success) and _within(len(trajectory.turns), horizon)

    def won_at_least(self, arm: Arm, horizon: int | None = None) -> bool:
        """`won`, False where the arm failed: what is replayed of a WM episode that failed counts no more than that."""
        failed = arm in self.failures or (arm == "w2r" and "wm" in self.failures)
        return not failed and self.won(arm, horizon)

    @cached_property
    def parted(self) -> int | None:
        """The first turn, from 1, at which world model and real world part; None: they never do."""
        return None if self.replayed is None else parting_turn(self.simulated, self.replayed)

    def together(self, horizon: int | None = None) -> bool:
        """Whether they have not parted within so many turns."""
        return self.parted is None or not _within(self.parted, horizon)


def _within(turn: int, horizon: int | None) -> bool:
    return horizon is None or turn <= horizon


def parting_turn(simulated: Trajectory, replayed: Trajectory) -> int | None:
    """The first turn, from 1, at which an episode in a world model and its replay part; None if there is none."""
    for number, turn in enumerate(simulated.turns, 1):
        if number > len(replayed.turns):
            return number
        same = _texts(turn) == _texts(replayed.turns[number - 1])
        if not same or _won_at(simulated, number) is not _won_at(replayed, number):
            return number
    return None


def _texts(turn: Turn) -> list[str]:
    return [observation.text.strip() for observation in turn.observations]


def _won_at(trajectory: Trajectory, number: int) -> bool:
    return bool(trajectory.success) and number == len(trajectory.turns)


def consistency(
    world: World,
    tasks: Mapping[str, Sequence[Row]],
    agent: Agent,
    model: Answers,
    prompts: Prompts,
    *,
    anchor: Anchor = Anchor(),
    max_turns: int = MAX_TURNS,
    world_context: bool = True,
    seed: int = 0,
    host: rollout.Host = "trl",
    at_once: int = 32,
) -> Iterator[Episode]:
    """Play tasks in the three arms.

    Args:
        tasks: rows by split.
        model: the world model, at temperature 0.
        prompts: those that it was trained with.
        max_turns: of an episode in the world model; less where the world itself ends earlier. The agent has its own for Real.
        seed: of the prompts' variants.
        at_once: episodes that play together. With an anchor each has a real environment beside it.

    Raises:
        UserError: as from `check`, or the world knows no success.
    """
    check(world, model, prompts, anchor)

    def simulation() -> Simulation:
        return Simulation(
            prompts, observers=world.observers, world_context=world_context, seed=seed, max_turns=max_turns
        )

    numbered = [(split, row) for split, rows in tasks.items() for row in rows]
    arms = _Arms(world, agent, model, simulation, anchor, max_turns, host)
    with agent, model:
        for start in range(0, len(numbered), at_once):
            group = [(number, row) for number, (_, row) in enumerate(numbered[start : start + at_once], start)]
            played = agent.play(group)
            if any(isinstance(one, Trajectory) and one.success is None for one in played):
                raise UserError(f"{world.name}: its class knows no success (the property `success`), which this counts")
            simulations = arms.simulate(group)
            for (number, row), real in zip(group, played, strict=True):
                simulated = simulations[number]
                replayed = arms.replay(row, [turn.action for turn in simulated.trajectory.turns])
                reasons: dict[Arm, str] = {"real": _reason(real), "wm": simulated.trouble, "w2r": _reason(replayed)}
                yield Episode(
                    agent.name,
                    numbered[number][0],
                    number,
                    rollout.task_of(row),
                    real if isinstance(real, Trajectory) else None,
                    simulated.trajectory,
                    replayed if isinstance(replayed, Trajectory) else None,
                    {arm: reason for arm, reason in reasons.items() if reason},
                )


def check(world: World, model: Answers, prompts: Prompts, anchor: Anchor) -> None:
    """Check before hours of work what `consistency` takes.

    Raises:
        UserError: the world model samples, the prompts have no success mark, or the anchor names a tool that the world has not.
    """
    Simulation(prompts)
    if model.settings.get("temperature") != 0:
        raise UserError(f"consistency is at temperature 0, not {model.settings.get('temperature')}")
    for tool in anchor.tools:
        if tool not in world.observers:
            raise UserError(f"--anchor-tools: {world.name} has no tool {tool!r}{nearest(tool, world.observers)}")


def _reason(result: Trajectory | Lost) -> str:
    """Why a real episode failed; "" if it did not."""
    if isinstance(result, Lost):
        return result.kind
    return "lost" if result.metadata.get("figures", {}).get("lost") else ""


@dataclass
class _Arms:
    """The episodes in the world model and their replays."""

    world: World
    agent: Agent
    model: Answers
    simulation: Callable[[], Simulation]
    anchor: Anchor
    max_turns: int
    host: rollout.Host

    def __post_init__(self) -> None:
        self._environment = self.world.make()

    def simulate(self, group: Sequence[Task]) -> dict[int, Simulation]:
        """The group's episodes in the world model, by number; a turn of all at once."""
        simulations = {number: self.simulation() for number, _ in group}
        live: dict[int, _Anchored] = {}
        for number, row in group:
            environment = self.world.make() if self.anchor else self._environment
            anchored = _Anchored(environment, row, simulations[number], self.anchor, self.max_turns, self.host)
            if not simulations[number].over:
                live[number] = anchored
        while live:
            asked: dict[int, Action] = {}
            actions = self.agent.act({number: simulations[number].trajectory for number in live})
            for number, action in actions.items():
                simulation = simulations[number]
                if isinstance(action, Lost):
                    simulation.fail(f"agent, {action.kind}")
                elif action is None or not action.calls:
                    simulation.leave(action)
                elif not live[number].answers(action):
                    asked[number] = action
            answers = self.model([simulations[number].question(action) for number, action in asked.items()])
            for (number, action), answer in zip(asked.items(), answers, strict=True):
                simulations[number].step(action, answer)
            live = {number: one for number, one in live.items() if not simulations[number].over}
        return simulations

    def replay(self, row: Row, actions: Sequence[Action]) -> Trajectory | Lost:
        try:
            return rollout.replay(self._environment, row, actions, host=self.host)
        except UserError:
            raise
        except Exception as error:
            self._environment = self.world.make()
            return lost_by(error)


class _Anchored:
    """A real episode beside a simulated one: it gives the start, and the observations of the turns that the anchor holds."""

    def __init__(
        self, environment: Any, row: Row, simulation: Simulation, anchor: Anchor, max_turns: int, host: rollout.Host
    ) -> None:
        self._simulation, self._anchor = simulation, anchor
        self._steps: Any = rollout.episode(environment, row, max_turns=max_turns, host=host)
        start = self._send(None)
        if start is None:
            return
        simulation.reset(start)
        own = getattr(environment, "max_turns", None)
        simulation.max_turns = min(max_turns, own) if isinstance(own, int) and own > 0 else max_turns
        if reason := _reason(start):
            simulation.fail(reason)
        elif self._steps is None:  # the real world is over before the first turn
            simulation.leave()
        if not anchor:
            self._steps = None

    def answers(self, action: Action) -> bool:
        """Go on with an action. Whether the real world has answered it: the anchor holds here, and the real episode goes on."""
        turn = self._simulation.turns
        if self._steps is None or (turn >= self._anchor.turns and not self._anchor.tools):
            return False
        after = self._send(action)
        if after is None:
            return True
        if not self._anchor.holds(turn, action):
            return False
        if reason := _reason(after):
            self._simulation.fail(reason)
        over = self._steps is None
        self._simulation.take(action, after.turns[-1].observations, over and bool(after.success), over=over)
        return True

    def _send(self, action: Action | None) -> Trajectory | None:
        """The real episode after an action; None if it has failed, and the simulated one with it."""
        try:
            after: Trajectory = self._steps.send(action)
            return after
        except StopIteration as end:
            self._steps = None
            ended: Trajectory = end.value
            return ended
        except UserError:
            raise
        except Exception as error:
            self._steps = None
            self._simulation.fail(lost_by(error).kind)
            return None


# What was measured


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
    episodes: Sequence[Episode], *, seed: int, by: str = "", group: str = "", horizon: int | None = None
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
    return made


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
    """Percentile intervals of both ratios, over tasks. A draw in which Real is 0 is left out.

    `interval` does not fit: a task that is won in W2R alone counts, though its Real is 0.
    """
    numbers = {number: place for place, number in enumerate(dict.fromkeys((one.split, one.number) for one in whole))}
    if len(numbers) < 2:
        return (None, None), (None, None)
    won = torch.zeros(2, len(agents), len(numbers), dtype=torch.float64)
    for one in whole:
        place = agents.index(one.agent), numbers[one.split, one.number]
        won[0][place], won[1][place] = one.won("real", horizon), one.won("w2r", horizon)
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(_DRAWS // _CHUNK):
        drawn.append(won[:, :, torch.randint(len(numbers), (_CHUNK, len(numbers)), generator=generator)].sum(-1))
    real, replayed = torch.cat(drawn, -1)  # (agents, draws)
    return _limits(replayed.sum(0) / real.sum(0)), _limits((replayed / real).where(real > 0, torch.nan).nanmean(0))


def _limits(values: torch.Tensor) -> tuple[float | None, float | None]:
    values = values[values.isfinite()]
    if not len(values):
        return None, None
    low, high = values.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


# What is written


def w2r_rows(episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """Episodes in Word2World's W2R form, which `trajectories.readers.word2world` reads.

    A conversation has the turns that were replayed; what the world model goes on to say after the real end is `after_the_end`. An
    episode without a replayed turn has no row: the form has no episode without an action.
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


def write_w2r(episodes: Sequence[Episode], path: str | Path) -> None:
    """Write `w2r_rows` as JSON lines."""
    with atomic(Path(path)) as unfinished, unfinished.open("w", encoding="utf-8", newline="\n") as file:
        for row in w2r_rows(episodes):
            file.write(json.dumps(row, ensure_ascii=True) + "\n")


def _steps(trajectory: Trajectory) -> list[tuple[str, str]]:
    """(react, observation) of each turn, as the dialogues of `samples.prompts` have them."""
    steps = []
    for turn in with_success(trajectory).turns:
        blocks = dict(sides([turn], [[_marked(observation) for observation in turn.observations]]))
        thought = f"Thought: {turn.action.thought}\n\nAction: " if turn.action.thought else ""
        steps.append((thought + blocks["actor"], blocks.get("world", "")))
    return steps


def _marked(observation: Observation) -> str:
    return observation.text + SUCCESS if observation.data.get("success") is True else observation.text


def turn_rows(episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """A row for each turn that was played in both worlds, for `measures.write_rows`."""
    for one in episodes:
        if one.replayed is None:
            continue
        context = one.simulated.context.initial_state
        for number, ((action, predicted), (_, real)) in enumerate(
            zip(_steps(one.simulated), _steps(one.replayed), strict=False), 1
        ):
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
