"""The checks of one episode: what the world model is asked before an irreversible action, and what its answers lead to.

The world model is asked as in a simulated world (`simulated_dialogue`): with the dialogue of its training. Its
observations are the real ones, and its last message is the agent's turn up to the call that is checked. Calls that were refused,
and what the agent read of them, are left out: they never happened in the world, and no world model was trained on refusals. The
agent itself keeps them in its context.
"""

import asyncio
import copy
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from wm_plugin.client.server import Server
from wm_plugin.data.render import write_call
from wm_plugin.data.schema import Action, Call, Turn
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import Wrapper, is_over
from wm_plugin.registry import import_object
from wm_plugin.rewards.rule_places import regex
from wm_plugin.runtime import background
from wm_plugin.untrusted import encodable
from wm_plugin.worlds.agents.controls import CONTROLS, Control
from wm_plugin.worlds.agents.policies import NoAnswer, ServerPolicy
from wm_plugin.worlds.wrappers.simulated_dialogue import Dialogue, LostError, Waiting
from wm_plugin.worlds.wrappers.simulated_episode import Simulation
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig
from wm_plugin.worlds.wrappers.verify_config import AgentServer, VerifyConfig

logger = logging.getLogger(__name__)

Verdict = Literal["passed", "refused", "unanswered", "spent"]
KEY = "verify"  # in an observation's `data`
_COUNTS = ("checks", "refused", "spent", "unanswered", "questions")


@dataclass
class _Turn:
    """A turn of the agent. `waiting` has the calls that come to the environment and have not come yet, `told` what the agent read
    of those that came, `data` what is noted with their observations; `asked` the checks that run."""

    action: Action
    waiting: Waiting
    told: dict[int, str] = field(default_factory=dict)
    data: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    irreversible: dict[int, bool] = field(default_factory=dict)
    asked: "dict[int, Future[float | None]]" = field(default_factory=dict)


