"""What a simulated environment knows of its episode: the turn whose calls run, what was asked, and what it came to.

Hosts call one tool after the other, and world models are trained on turns: an action is the text and all calls of a message, and
what is observed after it is one message too. A host therefore notes each turn before its calls run (`note`), which asks about
all of it at once, and without waiting; `call` waits for the answer and gives the part of one call. A call of no turn that was
noted is a turn of its own.
"""

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from wm_plugin.environments.asking import WorldModel, world_model
from wm_plugin.environments.counting import Counts
from wm_plugin.environments.harmless import harmless
from wm_plugin.environments.kit.protocol import fits, observers, tool_methods, tool_schema, world_context_of
from wm_plugin.environments.kit.start import context_of, task_of
from wm_plugin.environments.simulated_episode import Reading, Simulation
from wm_plugin.environments.simulation_config import SimulationConfig
from wm_plugin.runtime import background
from wm_plugin.samples.prompts import load
from wm_plugin.tokens.message import Message
from wm_plugin.trajectories.contexts import Contexts, load_contexts
from wm_plugin.trajectories.hidden import parse_parts
from wm_plugin.trajectories.schema import Action, Call, Trajectory

logger = logging.getLogger(__name__)

OVER = "The episode is over."
ASKED_AGAIN = ("cut", "empty", "no prediction", "headings")  # troubles of an answer that a server gave


class LostError(Exception):
    """There is no answer of the world model; the message says why."""


@lru_cache
def _contexts(path: str) -> Contexts:
    """The hidden contexts of a file, which all environments of a process share."""
    return load_contexts(path)


@dataclass
class _Turn:
    """A turn. `reached` has the numbers of the calls that come to the environment; `given` the observations of those that came;
    `plans`, under control, what is planned for each that comes to the environment."""

    action: Action
    reached: frozenset[int]
    plans: Mapping[int, Any] = field(default_factory=dict)
    asked: "Future[Reading] | None" = None
    given: dict[int, str] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.given.keys() >= self.reached

    @property
    def data(self) -> list[Mapping[str, Any]]:
        """Of the observations."""
        return [self.plans[n].data if n in self.plans else {} for n in range(len(self.action.calls))]


