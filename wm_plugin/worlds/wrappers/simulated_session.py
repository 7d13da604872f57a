"""The episode of a simulated environment: the turn whose calls run, what was asked, and what it came to.

Hosts call one tool after the other, and world models are trained on turns: an action is the text and all calls of a message, and
what is observed after it is one message too. A host therefore notes each turn before its calls run (`note`), which asks about
all of it at once, and without waiting; `call` waits for the answer and gives the part of one call. A call of no turn that was
noted is a turn of its own.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wm_plugin.data.schema import Action, Call, Trajectory
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import Wrapper
from wm_plugin.worlds.wrappers.counting import Counts
from wm_plugin.worlds.wrappers.simulated_dialogue import Dialogue, LostError, PlayedTurn
from wm_plugin.worlds.wrappers.simulated_episode import Reading
from wm_plugin.worlds.wrappers.simulated_success import judge
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

logger = logging.getLogger(__name__)

OVER = "The episode is over."
FIGURES = ("requests", "cached", "repairs", "tokens", "harmless")  # as `simulation/<name>`


class _Turn(PlayedTurn):
    """A turn that a world model answers. `plans`, under control, has what is planned for each call that is reached."""

    def __init__(self, action: Action, reached: Iterable[int], plans: Mapping[int, Any]) -> None:
        super().__init__(action, reached)
        self.plans = plans

    @property
    def done(self) -> bool:
        return self.told.keys() >= {*self.reached}

    @property
    def data(self) -> list[Mapping[str, Any]]:
        """The data of the observations."""
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
    """

    _turn: _Turn | None

    def __init__(self, environment: type, world: Wrapper, config: SimulationConfig) -> None:
        super().__init__(environment, world, config)
        self.max_turns: int | None = None
        self._clear()
        self._ended = True  # until the first reset

    def _clear(self) -> None:
        self.turns, self.lost, self._ended, self._won = 0, 0, False, False
        self.score: float | None = None
        self.words, self.columns = "", dict[str, Any]()
        self._answer_tool: str | None = None
        self._told: str | None = None  # by this tool
        self.counts = Counts(self.environment, self._kinds)
        self._forget()
        self._turn = None

    def begin(self, prompt: Any, columns: Mapping[str, Any], first: Any, control: Any = None) -> None:
        """Begin the episode of a row, whose first observation is the real world's.

        Args:
            control: of the episode, for its turns and calls; None: none.

        Raises:
            UserError: the world model cannot be asked, or the prompt does not fit.
        """
        if self.problem is not None:
            raise self.problem
        self._cancel()  # of an episode that nobody has ended
        self._clear()
        self.columns, self._control = dict(columns), control
        self._open(prompt, columns, first, control)
        self.counts.begin(first or "")
        limits = (self.config.max_turns, getattr(self.world, "max_turns", None))
        self.max_turns = min((limit for limit in limits if limit is not None), default=None)
        self._answer_tool = getattr(self.world.instance, "answer_tool", None)
        if self.config.success == "answer" and self._answer_tool is None:
            raise UserError(
                f"simulation.success is answer, and this row of {self.environment.__name__} is not decided by an answer but by "
                "a state, which only the real world has; leave such rows out, or write success: verifier"
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
        """The figures: what the real world says of an answer that it checks (its score as `simulation/answer`), and what was
        observed and asked."""
        graded: dict[str, float] = {}
        if self._is_checked:
            graded = {
                **(getattr(self.world, "metrics", None) or {}),
                "simulation/answer": float(self.world.get_reward()),
            }
        return {
            **graded,
            "actions": self.counts.actions,
            "effective": self.counts.effective,
            "invalid": self.counts.invalid,
            "lost": self.lost,
            **{f"simulation/{name}": self.asked[name] for name in FIGURES},
        }

    def get_reward(self) -> float:
        """Return the outcome. It asks the judge, if nobody has.

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
        """Begin a turn whose calls run next, and ask about it.

        Args:
            results: what the agent observed after the calls of the turn before.
        """
        self._close(results)
        if not action.calls:
            self.words = action.text
        if self.over or self.problem is not None:
            return
        reached = self._reached(action)
        plans: dict[int, Any] = {}
        if self._control is not None and action.calls:
            self._control.begin_turn()
            # of those alone that come to a world, as in a real one: else the draws of the others would differ
            plans = {n: self._control.plan(action.calls[n].name) for n in reached}
        self._turn = turn = _Turn(action, reached, plans)
        if reached:
            question = self._question(action, turn.data)
            self._start(turn, self._predict(action, question, self.asked, self._waited))

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the observation after a call.

        Raises:
            ValueError: the episode is over.
        """
        number = self._find(name, arguments)
        if number is None and not self.over:
            self.note(Action(calls=(Call(name=name, arguments=dict(arguments)),)))
            number = self._find(name, arguments)
        turn = self._turn
        if number is None or self.over or turn is None or not turn.asked:
            raise ValueError(OVER)
        try:
            reading: Reading = turn.asked[0].result()
        except LostError as error:
            return self._lose(str(error))
        except Exception as error:  # hosts would make a result of it
            self.problem = error
            return self._lose("refused")
        text = reading.texts[number]
        if turn.plans:
            text = self._control.guard(text, turn.plans[number])
            self._control.data = turn.plans[number].data  # of this call, for who records it
        turn.told[number] = text
        turn.take(number)
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
        """Keep an answer, and hand it to the real world, which scores it. Nobody is shown what it says of it."""
        if self._is_answered:  # by another call of the message
            return
        answer = next(iter(arguments.values()), "")
        self._told = answer if isinstance(answer, str) else json.dumps(answer, default=str)
        if not self._is_checked:
            return
        try:
            self.world.call(name, dict(arguments))
        except Exception as error:  # a world of the user's own
            name = self.environment.__name__
            logger.warning("%s failed on an answer (%s: %.200s)", name, type(error).__name__, error)

    def _closes(self, text: str) -> bool:
        """Whether an observation ends the episode. A control may have had it written as JSON, or between lines of backticks."""
        end = text.rstrip()
        styled = end if self._control is None else end.rstrip('`"} \n')
        return end.endswith(self.config.closings) or styled.endswith(self.config.closings)

    def _close(self, results: Sequence[str]) -> None:
        """Put the turn into the history: predictions where calls took them, and what the host said to the other calls."""
        turn = self._turn
        if turn is not None and not turn.told:
            self._cancel()  # its calls have not come
        self._turn = None
        if turn is None or self.lost:
            return
        success = bool(turn.told) and turn.done and turn.asked[0].result().success
        observations = self._simulation.observations(turn.action, turn.texts(results), turn.data)
        self._simulation.take(turn.action, observations, success)

    def _lose(self, why: str) -> str:
        self.lost, self._ended, self._won = 1, True, False
        name = self.environment.__name__
        logger.warning("an episode of %s was lost: no answer of the world model (%s)", name, why)
        return f"The world was lost ({why}).\n{OVER}"
