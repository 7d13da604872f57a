"""A check before irreversible actions (Word2World, section 7.1): a world model plays what would follow, and the action goes out
if it predicts success; else the agent reads a refusal and goes on.

Both hosts take the class, and so do our own rollouts:

    environment_factory=verified(ShopEnvironment, {"budget": 4, "world_model": {"url": ..., "model": ...}})   # TRL
    verify: {budget: 4, world_model: {url: http://localhost:8000/v1, model: world}}                        # a file for wm train
    'wm.verify={budget: 4, world_model: {url: "http://localhost:8000/v1", model: world}}'                  # verl
    wm env rollout shop --policy http://localhost:8001/v1 ... --verify verify.yaml

The paper's: WebShop's checkout is checked, success is what the world model predicts of it, and the budget is 0, 2, 4, 10 or 50
checks of an episode. Ours: what becomes of an action after the last check (the paper does not say), the refusal's text, what is
checked in other worlds, longer and several continuations, and that the world model is not shown refusals.

A refused call does not reach the world, which neither moves on nor counts an action; for the host it is a turn like any other.
The world model is asked as in a simulated world, with the dialogue of its training. Its observations are the real ones, and its
last message is the agent's turn up to the call that is checked. Calls that were refused, and what the agent read of them, are
left out: they never happened in the world, and no world model was trained on refusals. The agent keeps them in its context.
"""

import asyncio
import copy
import inspect
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
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting.world import Start, Wrapper, by_name, dress, is_over, tool_names
from wm_plugin.registry import import_object
from wm_plugin.rewards.rule_places import regex
from wm_plugin.untrusted import encodable
from wm_plugin.worlds.agents.controls import CONTROLS, Control
from wm_plugin.worlds.agents.policies import NoAnswer, ServerPolicy
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.control import control_of
from wm_plugin.worlds.wrappers.simulated import check_awaits_nothing, is_simulated
from wm_plugin.worlds.wrappers.simulated_dialogue import Dialogue, LostError, PlayedTurn
from wm_plugin.worlds.wrappers.simulated_episode import Simulation
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig
from wm_plugin.worlds.wrappers.verify_config import AgentServer, VerifyConfig

logger = logging.getLogger(__name__)

Verdict = Literal["passed", "refused", "unanswered", "spent"]
KEY = "verify"  # in an observation's `data`
_COUNTS = ("checks", "refused", "spent", "unanswered", "questions")


def verified(environment: type, config: VerifyConfig | Mapping[str, Any]) -> type:
    """Return the class of `environment` whose irreversible actions are checked. With a budget of 0 it is `environment` itself.

    `metrics` has the counts of `Verified.figures`, too.

    Raises:
        UserError: the config does not fit, or names a tool that the environment does not have; nothing says which actions are
            irreversible, or something says it of what is no tool; the environment is a simulated one, or a method of it is
            asynchronous.
    """
    config = VerifyConfig.read(config, "verify")
    if not config.budget:
        return environment
    name, known = environment.__name__, tool_names(environment)
    if is_simulated(environment):
        raise UserError(
            f"verify: {name} is simulated, and a world model plays it already; actions are checked in the real world, so leave "
            "simulation or verify out (worlds: says which of several environments each is for)"
        )
    check_awaits_nothing(environment, "verify")
    for tool in config.tools or ():
        if tool not in known:
            raise UserError(f"verify.tools: {name} has no tool {tool!r}{nearest(tool, known)}")
    declared = getattr(environment, "irreversible", ()) if config.asks_world else ()
    if config.asks_world and not declared:
        raise UserError(f"verify: {name} says of no tool that it is irreversible; write tools, pattern or when")
    for tool in declared:
        if tool not in known:  # it would never be checked
            raise UserError(
                f"verify: {name}.irreversible is {shown(declared)}, and {shown(tool)} is no tool; write a tuple of names"
            )
    return dress(environment, Verified, config)


@dataclass(frozen=True)
class VerifiedWorld(World):
    """A world whose irreversible actions are checked."""

    config: VerifyConfig = field(kw_only=True)

    @property
    def environment(self) -> type:
        """The class, whose irreversible actions are checked; what it observes may be under control."""
        return verified(super().environment, self.config)


class _Turn(PlayedTurn):
    """A turn of the agent. `data` is noted with the observations; `checks` and `irreversible` are by the numbers of calls."""

    def __init__(self, action: Action, reached: Sequence[int]) -> None:
        super().__init__(action, reached)
        self.data: dict[int, Mapping[str, Any]] = {}
        self.refused: set[int] = set()
        self.irreversible: dict[int, bool] = {}
        self.checks: dict[int, Future[float | None]] = {}