class Session:
    """One episode at a time.

    Args:
        environment: the real world's class.

    Attributes:
        world: an instance of it, which gives the first observation.
        lost: 1 if the episode was lost for want of an answer.
        score: what a verifier or a rule says of the episode; None before they are asked.
        answer: the agent's last words without a call.
        problem: why the run cannot go on; None if it can.
    """

    def __init__(self, environment: type, config: SimulationConfig) -> None:
        self.config, self.world, self._name = config, environment(), environment.__name__
        self._kinds, self._tools = observers(environment), tool_methods(self.world)
        self._simulation = Simulation(
            load(config.prompts),
            observers=self._kinds,
            world_context=parse_parts(config.hidden, "simulation.hidden"),
            seed=config.seed,
            max_turns=sys.maxsize,
        )
        self.problem: Exception | None = None
        self.max_turns: int | None = None
        self._clear()
        self._ended = True  # until the first reset

    def _clear(self) -> None:
        self.turns, self.lost, self._ended, self._won = 0, 0, False, False
        self.score: float | None = None
        self.answer, self.columns = "", dict[str, Any]()
        self.counts = Counts(type(self.world), self._kinds)
        # of this episode: a question that is cancelled may still write into those of the episode before
        self.figures: Counter[str] = Counter()
        self._waited = [0.0]
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
        row = {name: value for name, value in columns.items() if name != "prompt"}
        row |= {} if prompt is None else {"prompt": prompt}
        schemas = tuple(tool_schema(getattr(type(self.world), name)) for name in self._tools)
        context = context_of(prompt, first or "", schemas, world_context_of(self.world))
        task = task_of(row)
        if self.config.context_file is not None:
            context = _contexts(self.config.context_file).fill(context, task)
        self._control = control
        if control is not None:
            context = context.model_copy(update={"simulation_instruction": control.instruction})
        self._simulation.reset(Trajectory(turns=(), context=context, task_id=task))
        self.counts.begin(first or "")
        self._model: WorldModel = world_model(self.config)
        limits = [
            limit for limit in (self.config.max_turns, getattr(self.world, "max_turns", None)) if limit is not None
        ]
        self.max_turns = min(limits, default=None)
        self._ended = bool(getattr(self.world, "over", False))  # its start was lost
        self.lost = int((getattr(self.world, "metrics", None) or {}).get("lost", 0))

    @property
    def over(self) -> bool:
        return self._ended or (self.max_turns is not None and self.turns >= self.max_turns)

    @property
    def success(self) -> bool:
        if self.config.success == "predicted":
            return self._won and not self.lost
        return self.score is not None and self.score >= self.config.threshold

    @property
    def reward(self) -> float:
        """The outcome, after `simulated_success.judge`.

        Raises:
            UserError: the server refuses the key, the address or the model; or what else went wrong with all questions.
        """
        if self.problem is not None:
            raise self.problem
        if self.lost:
            return 0.0
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
            self.answer = action.text
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
            question = self._question(turn)
            turn.asked = background.start(self._predict(action, question, self.figures, self._waited))

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
        refused = text in (str({"error": OVER}), f"Error executing tool '{name}': {OVER}")  # as hosts write it
        self.turns += not refused
        if turn.done:
            self._won = reading.success
            self._ended = reading.success or self._closes(text)
        if refused:  # a call of the same message has ended the episode, and the host writes this
            raise ValueError(OVER)
        self.counts.add(turn.action.calls[number], text)
        return text

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

    def _reaches(self, call: Call) -> bool:
        """Whether the host hands a call over, rather than answering it."""
        return call.name in self._tools and fits(self._tools[call.name], call.arguments)

    def _number(self, name: str, arguments: Mapping[str, Any]) -> int | None:
        """Which call of the turn this is; None if it is of none."""
        if self._turn is None:
            return None
        turn = self._turn
        open_calls = {n: turn.action.calls[n] for n in sorted(turn.reached) if n not in turn.given}
        same = [n for n, call in open_calls.items() if call.name == name]
        return next((n for n in same if (open_calls[n].arguments or {}) == arguments), same[0] if same else None)

    # -- the world model, in the background loop ----------------------------------------------------------------------------

    def _question(self, turn: _Turn) -> list[Message]:
        """The dialogue of the training, without control tokens in it."""
        question = self._simulation.question(turn.action, turn.data)
        tokens = self._model.control_tokens
        made = [{**message, "content": harmless(message["content"], tokens)} for message in question]
        self.figures["harmless"] += made[-1] != question[-1]
        return made

    async def _predict(
        self, action: Action, question: list[Message], figures: Counter[str], waited: list[float]
    ) -> Reading:
        left = None if self.config.deadline is None else max(0.0, self.config.deadline - waited[0])
        start = time.monotonic()
        try:
            async with asyncio.timeout(left):
                return await self._answered(action, question, figures)
        except TimeoutError:
            raise LostError("deadline") from None
        finally:
            waited[0] += time.monotonic() - start

    async def _answered(self, action: Action, question: list[Message], figures: Counter[str]) -> Reading:
        for attempt in range(1 + self.config.repair):
            for name, limit in (("requests", self.config.max_requests), ("tokens", self.config.max_total_tokens)):
                if limit is not None and figures[name] >= limit:
                    raise LostError(f"its budget of {limit} {name} is spent")
            reply = await self._model.ask(question, attempt)
            figures["repairs"] += attempt > 0
            figures["requests"] += reply.requests
            figures["cached"] += reply.requests == 0
            figures["tokens"] += reply.tokens
            reading = self._simulation.read(action, reply.answer)
            if reading.trouble not in ASKED_AGAIN:
                break
        if reading.trouble:
            raise LostError(reading.trouble)
        return reading

    def _lose(self, why: str) -> str:
        self.lost, self._ended, self._won = 1, True, False
        logger.warning("an episode of %s was lost: no answer of the world model (%s)", self._name, why)
        return f"The world was lost ({why}).\n{OVER}"
