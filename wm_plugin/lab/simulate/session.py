"""An episode in a world model that a person plays, with the real one beside it: what happens, without what is printed."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wm_plugin.client.answers import Answers
from wm_plugin.data.hidden import HEADINGS, PARTS, parts
from wm_plugin.data.outputs import check_out
from wm_plugin.data.schema import Action, Call, Observation, Turn
from wm_plugin.data.write import SUFFIXES, write
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.real import RealEpisode
from wm_plugin.tokens.harmless import harmless
from wm_plugin.tokens.message import Message
from wm_plugin.worlds.wrappers.control import ControlEpisode, Plan
from wm_plugin.worlds.wrappers.simulated_episode import Simulation


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
    """One episode: a simulation at its start, the world model's answers, and the real world beside it."""

    def __init__(self, simulation: ControlledSimulation, answers: Answers, real: RealEpisode) -> None:
        self.simulation, self.real, self._answers = simulation, real, answers
        self.failures = 0  # calls of the world model that failed
        self._past: list[ControlledSimulation] = []  # before each turn
        self._same: dict[int, bool] = {}  # of the turns that were compared, from 1

    def act(self, action: Action) -> str:
        """Play a turn; return why there is none, or ""."""
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
        # as a host asks: without control tokens of chat templates
        return [{**one, "content": harmless(one["content"])} for one in self.simulation.question(action)]

    def undo(self) -> bool:
        """Take the last turn back; return False if there is none. A question depends on the turns before it alone."""
        if not self._past:
            return False
        self._same.pop(self.simulation.turns, None)
        self.simulation = self._past.pop()
        return True

    def instruct(self, text: str) -> None:
        """Give the simulation another instruction, from the next turn on."""
        trajectory = self.simulation.trajectory
        context = trajectory.context.model_copy(update={"simulation_instruction": text})
        self.simulation.trajectory = trajectory.model_copy(update={"context": context})

    @property
    def actions(self) -> list[Action]:
        return [turn.action for turn in self.simulation.trajectory.turns]

    def compare(self) -> tuple[str, str | None]:
        """Return the last turn as the world model and as the real world tell it; None if that was over before."""
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
        """Return what the world model is shown before the turns: the first message of a question."""
        name = next(iter(self.simulation.observers), "act")
        return str(self._question(Action(calls=(Call(name=name),)))[0]["content"])

    def state(self) -> list[tuple[str, str, bool]]:
        """Return the parts of the state: heading, text, and whether the world model is shown it."""
        context, told = self.simulation.trajectory.context, parts(self.simulation.world_context)
        texts = ((name, getattr(context, field)) for name, field in PARTS.items())
        return [(HEADINGS[name], text, name in told) for name, text in texts if text.strip()]

    def figures(self) -> dict[str, Any]:
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
        """Write the trajectory to a new file. Its observations say that they are simulated."""
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
