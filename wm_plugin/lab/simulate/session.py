"""An episode in a world model that a person plays, with the real one beside it: what happens, without what is printed."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wm_plugin.worlds.agents.rollout as rollout
from wm_plugin.client.answers import Answers
from wm_plugin.data.hidden import HEADINGS, PARTS, parts
from wm_plugin.data.outputs import check_out
from wm_plugin.data.schema import Action, Call, Observation, Trajectory, Turn
from wm_plugin.data.write import SUFFIXES, write
from wm_plugin.errors import UserError
from wm_plugin.runtime.workers import lost_by
from wm_plugin.tokens.harmless import harmless
from wm_plugin.tokens.message import Message
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.control import ControlEpisode, Plan
from wm_plugin.worlds.wrappers.simulated_episode import Simulation

_MOST_TURNS = 1_000_000  # of the real world, which has a limit of its own


class RealWorld:
    """The real episode of the same actions. It is played when it is asked for, and again from its start after an undo.

    Attributes:
        start: the trajectory before the first turn.
        trouble: why there is no episode any more; "" if there is one.
    """

    def __init__(self, world: World, row: dict[str, Any]) -> None:
        self._row, self.environment = row, world.make()
        self._begin()
        self.start = self._trajectory

    def after(self, actions: Sequence[Action]) -> Trajectory:
        """The episode of these actions, or of the first ones if it is over before the last."""
        done = [turn.action for turn in self._trajectory.turns]
        if done != list(actions[: len(done)]):
            self._begin()
            done = []
        for action in actions[len(done) :]:
            if self._steps is None:
                break
            self._send(action)
        return self._trajectory

    @property
    def over(self) -> bool:
        return self._steps is None

    def _begin(self) -> None:
        self.trouble = ""
        self._steps: Any = rollout.episode(self.environment, self._row, max_turns=_MOST_TURNS)
        self._send(None)

    def _send(self, action: Action | None) -> None:
        try:
            self._trajectory: Trajectory = self._steps.send(action)
        except StopIteration as end:
            self._steps, self._trajectory = None, end.value
        except UserError as error:
            if action is not None:  # an episode that raised cannot be sent anything more
                self._steps, self.trouble = None, str(error)
            raise
        except Exception as error:
            if action is None:
                raise
            self._steps, self.trouble = None, lost_by(error).kind


class ControlledSimulation(Simulation):
    """A simulation that is told what a control draws for each call, and whose texts keep what it withholds."""

    control: ControlEpisode | None = None
    _plans: tuple[Plan, ...] = ()

    def draw(self, action: Action) -> None:
        """Draw for the next turn; the same after an undo, since it depends on the turn's number."""
        if self.control is not None:
            self.control.turn = self.turns
            self.control.begin_turn()
            self._plans = tuple(self.control.plan(call.name) for call in action.calls)

    def observations(
        self, action: Action, texts: Sequence[str] | None = None, data: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[Observation, ...]:
        made = super().observations(action, texts, data)
        if self.control is None:
            return made
        pairs = zip(made, self._plans, strict=False)  # of a turn that nothing was drawn for, as before the first one
        guarded = (
            one.model_copy(update={"data": plan.data, "text": self.control.guard(one.text, plan)})
            for one, plan in pairs
        )
        return (*guarded, *made[len(self._plans) :])


class Session:
    """One episode.

    Args:
        simulation: reset to the start.
        answers: of the world model.
        real: the world beside it.

    Attributes:
        failures: calls of the world model that failed.
    """

    def __init__(self, simulation: ControlledSimulation, answers: Answers, real: RealWorld) -> None:
        self.simulation, self.real, self.failures = simulation, real, 0
        self._answers = answers
        self._past: list[ControlledSimulation] = []  # before each turn
        self._same: dict[int, bool] = {}  # of the turns that were compared, from 1

    def act(self, action: Action) -> str:
        """The next turn. Returns why there is none; "" if there is."""
        before = copy.copy(self.simulation)  # what it holds is never changed in place
        self.simulation.draw(action)
        (answer,) = self._answers([self._question(action)])
        if answer.failure:
            self.failures += 1
            return answer.failure
        self.simulation.step(action, answer)
        self._past.append(before)
        return ""

    def _question(self, action: Action) -> list[Message]:
        """As a host asks: without control tokens of chat templates."""
        return [{**one, "content": harmless(one["content"])} for one in self.simulation.question(action)]

    def undo(self) -> bool:
        """Take the last turn back: a question depends on the turns before it alone. False if there is none."""
        if not self._past:
            return False
        self._same.pop(self.simulation.turns, None)
        self.simulation = self._past.pop()
        return True

    def instruct(self, text: str) -> None:
        """Another simulation instruction, from the next turn on."""
        trajectory = self.simulation.trajectory
        context = trajectory.context.model_copy(update={"simulation_instruction": text})
        self.simulation.trajectory = trajectory.model_copy(update={"context": context})

    @property
    def actions(self) -> list[Action]:
        return [turn.action for turn in self.simulation.trajectory.turns]

    def compare(self) -> tuple[str, str | None]:
        """The last turn as the world model and as the real world tell it; None: the real one was over before."""
        turns = self.simulation.trajectory.turns
        real = self.real.after(self.actions)
        predicted = _said(turns[-1], self.simulation.success)
        if len(real.turns) < len(turns):
            self._same[len(turns)] = False
            return predicted, None
        really = _said(real.turns[-1], self.real.over and bool(real.success))
        self._same[len(turns)] = predicted.strip() == really.strip()
        return predicted, really

    def shown(self) -> str:
        """What the world model is shown before the turns: the first message of a question."""
        name = next(iter(self.simulation.observers), "act")
        return str(self._question(Action(calls=(Call(name=name),)))[0]["content"])

    def state(self) -> list[tuple[str, str, bool]]:
        """The parts of the state that there are: heading, text, and whether the world model is shown it."""
        context, told = self.simulation.trajectory.context, parts(self.simulation.world_context)
        texts = ((name, getattr(context, field)) for name, field in PARTS.items())
        return [(HEADINGS[name], text, name in told) for name, text in texts if text.strip()]

    def figures(self) -> dict[str, Any]:
        """What came of it, as JSON."""
        compared = sorted(self._same)
        agreed = sum(self._same.values())
        real = self.real.after(self.actions) if compared else None
        return {
            "turns": self.simulation.turns,
            "over": self.simulation.over,
            "success": self.simulation.success,
            "trouble": self.simulation.trouble,
            "compared": len(compared),
            "agreement": agreed / len(compared) if compared else None,
            "parted": next((turn for turn in compared if not self._same[turn]), None),
            "real_success": None if real is None or real.success is None else bool(real.success),
            "failures": self.failures,
        }

    def save(self, name: str, settings: dict[str, Any]) -> Path:
        """Write the trajectory to a new file. Its observations say that they are simulated.

        Raises:
            UserError: something is there, or it cannot be written.
        """
        path = Path(name).expanduser()
        check_out(path, SUFFIXES)
        if path.exists() or path.is_symlink():
            raise UserError(f"{path}: is there already; name a new file")
        trajectory = self.simulation.trajectory
        turns = tuple(_flagged(turn) for turn in trajectory.turns)
        metadata = {**trajectory.metadata, "simulated": settings}
        write([trajectory.model_copy(update={"turns": turns, "metadata": metadata})], path)
        return path


def _said(turn: Turn, won: bool) -> str:
    return "\n\n".join(one.text for one in turn.observations) + ("\n[the task is done]" if won else "")


def _flagged(turn: Turn) -> Turn:
    flagged = (one.model_copy(update={"data": {**one.data, "simulated": True}}) for one in turn.observations)
    return turn.model_copy(update={"observations": tuple(flagged)})