class Checks(Dialogue):
    """Of one episode at a time.

    Args:
        environment: the class under the verified one.
        world: an instance of it.
        names: of the tools that are irreversible by the config or the world.

    Attributes:
        data: what the last call's observation is to say of its check; empty if there was none.
    """

    def __init__(self, environment: type, world: Wrapper, config: VerifyConfig, names: frozenset[str]) -> None:
        asked = config.world_model or SimulationConfig(
            model=str(config.control)
        )  # a control is asked nothing by its text
        super().__init__(environment, world, asked, "verify.world_model")
        self._verify, self._names = config, names
        self._control = None if config.control is None else CONTROLS[config.control](environment)
        self._row: dict[str, Any] = {}
        self._when = None if config.when is None else import_object(config.when, field="verify.when")
        self._clear()

    def _clear(self) -> None:
        self._forget()
        self._counts: Counter[str] = Counter()
        self._turn: _Turn | None = None
        self._number: int | None = None  # of the call that runs
        self._seen: tuple[Turn, ...] = ()  # the agent's turns, refusals included
        self.data: dict[str, Any] = {}

    def begin(self, prompt: Any, columns: Mapping[str, Any], first: Any, control: Any = None) -> None:
        """Begin the episode of a row.

        Raises:
            UserError: the world model cannot be asked, or the prompt does not fit.
        """
        self.settle()
        self._cancel()
        self._clear()
        self._open(prompt, columns, first, control)
        self._row = {**columns, **({} if prompt is None else {"prompt": prompt})}

    def _connect(self) -> None:
        if self._verify.control is None:
            super()._connect()

    def settle(self) -> None:
        """Raise what went wrong with all questions: the server refuses the key, the address or the model."""
        if self.problem is not None:
            raise self.problem

    @property
    def figures(self) -> dict[str, int]:
        """Counts of the episode: `verify/checks`; `verify/refused`, calls that did not go out, for any reason; `verify/spent`,
        calls that came when the budget was used up; `verify/unanswered`, checks without an answer; `verify/questions` to the
        world model, those included whose answer was kept."""
        counts = self._counts | Counter(questions=self.asked["requests"] + self.asked["cached"])
        return {f"{KEY}/{name}": counts[name] for name in _COUNTS}

    # -- turns ------------------------------------------------------------------------------------------------------------

    def note(self, action: Action, results: Sequence[str] = ()) -> None:
        """A turn whose calls run next. Its first irreversible call is asked about now, so that episodes that play together ask
        together.

        Args:
            results: what the agent observed after the calls of the turn before.
        """
        self._close(results)
        reached = [n for n, call in enumerate(action.calls) if self._reaches(call)]
        self._turn = turn = _Turn(action, Waiting(action, reached))
        if is_over(self.world):
            return
        first = next((n for n in reached if self._is_irreversible(turn, n)), None)
        if first is not None and self._counts["checks"] < self._verify.budget:
            self._ask(turn, first)

    def before(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """What the agent reads in the place of a call's result; None if the call goes out."""
        self.data = {}
        number = self._find(name, arguments)
        if number is None:  # of no turn that was noted: a turn of its own
            self.note(Action(calls=(Call(name=name, arguments=dict(arguments)),)))
            number = self._find(name, arguments)
        turn, self._number = self._turn, number
        if turn is None or number is None:
            return None
        turn.waiting.take(number)
        if is_over(self.world) or not self._is_irreversible(turn, number):
            return None
        verdict = self._verdict(turn, number)
        refused = verdict == "refused" or (verdict != "passed" and getattr(self._verify, verdict) == "refuse")
        self._counts["refused"] += refused
        self.data = {KEY: {"verdict": verdict, "refused": refused}}
        if not refused:
            return None
        turn.refused.add(number)
        turn.told[number] = self._verify.refusal
        return self._verify.refusal

    def after(self, text: str, data: Mapping[str, Any]) -> None:
        """The world's result of the call that went out, and what its control notes with it."""
        if self._turn is not None and self._number is not None:
            self._turn.told[self._number], self._turn.data[self._number] = text, data

    async def ready(self) -> None:
        """Wait for the check that runs. It may fail."""
        if self._turn is not None and self._turn.asked:
            done, _ = await asyncio.wait([asyncio.wrap_future(one) for one in self._turn.asked.values()])
            for one in done:
                one.cancelled() or one.exception()  # `_verdict` has it from the future itself

    def _verdict(self, turn: _Turn, number: int) -> Verdict:
        if self._counts["checks"] >= self._verify.budget:
            self._counts["spent"] += 1
            return "spent"
        self._counts["checks"] += 1
        if number not in turn.asked:
            self._ask(turn, number)
        try:
            share = turn.asked[number].result()
        except Exception as error:  # hosts would make a result of it
            self.problem, share = error, None
        if share is None:
            self._counts["unanswered"] += 1
            return "unanswered"
        return "passed" if share >= self._verify.threshold else "refused"

    def _close(self, results: Sequence[str]) -> None:
        """Put the turn into both histories: what the agent read, and what happened in the world."""
        self._cancel()
        turn, self._turn = self._turn, None
        if turn is None:
            return
        calls = turn.action.calls
        told = [*results, *[""] * len(calls)][: len(calls)]
        told = [turn.told.get(n, text) for n, text in enumerate(told)]
        data = [turn.data.get(n, {}) for n in range(len(calls))]
        self._seen += (Turn(action=turn.action, observations=self._simulation.observations(turn.action, told, data)),)
        kept = [n for n in range(len(calls)) if n not in turn.refused]
        if kept or not calls:
            action = turn.action.model_copy(update={"calls": tuple(calls[n] for n in kept)})
            texts, noted = [told[n] for n in kept], [data[n] for n in kept]
            self._simulation.take(action, self._simulation.observations(action, texts, noted), False)

    def _cancel(self) -> None:
        for asked in {} if self._turn is None else self._turn.asked.values():
            asked.cancel()  # of calls that have not come; to others nothing happens

    def _find(self, name: str, arguments: Mapping[str, Any]) -> int | None:
        """Which call of the turn this is; None if it is of none."""
        return None if self._turn is None else self._turn.waiting.find(name, arguments)

    def _is_irreversible(self, turn: _Turn, number: int) -> bool:
        if number not in turn.irreversible:
            turn.irreversible[number] = self._is_checked(turn.action.calls[number])
        return turn.irreversible[number]

    def _is_checked(self, call: Call) -> bool:
        if call.name in self._names:
            return True
        try:
            if self._verify.pattern is not None and regex(self._verify.pattern).search(encodable(write_call(call))):
                return True
            return self._when is not None and bool(self._when(call, self._simulation.trajectory))
        except UserError:
            raise
        except Exception as error:  # the call is a policy's
            logger.warning(
                "verify: a call is checked, since what says so failed (%s: %.200s)", type(error).__name__, error
            )
            return True

    # -- continuations ------------------------------------------------------------------------------------------------------

    def _ask(self, turn: _Turn, number: int) -> None:
        """Start the check of a call."""
        before = [n for n in range(number + 1) if n not in turn.refused]
        action = turn.action.model_copy(update={"calls": tuple(turn.action.calls[n] for n in before)})
        if self._control is not None:
            turn.asked[number] = self._told(self._control, action)
            return
        start = copy.copy(self._simulation), self._seen, self.asked, self._waited
        turn.asked[number] = background.start(self._check(action, *start))

    def _told(self, control: Control, action: Action) -> "Future[float | None]":
        """What a control says of an action; it says it at once."""
        told: Future[float | None] = Future()
        state = self._simulation.trajectory.model_copy(update={"metadata": {"reset": self._row}})
        try:
            verdict = control.succeeds(state, action, f"{self._counts['checks']}/{len(self._seen)}")
            told.set_result(None if verdict is None else float(verdict))
        except UserError as error:
            told.set_exception(error)
        except Exception:  # of the environment
            told.set_result(None)
        return told

    async def _check(
        self, action: Action, start: Simulation, seen: tuple[Turn, ...], figures: Counter[str], waited: list[float]
    ) -> float | None:
        """The share of continuations that succeed, of those with an answer; None: there is none."""
        clocks = [list(waited) for _ in range(self._verify.samples)]  # they wait at the same time
        continuations = (
            self._continue(action, copy.copy(start), seen, figures, clock, n) for n, clock in enumerate(clocks)
        )
        try:
            found = [one for one in await asyncio.gather(*continuations) if one is not None]
        finally:
            waited[:] = max(clocks)
        return sum(found) / len(found) if found else None

    async def _continue(
        self,
        action: Action,
        branch: Simulation,
        seen: tuple[Turn, ...],
        figures: Counter[str],
        waited: list[float],
        sample: int,
    ) -> bool | None:
        """Whether a continuation succeeds within `depth` turns; None: it has no answer."""
        for depth in range(self._verify.depth):
            if depth:
                played = await self._play(branch, seen, sample)
                if played is None or not played.calls:
                    return None if played is None else False
                action = played
            question = self._question(action, simulation=branch)
            try:
                reading = await self._predict(action, question, figures, waited, sample)
            except LostError:
                return None
            if reading.success:
                return True
            if not reading.texts or reading.texts[-1].rstrip().endswith(self.config.closings):
                return False
            observations = branch.observations(action, reading.texts)
            branch.take(action, observations, False)
            seen += (Turn(action=action, observations=observations),)
        return False

    async def _play(self, branch: Simulation, seen: tuple[Turn, ...], sample: int) -> Action | None:
        """The agent's next action in a continuation, which sees what it would see; None: its server has no answer."""
        assert self._verify.agent is not None
        policy = ServerPolicy(_server(self._verify.agent, os.getpid()), f"{self.config.seed}/{sample}")
        try:
            return await policy.act(branch.trajectory.model_copy(update={"turns": seen}))
        except NoAnswer:
            return None


@lru_cache(maxsize=8)
def _server(agent: AgentServer, process: int) -> Server:  # noqa: ARG001 - a fork has its own
    return Server(agent)
