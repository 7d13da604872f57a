"""Whether episodes in a world model hold in the real world (Word2World's consistency).

An agent plays the same tasks three times:

* Real: in the real world.
* WM: in the world model at temperature 0, from the real first observation, until it marks a success or the turns are used up.
* W2R: every WM episode's actions, won or not, in the real world, to its first end there.

CR is W2R / Real, undefined where Real is 0. As a ratio of means (the paper's tables 2 and 10) it is over all agents' episodes
together; as a mean of ratios (table 3) it is the mean of the agents' own CRs.

Two episodes part at the first turn after which the world model and the real world do not say the same (white space at the ends
aside), or only one of them ends in success, or the real world has ended before.

An episode fails if a model's call failed, an answer was cut or empty, or an environment was lost. `with_failed` takes all tasks
and counts what failed as not won. `cut_taken` reads episodes as Word2World's script does, which takes an answer that was cut.

`consistency_measures` counts the episodes that are played here, and writes them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import wm_plugin.worlds.agents.rollout as rollout
from wm_plugin.client.answers import Answers
from wm_plugin.data.contexts import Contexts
from wm_plugin.data.hidden import Shown
from wm_plugin.data.prompts import Prompts
from wm_plugin.data.schema import Action, Trajectory
from wm_plugin.errors import UserError, nearest
from wm_plugin.runtime.workers import Lost, lost_by
from wm_plugin.worlds.agents.acting import Agent
from wm_plugin.worlds.agents.players import Row, Task
from wm_plugin.worlds.kit.start import task_of
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.simulated_episode import MAX_TURNS, Simulation

Arm = Literal["real", "wm", "w2r"]
ARMS: tuple[Arm, ...] = ("real", "wm", "w2r")
SPLITS = ("seen", "unseen")


@dataclass(frozen=True)
class Anchor:
    """Where the real world answers in a WM episode: in its first turns, and in turns that call a named tool."""

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

    def cut_taken(self) -> "Episode":
        """Return the episode in which an answer that was cut at its limit is no failure."""
        failures = {arm: reason for arm, reason in self.failures.items() if (arm, reason) != ("wm", "cut")}
        return replace(self, failures=failures)

    def trajectory(self, arm: Arm) -> Trajectory | None:
        return {"real": self.real, "wm": self.simulated, "w2r": self.replayed}[arm]

    def won(self, arm: Arm, horizon: int | None = None) -> bool:
        """Return whether an arm was won, within `horizon` turns."""
        trajectory = self.trajectory(arm)
        return trajectory is not None and bool(trajectory.success) and _within(len(trajectory.turns), horizon)

    def won_at_least(self, arm: Arm, horizon: int | None = None) -> bool:
        """Return `won`, and False where the arm failed, or W2R replays a WM episode that failed."""
        failed = arm in self.failures or (arm == "w2r" and "wm" in self.failures)
        return not failed and self.won(arm, horizon)

    @cached_property
    def parted(self) -> int | None:
        """The first turn, from 1, at which world model and real world part; None if they never do."""
        return None if self.replayed is None else parting_turn(self.simulated, self.replayed)

    def together(self, horizon: int | None = None) -> bool:
        """Return whether they have not parted within `horizon` turns."""
        return self.parted is None or not _within(self.parted, horizon)


def _within(turn: int, horizon: int | None) -> bool:
    return horizon is None or turn <= horizon


def parting_turn(simulated: Trajectory, replayed: Trajectory) -> int | None:
    """Return the first turn, from 1, at which an episode in a world model and its replay part; None if they never do."""

    def end(trajectory: Trajectory, number: int) -> tuple[list[str], bool]:
        texts = [observation.text.strip() for observation in trajectory.turns[number - 1].observations]
        return texts, bool(trajectory.success) and number == len(trajectory.turns)

    for number in range(1, len(simulated.turns) + 1):
        if number > len(replayed.turns) or end(simulated, number) != end(replayed, number):
            return number
    return None


def consistency(
    world: World,
    tasks: Mapping[str, Sequence[Row]],
    agent: Agent,
    model: Answers,
    prompts: Prompts,
    *,
    anchor: Anchor = Anchor(),
    max_turns: int = MAX_TURNS,
    world_context: Shown = True,
    contexts: Contexts | None = None,
    seed: int = 0,
    host: rollout.Host = "trl",
    at_once: int = 32,
) -> Iterator[Episode]:
    """Play tasks in the three arms.

    Args:
        tasks: rows by split.
        max_turns: the limit of an episode in the world model, unless the world ends earlier. The agent has its own for Real.
        at_once: episodes that play together. With an anchor each has a real environment beside it.
    """
    check(world, model, prompts, anchor)

    def simulation() -> Simulation:
        how: dict[str, Any] = {"world_context": world_context, "seed": seed, "max_turns": max_turns}
        return Simulation(prompts, observers=world.observers, **how)

    numbered = [(split, row) for split, rows in tasks.items() for row in rows]
    arms = _Arms(world, agent, model, simulation, anchor, max_turns, host, contexts)
    with agent, model:
        for start in range(0, len(numbered), at_once):
            group = [(number, row) for number, (_, row) in enumerate(numbered[start : start + at_once], start)]
            played = agent.play(group)
            check_success(world, played)
            simulations = arms.simulate(group)
            for (number, row), real in zip(group, played, strict=True):
                simulated = simulations[number]
                replayed = arms.replay(row, [turn.action for turn in simulated.trajectory.turns])
                reasons: dict[Arm, str] = {
                    "real": failure_of(real),
                    "wm": simulated.trouble,
                    "w2r": failure_of(replayed),
                }
                yield Episode(
                    agent.name,
                    numbered[number][0],
                    number,
                    task_of(row),
                    real if isinstance(real, Trajectory) else None,
                    simulated.trajectory,
                    replayed if isinstance(replayed, Trajectory) else None,
                    {arm: reason for arm, reason in reasons.items() if reason},
                )


def check(world: World, model: Answers, prompts: Prompts, anchor: Anchor) -> None:
    """Check before hours of work what `consistency` takes."""
    Simulation(prompts)
    if model.settings.get("temperature") != 0:
        raise UserError(f"consistency is at temperature 0, not {model.settings.get('temperature')}")
    for tool in anchor.tools:
        if tool not in world.observers:
            raise UserError(f"--anchor-tools: {world.name} has no tool {tool!r}{nearest(tool, world.observers)}")


def check_success(world: World, played: Sequence[Trajectory | Lost]) -> None:
    """Raise UserError if the world's class does not say whether its episodes were won."""
    if any(isinstance(one, Trajectory) and one.success is None for one in played):
        raise UserError(f"{world.name}: its class knows no success (the property `success`), which this counts")


