"""An episode as a world model knows it, and the questions about it: for a simulated world (`simulated_session`), or for a check
before an action in the real one (`verified`).
"""

import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from itertools import islice
from types import MethodType
from typing import Any, TypeVar

from wm_plugin.data.contexts import load_contexts
from wm_plugin.data.hidden import parse_parts
from wm_plugin.data.prompts import load
from wm_plugin.data.schema import Action, Call, Trajectory
from wm_plugin.hosting.world import Wrapper, tool_names
from wm_plugin.runtime import background
from wm_plugin.tokens.harmless import harmless
from wm_plugin.tokens.message import Message
from wm_plugin.worlds.kit.protocol import fits, observers, tool_schema, world_context_of
from wm_plugin.worlds.kit.start import context_of, task_of
from wm_plugin.worlds.wrappers.simulated_episode import Reading, Simulation
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig
from wm_plugin.worlds.wrappers.world_model_client import WorldModel, world_model

_LOOKED = 16  # calls of a tool
ASKED_AGAIN = ("cut", "empty", "no prediction", "headings")  # troubles of an answer that a server gave
T = TypeVar("T")

_contexts = lru_cache(load_contexts)  # all environments of a process share a file's hidden contexts


class LostError(Exception):
    """The world model has no answer; the message says why."""


class PlayedTurn:
    """A turn of the agent whose calls run.

    Args:
        reached: the numbers of the calls that come to the environment; the host answers the others itself.

    Attributes:
        told: what the agent read after each call that has come.
        asked: the questions about it.
    """

    def __init__(self, action: Action, reached: Iterable[int]) -> None:
        self.action, self.reached = action, sorted(reached)
        self.told: dict[int, str] = {}
        self.asked: list[Future[Any]] = []
        self._left: dict[str, deque[int]] = {}
        for number in self.reached:
            self._left.setdefault(action.calls[number].name, deque()).append(number)

    def find(self, name: str, arguments: Mapping[str, Any]) -> int | None:
        """Return which call this is: the first with these arguments, else the first of the tool; None if none of it is left.

        Hosts run calls in their order, so that few are looked at; thousands in one message would take the square of the time.
        """
        left = self._left.get(name)
        if not left:
            return None
        same = (number for number in islice(left, _LOOKED) if (self.action.calls[number].arguments or {}) == arguments)
        return next(same, left[0])

    def take(self, number: int) -> None:
        """Remove a call that has come."""
        self._left[self.action.calls[number].name].remove(number)

    def texts(self, results: Sequence[str]) -> list[str]:
        """Return what the agent read after each call, where `results` has what the host says of it."""
        texts = [*results, *[""] * len(self.action.calls)]
        return [self.told.get(number, texts[number]) for number in range(len(self.action.calls))]


