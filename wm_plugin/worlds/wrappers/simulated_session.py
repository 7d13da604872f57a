"""What a simulated environment knows of its episode: the turn whose calls run, what was asked, and what it came to.

Hosts call one tool after the other, and world models are trained on turns: an action is the text and all calls of a message, and
what is observed after it is one message too. A host therefore notes each turn before its calls run (`note`), which asks about
all of it at once, and without waiting; `call` waits for the answer and gives the part of one call. A call of no turn that was
noted is a turn of its own.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.data.schema import Action, Call, Trajectory
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import Wrapper
from wm_plugin.runtime import background
from wm_plugin.worlds.wrappers.counting import Counts
from wm_plugin.worlds.wrappers.simulated_dialogue import Dialogue, LostError, Waiting
from wm_plugin.worlds.wrappers.simulated_episode import Reading
from wm_plugin.worlds.wrappers.simulated_success import judge
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

logger = logging.getLogger(__name__)

OVER = "The episode is over."
FIGURES = ("requests", "cached", "repairs", "tokens", "harmless")  # as `simulation/<name>`


@dataclass
class _Turn:
    """A turn. `reached` has the numbers of the calls that come to the environment; `given` the observations of those that came;
    `plans`, under control, what is planned for each that comes to the environment."""

    action: Action
    reached: frozenset[int]
    plans: Mapping[int, Any] = field(default_factory=dict)
    asked: "Future[Reading] | None" = None
    given: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = Waiting(self.action, self.reached)

    @property
    def done(self) -> bool:
        return self.given.keys() >= self.reached

    @property
    def data(self) -> list[Mapping[str, Any]]:
        """Of the observations."""
        return [self.plans[n].data if n in self.plans else {} for n in range(len(self.action.calls))]


class Session(Dialogue):
    """One episode at a time.

    Args:
        environment: the real world's class.
        world: an instance of it, which gives the first observation.

    Attributes:
        lost: 1 if the episode was lost for want of an answer.
        score: what a verifier or a rule says of the episode; None before they are asked.
        words: the agent's last ones without a call.
        problem: why the run cannot go on; None if it can.
    """

    def __init__(self, environment: type, world: Wrapper, config: SimulationConfig) -> None:
        super().__init__(environment, world, config)
        self._name = environment.__name__
        self.max_turns: int | None = None
        self._clear()
        self._ended = True  # until the first reset

    def _clear(self) -> None:
        self.turns, self.lost, self._ended, self._won = 0, 0, False, False
        self.score: float | None = None
        self.words, self.columns = "", dict[str, Any]()
        self._answer_tool: str | None = None
        self._told: str | None = None  # by this tool
        self.counts = Counts(self._environment, self._kinds)
        self._forget()
        self._turn: _Turn | None = None

    def begin(self, prompt: Any, columns: Mapping[str, Any], first: Any, control: Any = None) -> None:
        """Begin the episode of a row, whose first observation is the real world's.

        Args:
            control: of the episode: `instruction`, and `begin_turn`, `plan` and `guard` for its turns and calls; None: none.

        Raises:
            UserError: the world model cannot be asked, or the prompt does not fit.
        """
        if self.problem is not None:
            raise self.problem
        if self._turn is not None and self._turn.asked is not None:
            self._turn.asked.cancel()  # of an episode that nobody has ended
        self._clear()
        self.columns = dict(columns)
        self._control = control
        self._open(prompt, columns, first, control)
        self.counts.begin(first or "")
        limits = [
            limit for limit in (self.config.max_turns, getattr(self.world, "max_turns", None)) if limit is not None
        ]
        self.max_turns = min(limits, default=None)
        self._answer_tool = getattr(self.world.instance, "answer_tool", None)
        if self.config.success == "answer" and self._answer_tool is None:
            raise UserError(
                f"simulation.success is answer, and this row of {self._name} is not decided by an answer but by a state, which "
                "only the real world has; leave such rows out, or write success: verifier"
            )
        self._ended = bool(getattr(self.world, "over", False))  # its start was lost
        self.lost = int((getattr(self.world, "metrics", None) or {}).get("lost", 0))

    @property
    def over(self) -> bool:
        return self._ended or (self.max_turns is not None and self.turns >= self.max_turns)

    @property
    def answer(self) -> str:
        """The argument of the world's tool of answers, or else the agent's last words without a call."""
        return self.words if self._told is None else self._told

    @property
    def graded(self) -> dict[str, float]:
        """What the real world says of the agent's answer: its score as `simulation/answer`, and figures such as an F1; empty if
        it does not check it."""
        if not self._is_checked:
            return {}
        figures = getattr(self.world, "metrics", None) or {}
        return {**figures, "simulation/answer": float(self.world.get_reward())}

    @property
    def _is_checked(self) -> bool:
        """Whether the real world checks the answer. A scenario has another question than the world's row."""
        return self._answer_tool is not None and not self.config.scenarios

    @property
    def _is_answered(self) -> bool:
        """Whether an answer has ended the task in the real world, too."""
        return self._is_checked and self._told is not None and bool(getattr(self.world, "over", False))

    @property
    def success(self) -> bool:
        if self.config.success == "predicted":
            return self._won and not self.lost
        if self.config.success == "answer":
            return bool(getattr(self.world, "success", False)) and not self.lost
        return self.score is not None and self.score >= self.config.threshold

    @property
    def metrics(self) -> dict[str, float]:
        """The episode's figures: what the real world says of the answer, and what was observed and asked."""
        return {
            **self.graded,
            "actions": self.counts.actions,
            "effective": self.counts.effective,
            "invalid": self.counts.invalid,
            "lost": self.lost,
            **{f"simulation/{name}": self.asked[name] for name in FIGURES},
        }

    def get_reward(self) -> float:
        """The outcome. It asks the judge, if nobody has.

        Raises:
            UserError: the server refuses the key, the address or the model; or what else went wrong with all questions.
        """
        judge([self])
        if self.problem is not None:
            raise self.problem
        if self.lost:
            return 0.0
        if self.config.success == "answer":
            return float(self.world.get_reward())
        return float(self._won) if self.config.success == "predicted" else self.score or 0.0

    @property
    def trajectory(self) -> Trajectory:
        """The episode so far, with the hidden state in its context."""
        self._close(())
        return self._simulation.trajectory

    # -- turns ------------------------------------------------------------------------------------------------------------

    def note(self, action: Action, results: Sequence[str] = ()) -> None:
        """A turn whose calls run next. What is asked about it is asked now.

        Args:
            results: what the agent observed after the calls of the turn before.
        """
        self._close(results)
        if not action.calls:
            self.words = action.text
        if self.over or self.problem is not None:
            return
        reached = frozenset(n for n, call in enumerate(action.calls) if self._reaches(call))
        plans: dict[int, Any] = {}
        if self._control is not None and action.calls:
            self._control.begin_turn()
            # of those alone that come to a world, as in a real one: else the draws of the others would differ
            plans = {n: self._control.plan(action.calls[n].name) for n in sorted(reached)}
        self._turn = turn = _Turn(action, reached, plans)
        if reached:
            question = self._question(action, turn.data)
            turn.asked = background.start(self._predict(action, question, self.asked, self._waited))

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The observation after a call.

        Raises:
            ValueError: the episode is over.
        """
        number = self._number(name, arguments)
        if number is None and not self.over:
            self.note(Action(calls=(Call(name=name, arguments=dict(arguments)),)))
            number = self._number(name, arguments)
        turn = self._turn
        if number is None or self.over or turn is None or turn.asked is None:
            raise ValueError(OVER)
        try:
            reading = turn.asked.result()
        except LostError as error:
            return self._lose(str(error))
        except Exception as error:  # hosts would make a result of it
            self.problem = error
            return self._lose("refused")
        text = reading.texts[number]
        if turn.plans:
            text = self._control.guard(text, turn.plans[number])
            self._control.data = turn.plans[number].data  # of this call, for who records it
        turn.given[number] = text
        turn.waiting.take(number)
        refused = text in (str({"error": OVER}), f"Error executing tool '{name}': {OVER}")  # as hosts write it
        self.turns += not refused
        if name == self._answer_tool:
            self._take_answer(name, arguments)
        if turn.done:
            self._won = reading.success
            self._ended = reading.success or self._closes(text) or self._is_answered
        if refused:  # a call of the same message has ended the episode, and the host writes this
            raise ValueError(OVER)
        self.counts.add(turn.action.calls[number], text)
        return text

    def _take_answer(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Note an answer, and hand it to the real world, which scores it. What it says of it nobody is shown."""
        if self._is_answered:  # by another call of the message
            return
        answer = next(iter(arguments.values()), "")
        self._told = answer if isinstance(answer, str) else json.dumps(answer, default=str)
        if not self._is_checked:
            return
        try:
            self.world.call(name, dict(arguments))
        except Exception as error:  # a world of the user's own
            logger.warning("%s failed on an answer (%s: %.200s)", self._name, type(error).__name__, error)

    def _closes(self, text: str) -> bool:
        """Whether an observation ends the episode. A control may have had it written as JSON, or between lines of backticks."""
        end = text.rstrip()
        styled = end if self._control is None else end.rstrip('`"} \n')
        return end.endswith(self.config.closings) or styled.endswith(self.config.closings)

    async def ready(self) -> None:
        """Wait for the answer about the turn that was noted. It may be a failure."""
        turn = self._turn
        if turn is not None and turn.asked is not None:
            (asked,), _ = await asyncio.wait([asyncio.wrap_future(turn.asked)])
            if not asked.cancelled():
                asked.exception()  # `call` deals with it; a failure that nobody looks at would be logged

    def _close(self, results: Sequence[str]) -> None:
        """Put the turn into the history: predictions where calls took them, and what the host said to the other calls."""
        turn, self._turn = self._turn, None
        if turn is None or self.lost:
            return
        told = list(results) + [""] * (len(turn.action.calls) - len(results))
        success = False
        if turn.asked is not None and turn.given:
            reading = turn.asked.result()
            told = [turn.given.get(n, text) for n, text in enumerate(told[: len(turn.action.calls)])]
            success = turn.done and reading.success
        elif turn.asked is not None:
            turn.asked.cancel()  # its calls have not come
        observations = self._simulation.observations(turn.action, told, turn.data)
        self._simulation.take(turn.action, observations, success)

    def _number(self, name: str, arguments: Mapping[str, Any]) -> int | None:
        """Which call of the turn this is; None if it is of none."""
        if self._turn is None:
            return None
        return self._turn.waiting.find(name, arguments)

    def _lose(self, why: str) -> str:
        self.lost, self._ended, self._won = 1, True, False
        logger.warning("an episode of %s was lost: no answer of the world model (%s)", self._name, why)
        return f"The world was lost ({why}).\n{OVER}"