def failure_of(result: Trajectory | Lost) -> str:
    """Say why a real episode failed; "" if it did not."""
    if isinstance(result, Lost):
        return result.kind
    return "lost" if result.metadata.get("figures", {}).get("lost") else ""


@dataclass
class _Arms:
    """Plays the episodes in the world model, and replays them."""

    world: World
    agent: Agent
    model: Answers
    simulation: Callable[[], Simulation]
    anchor: Anchor
    max_turns: int
    host: rollout.Host
    contexts: Contexts | None

    def __post_init__(self) -> None:
        self._environment = self.world.make()

    def simulate(self, group: Sequence[Task]) -> dict[int, Simulation]:
        """Play a group's episodes in the world model, one turn of all at a time; the result is by number."""
        simulations = {number: self.simulation() for number, _ in group}
        live: dict[int, _Anchored] = {}
        for number, row in group:
            environment = self.world.make() if self.anchor else self._environment
            live[number] = _Anchored(self, environment, row, simulations[number])
        while live := {number: one for number, one in live.items() if not simulations[number].over}:
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
    """A real episode beside a simulated one: it gives the start, and the observations of anchored turns."""

    def __init__(self, arms: _Arms, environment: Any, row: Row, simulation: Simulation) -> None:
        self._simulation, self._anchor = simulation, arms.anchor
        self._steps: Any = rollout.episode(environment, row, max_turns=arms.max_turns, host=arms.host)
        start = self._send(None)
        if start is None:
            return
        simulation.reset(start if arms.contexts is None else arms.contexts.filled(start))
        own = getattr(environment, "max_turns", None)
        simulation.max_turns = min(arms.max_turns, own) if isinstance(own, int) and own > 0 else arms.max_turns
        if reason := failure_of(start):
            simulation.fail(reason)
        elif self._steps is None:  # the real world is over before the first turn
            simulation.leave()
        if not arms.anchor:
            self._steps = None

    def answers(self, action: Action) -> bool:
        """Take an action; return whether the real world has answered it, as in anchored turns before the real end."""
        turn = self._simulation.turns
        if self._steps is None or (turn >= self._anchor.turns and not self._anchor.tools):
            return False
        after = self._send(action)
        if after is None:
            return True
        if not self._anchor.holds(turn, action):
            return False
        if reason := failure_of(after):
            self._simulation.fail(reason)
        over = self._steps is None
        self._simulation.take(action, after.turns[-1].observations, over and bool(after.success), over=over)
        return True

    def _send(self, action: Action | None) -> Trajectory | None:
        """Return the real episode after an action; None if it has failed, and the simulated one with it."""
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