class Verified(Wrapper, Dialogue):
    """A world whose irreversible actions a world model checks.

    Attributes:
        data: what the last call's observation is to say of its check; empty if there was none.
    """

    is_turn_aware = True
    _turn: _Turn | None

    def __init__(self, world: Wrapper, options: VerifyConfig, environment: type) -> None:
        Wrapper.__init__(self, world, options, environment)
        # a control is asked nothing by its text
        config = options.world_model or SimulationConfig(model=str(options.control))
        Dialogue.__init__(self, environment, world, config, "verify.world_model")
        declared = getattr(environment, "irreversible", ()) if options.asks_world else options.tools or ()
        when = getattr(environment, "irreversible_when", None) if options.asks_world else options.when
        self._names = frozenset(() if options.asks_world and when else declared)
        self._stand_in = None if options.control is None else CONTROLS[options.control](environment)
        self._when = None if when is None else import_object(when, field="verify.when")
        self._columns = inspect.signature(environment.reset)  # type: ignore[attr-defined]
        self._clear()

    def _clear(self) -> None:
        self._forget()
        self._turn = None
        self._row: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        self._number: int | None = None  # of the call that runs
        self._seen: tuple[Turn, ...] = ()  # the agent's turns, refusals included
        self.data: dict[str, Any] = {}

    def reset(self, columns: dict[str, Any], start: Start) -> Any:
        first = self.world.reset(columns, start)
        prompt, row = columns.get("prompt", start.prompt), by_name(self._columns.bind(None, **columns))
        self._settle()
        self._cancel()
        self._clear()
        self._open(prompt, row, first, control_of(self))
        self._row = {**row, **({} if prompt is None else {"prompt": prompt})}
        return first

    def _connect(self) -> None:
        if self._stand_in is None:
            super()._connect()

    def _settle(self) -> None:
        """Raise what went wrong with all questions: the server refuses the key, the address or the model."""
        if self.problem is not None:
            raise self.problem

    @classmethod
    def finalize(cls, episodes: Sequence["Verified"]) -> None:
        for one in episodes:
            one._settle()

    @property
    def figures(self) -> dict[str, int]:
        """Counts of the episode: `verify/checks`; `verify/refused`, calls that did not go out, for any reason; `verify/spent`,
        calls that came when the budget was used up; `verify/unanswered`, checks without an answer; `verify/questions` to the
        world model, those included whose answer was kept."""
        counts = self._counts | Counter(questions=self.asked["requests"] + self.asked["cached"])
        return {f"{KEY}/{name}": counts[name] for name in _COUNTS}

    @property
    def metrics(self) -> dict[str, float]:
        """The world's, and the counts of the checks."""
        return {**(getattr(self.world, "metrics", None) or {}), **self.figures}

    def notes(self, failed: bool) -> dict[str, Any]:
        own, self.data = self.data, {}
        return {**self.world.notes(failed), **own}

    def about(self) -> dict[str, Any]:
        return {**self.world.about(), KEY: self.options.as_mapping()}

    # -- turns ------------------------------------------------------------------------------------------------------------

    def turn(self, action: Action, results: Sequence[str]) -> None:
        self.world.turn(action, results)
        self._note(action, results)

    def _note(self, action: Action, results: Sequence[str] = ()) -> None:
        """Begin a turn. Its first irreversible call is asked about now, so that episodes that play together ask together."""
        self._close(results)
        self._turn = turn = _Turn(action, self._reached(action))
        if is_over(self.world):
            return
        first = next((number for number in turn.reached if self._is_irreversible(turn, number)), None)
        if first is not None and self._counts["checks"] < self.options.budget:
            self._ask(turn, first)

    async def ready(self) -> None:
        await Dialogue.ready(self)

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        if (refusal := self._check(tool, arguments)) is not None:
            return refusal
        result = self.world.call(tool, arguments)
        if self._turn is not None and self._number is not None:
            control = control_of(self)
            self._turn.told[self._number] = "" if result is None else str(result)
            self._turn.data[self._number] = {} if control is None else control.data
        return result

    def _check(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return what the agent reads instead of a call's result; None if the call goes out."""
        self.data = {}
        number = self._find(name, arguments)
        if number is None:  # of no turn that was noted: a turn of its own
            self._note(Action(calls=(Call(name=name, arguments=dict(arguments)),)))
            number = self._find(name, arguments)
        turn, self._number = self._turn, number
        if turn is None or number is None:
            return None
        turn.take(number)
        if is_over(self.world) or not self._is_irreversible(turn, number):
            return None
        verdict = self._verdict(turn, number)
        refused = verdict == "refused" or (verdict != "passed" and getattr(self.options, verdict) == "refuse")
        self._counts["refused"] += refused
        self.data = {KEY: {"verdict": verdict, "refused": refused}}
        if not refused:
            return None
        turn.refused.add(number)
        refusal: str = self.options.refusal
        turn.told[number] = refusal
        return refusal

    def _verdict(self, turn: _Turn, number: int) -> Verdict:
        if self._counts["checks"] >= self.options.budget:
            self._counts["spent"] += 1
            return "spent"
        self._counts["checks"] += 1
        if number not in turn.checks:
            self._ask(turn, number)
        try:
            share = turn.checks[number].result()
        except Exception as error:  # hosts would make a result of it
            self.problem, share = error, None
        if share is None:
            self._counts["unanswered"] += 1
            return "unanswered"
        return "passed" if share >= self.options.threshold else "refused"

    def _close(self, results: Sequence[str]) -> None:
        """Put the turn into both histories: what the agent read, and what happened in the world."""
        self._cancel()
        turn, self._turn = self._turn, None
        if turn is None:
            return
        calls, told = turn.action.calls, turn.texts(results)
        data = [turn.data.get(n, {}) for n in range(len(calls))]
        self._seen += (Turn(action=turn.action, observations=self._simulation.observations(turn.action, told, data)),)
        kept = [n for n in range(len(calls)) if n not in turn.refused]
        if kept or not calls:
            action = turn.action.model_copy(update={"calls": tuple(calls[n] for n in kept)})
            texts, noted = [told[n] for n in kept], [data[n] for n in kept]
            self._simulation.take(action, self._simulation.observations(action, texts, noted), False)

    def _is_irreversible(self, turn: _Turn, number: int) -> bool:
        if number not in turn.irreversible:
            turn.irreversible[number] = self._is_checked(turn.action.calls[number])
        return turn.irreversible[number]

    def _is_checked(self, call: Call) -> bool:
        if call.name in self._names:
            return True
        pattern = self.options.pattern
        try:
            if pattern is not None and regex(pattern).search(encodable(write_call(call))):
                return True
            return self._when is not None and bool(self._when(call, self._simulation.trajectory))
        except UserError:
            raise
        except Exception as error:  # the call is a policy's
            name = type(error).__name__
            logger.warning("verify: a call is checked, since what says so failed (%s: %.200s)", name, error)
            return True

    # -- continuations ------------------------------------------------------------------------------------------------------

    def _ask(self, turn: _Turn, number: int) -> None:
        """Start the check of a call."""
        before = [n for n in range(number + 1) if n not in turn.refused]
        action = turn.action.model_copy(update={"calls": tuple(turn.action.calls[n] for n in before)})
        if self._stand_in is not None:
            turn.checks[number] = self._ask_stand_in(self._stand_in, action)
            return
        start = copy.copy(self._simulation), self._seen, self.asked, self._waited
        turn.checks[number] = self._start(turn, self._share(action, *start))

    def _ask_stand_in(self, control: Control, action: Action) -> "Future[float | None]":
        """Return what a control says of an action; it says it at once."""
        told: Future[float | None] = Future()
        state = self._simulation.trajectory.model_copy(update={"metadata": {"reset": self._row}})
        try:
            verdict = control(state, action, f"{self._counts['checks']}/{len(self._seen)}")
            told.set_result(None if verdict is None else float(verdict))
        except UserError as error:
            told.set_exception(error)
        except Exception:  # of the environment
            told.set_result(None)
        return told

    async def _share(
        self, action: Action, start: Simulation, seen: tuple[Turn, ...], figures: Counter[str], waited: list[float]
    ) -> float | None:
        """Return the share of continuations that succeed, of those with an answer; None: there is none."""
        clocks = [list(waited) for _ in range(self.options.samples)]  # they wait at the same time
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
        """Return whether a continuation succeeds within `depth` turns; None: it has no answer."""
        for depth in range(self.options.depth):
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
        """Return the agent's next action in a continuation, which sees what it would see; None: its server has no answer."""
        policy = ServerPolicy(_server(self.options.agent, os.getpid()), f"{self.config.seed}/{sample}")
        try:
            return await policy.act(branch.trajectory.model_copy(update={"turns": seen}))
        except NoAnswer:
            return None


@lru_cache(maxsize=8)
def _server(agent: AgentServer, process: int) -> Server:  # noqa: ARG001 - a fork has its own
    return Server(agent)