class Dialogue:
    """One episode at a time.

    Args:
        environment: the class whose tools and schemas the world model knows.
        world: an instance of it, in its wrappers.
        where: the config's name in messages.

    Attributes:
        problem: why the run cannot go on; None if it can.
        asked: counts of the episode: `requests`, `cached`, `repairs`, `tokens` and `harmless`.
    """

    def __init__(self, environment: type, world: Wrapper, config: SimulationConfig, where: str = "simulation") -> None:
        self.config, self.world, self.environment = config, world, environment
        self._kinds = observers(environment)
        self._tools: dict[str, Callable[..., Any]] = {
            name: MethodType(getattr(environment, name), world.instance) for name in tool_names(environment)
        }
        self._simulation = Simulation(
            load(config.prompts),
            observers=self._kinds,
            world_context=parse_parts(config.hidden, f"{where}.hidden"),
            seed=config.seed,
            max_turns=sys.maxsize,
        )
        self.problem: Exception | None = None
        self._turn: PlayedTurn | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin new counts. A question that is cancelled may still write into those of the episode before."""
        self.asked: Counter[str] = Counter()
        self._waited = [0.0]

    def _open(self, prompt: Any, columns: Mapping[str, Any], first: Any, control: Any) -> None:
        """Begin the dialogue about the episode of a row.

        Args:
            control: of the episode, whose `instruction` the world model is told; None: none.

        Raises:
            UserError: the world model cannot be asked, or the prompt does not fit.
        """
        row = {name: value for name, value in columns.items() if name != "prompt"}
        row |= {} if prompt is None else {"prompt": prompt}
        schemas = tuple(tool_schema(getattr(self.environment, name)) for name in self._tools)
        context = context_of(prompt, first or "", schemas, world_context_of(self.world.instance))
        task = task_of(row)
        if self.config.context_file is not None:
            context = _contexts(self.config.context_file).fill(context, task)
        if control is not None:
            context = context.model_copy(update={"simulation_instruction": control.instruction})
        self._simulation.reset(Trajectory(turns=(), context=context, task_id=task))
        self._connect()

    def _connect(self) -> None:
        self._model: WorldModel = world_model(self.config)

    def _reached(self, action: Action) -> list[int]:
        """Return which calls the host hands over, rather than answering them itself."""
        return [number for number, call in enumerate(action.calls) if self._fits(call)]

    def _fits(self, call: Call) -> bool:
        return call.name in self._tools and fits(self._tools[call.name], call.arguments)

    def _find(self, name: str, arguments: Mapping[str, Any]) -> int | None:
        """Return which call of the turn this is; None if it is of none."""
        return None if self._turn is None else self._turn.find(name, arguments)

    def _start(self, turn: PlayedTurn, question: Coroutine[Any, Any, T]) -> "Future[T]":
        """Ask about a turn, without waiting."""
        asked = background.start(question)
        turn.asked.append(asked)
        return asked

    def _cancel(self) -> None:
        """Cancel what is asked about calls that have not come."""
        for asked in [] if self._turn is None else self._turn.asked:
            asked.cancel()

    async def ready(self) -> None:
        """Wait for the answers about the turn. They may be failures."""
        if self._turn is not None and self._turn.asked:
            done, _ = await asyncio.wait([asyncio.wrap_future(one) for one in self._turn.asked])
            for one in done:
                one.cancelled() or one.exception()  # the calls deal with it; one that nobody looks at would be logged

    # -- the world model, in the background loop ----------------------------------------------------------------------------

    def _question(
        self, action: Action, data: Sequence[Mapping[str, Any]] = (), simulation: Simulation | None = None
    ) -> list[Message]:
        """Return the dialogue of the training, without control tokens in it.

        Args:
            data: of the action's observations.
            simulation: of another continuation; None: the episode so far.
        """
        question = (simulation or self._simulation).question(action, data)
        tokens = self._model.control_tokens
        made = [{**message, "content": harmless(message["content"], tokens)} for message in question]
        self.asked["harmless"] += made[-1] != question[-1]
        return made

    async def _predict(
        self, action: Action, question: list[Message], figures: Counter[str], waited: list[float], sample: int = 0
    ) -> Reading:
        """Return what the world model says.

        Raises:
            LostError: it has no answer, or there is no time or budget for one.
            UserError: the server refuses the key, the address or the model.
        """
        left = None if self.config.deadline is None else max(0.0, self.config.deadline - waited[0])
        start = time.monotonic()
        try:
            async with asyncio.timeout(left):
                return await self._answered(action, question, figures, sample)
        except TimeoutError:
            raise LostError("deadline") from None
        finally:
            waited[0] += time.monotonic() - start

    async def _answered(self, action: Action, question: list[Message], figures: Counter[str], sample: int) -> Reading:
        for attempt in range(1 + self.config.repair):
            for name, limit in (("requests", self.config.max_requests), ("tokens", self.config.max_total_tokens)):
                if limit is not None and figures[name] >= limit:
                    raise LostError(f"its budget of {limit} {name} is spent")
            reply = await self._model.ask(question, attempt, sample)
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
