"""A world model in the place of a world: the same class to a host, with observations that are predicted.

Both hosts take the class, so one serves both (Sim RL of Qwen-AgentWorld; Word2World's world models as simulators):

    environment_factory=simulated(GridEnvironment, {"url": "http://localhost:8000/v1", "model": "world"}) # TRL
    simulation: {url: http://localhost:8000/v1, model: world}                                             # a file for wm train
    wm.environment=grid 'wm.simulation={url: http://localhost:8000/v1, model: world}'                         # verl

The real world gives the first observation and, to the world model alone, the hidden state. After that the world model answers
every call: the world's own check of actions does not run. What a world model says in the training, a request says here, byte for
byte (`Simulation`), except that control tokens of chat templates are made harmless (`harmless`).

An episode without an answer is lost, like one of a world whose process died: it is over, without success, and `metrics["lost"]`
is 1. What decides all other episodes is `success` of the config (`simulated_success`).
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import action_of
from wm_plugin.data.schema import Action, Call
from wm_plugin.data.thoughts import split
from wm_plugin.errors import UserError
from wm_plugin.untrusted import encodable
from wm_plugin.worlds.kit.protocol import by_name, check_world, not_a_tool, tool_names, world_context_of
from wm_plugin.worlds.scenarios import staged
from wm_plugin.worlds.wrappers.simulated_session import Session
from wm_plugin.worlds.wrappers.simulated_success import judge
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig
from wm_plugin.worlds.wrappers.tags import takes_tags

logger = logging.getLogger(__name__)

_EVALUATES: ContextVar[bool] = ContextVar("wm_evaluates", default=False)
_FIGURES = ("requests", "cached", "repairs", "tokens", "harmless")  # as `simulation/<name>`


def placed(environment: type, config: SimulationConfig | None, name: str | None = None) -> type:
    """The class, simulated where a config says so of the environment of this name.

    Raises:
        UserError: as from `simulated`; or it is not simulated, and has no world behind it.
    """
    if config is not None and (name is None or config.of(name)):
        return simulated(environment, config)
    check_world(environment)
    return environment


def simulated(environment: type, config: SimulationConfig | Mapping[str, Any]) -> type:
    """A subclass of `environment` of the same name, tools and columns, whose observations are a world model's.

    Its tools are plain methods, whatever the world's are. `metrics` has `actions`, `effective` and `invalid` by what is observed
    (see `counting`), `lost`, and under `simulation/` what was asked.

    Raises:
        UserError: the config does not fit, or a method of the world is asynchronous.
    """
    if not isinstance(config, SimulationConfig):
        config = SimulationConfig.from_mapping(config)
    for name in ("reset", "get_reward", *tool_names(environment)):
        if inspect.iscoroutinefunction(getattr(environment, name, None)):
            raise UserError(f"simulation: {environment.__name__}.{name} is asynchronous; write a plain method")
    if hasattr(environment, "_wm_file"):  # there is no real world to evaluate in
        config = config.replace(evaluation="simulated")
    if not hasattr(environment, "answer_tool"):
        if config.success == "answer":
            raise UserError(
                f"simulation.success is answer, and {environment.__name__} has no tool whose argument is the answer "
                "(`answer_tool`); write predicted, verifier or rule"
            )
    elif config.success == "predicted" and not config.scenarios:
        _warn_of_answers(environment.__name__)
    return _simulated(staged(environment) if config.scenarios else environment, config)


@lru_cache
def _warn_of_answers(name: str) -> None:
    logger.warning(
        "simulation: %s checks an answer itself, and with success: predicted the world model decides, whatever the answer is; "
        "success: answer has the world check it. wm/env/simulation/answer is what it would give",
        name,
    )


def is_simulated(environment: Any) -> bool:
    """Whether an environment, or its class, is one of `simulated`."""
    kind = environment if isinstance(environment, type) else type(environment)
    return bool(getattr(kind, "_wm_simulated", False))


def hears_turns(environment: Any) -> bool:
    """Whether an environment, or its class, is to be told of turns before their calls run: one of `simulated`, or one of
    `agents.verify`.

    Such a class has `_wm_hear(action, results)`, `_wm_wait()`, `_wm_prompt` and `_wm_only_tool`, and if it is not simulated
    `_wm_settle()`.
    """
    kind = environment if isinstance(environment, type) else type(environment)
    return bool(getattr(kind, "_wm_hears_turns", False))


@contextmanager
def evaluation() -> Iterator[None]:
    """Around `reset`: an episode of an evaluation, which is the real world's if the config says so."""
    token = _EVALUATES.set(True)
    try:
        yield
    finally:
        _EVALUATES.reset(token)


def note_prompt(environment: Any, prompt: Any) -> None:
    """Tell an environment that hears turns the prompt of its next episode, before a `reset` that has it not among its columns."""
    if hears_turns(environment):
        environment._wm_prompt = prompt


def note_action(environment: Any, action: Action, results: Sequence[str] = (), *, executed: int | None = None) -> None:
    """Tell an environment that hears turns of one before its calls run. It asks about it at once, and does not wait.

    Args:
        action: a text, calls, or both. Without a call, it is the agent's answer.
        results: what the agent observed after the calls of the turn before. Those that the host answered itself are used.
        executed: how many of the calls the host runs; None: all.
    """
    if not hears_turns(environment):
        return
    calls = action.calls if executed is None else action.calls[:executed]
    text = action.text
    if takes_tags(environment):  # in the answer's text, which no world model of tools was shown
        name, parameter = environment._wm_only_tool
        calls = tuple(Call(name=name, arguments={parameter: _only(call.arguments)}) for call in calls)
        text = "" if calls else text
    calls = tuple(call.model_copy(update={"id": None}) for call in calls)
    environment._wm_hear(action.model_copy(update={"text": text, "calls": calls}), results)


def note_turn(
    environment: Any, message: Mapping[str, Any], *, results: Sequence[str] = (), executed: int | None = None
) -> None:
    """`note_action` of an assistant's message in OpenAI's form. It never raises."""
    if not hears_turns(environment):
        return
    try:
        action = action_of(encodable(dict(message)))
    except (RowError, ValueError):  # calls that are none
        action = Action(text=split(str(encodable(str(message.get("content") or ""))))[1])
    note_action(environment, action, results, executed=executed)


async def ready(environment: Any) -> None:
    """Wait, without a thread, until the calls of the turn that was noted return at once. It never raises."""
    if hears_turns(environment):
        await environment._wm_wait()


def settle(environments: Sequence[Any]) -> None:
    """Decide the episodes of environments that are over for their hosts, where a verifier or a rule does: in one call of each
    verifier. To be called before figures and rewards are read; it waits."""
    judge([one._wm_session for one in environments if is_simulated(one) and not one._wm_is_real])
    for one in environments:
        if hears_turns(one) and not is_simulated(one):
            one._wm_settle()


def only_tool(environment: type) -> tuple[str, str]:
    """The tool of a world in the protocol of tags, and its parameter."""
    (name, *_) = tool_names(environment)
    return name, list(inspect.signature(getattr(environment, name)).parameters)[1]


def _only(arguments: Any) -> Any:
    return next(iter(arguments.values()), "") if isinstance(arguments, Mapping) else arguments


@lru_cache  # the same class each time a config is read
def _simulated(environment: Any, config: SimulationConfig) -> type:
    names = tool_names(environment)

    class Simulated(environment):  # type: ignore[misc]
        _wm_simulated = _wm_hears_turns = True
        _wm_evaluates_for_real = config.evaluation == "real"

        def __init__(self) -> None:  # the world's own is called by the session, for an instance of the world itself
            self._wm_session = Session(environment, config)
            self._wm_prompt: Any = None
            self._wm_is_real = False

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_wm_"):
                raise AttributeError(name)
            return getattr(self._wm_session.world, name)

        def reset(self, *args: Any, **columns: Any) -> Any:
            self._wm_is_real = config.evaluation == "real" and _EVALUATES.get()
            prompt, self._wm_prompt = columns.get("prompt", self._wm_prompt), None
            first = self._wm_session.world.reset(*args, **columns)
            if not self._wm_is_real:
                # a subclass that is under control has made the episode's
                control = getattr(self, "_wm_control", None)
                self._wm_session.begin(prompt, by_name(signature.bind(None, *args, **columns)), first, control)
            return first

        def _wm_hear(self, action: Action, results: Sequence[str]) -> None:
            if not self._wm_is_real:
                self._wm_session.note(action, results)

        async def _wm_wait(self) -> None:
            await self._wm_session.ready()

        @property
        def over(self) -> bool:
            return bool(getattr(self._wm_world, "over", False)) if self._wm_is_real else self._wm_session.over

        @property
        def success(self) -> bool:
            return bool(getattr(self._wm_world, "success", False)) if self._wm_is_real else self._wm_session.success

        @property
        def turns(self) -> int:
            return int(getattr(self._wm_world, "turns", 0)) if self._wm_is_real else self._wm_session.turns

        @property
        def max_turns(self) -> int | None:
            return getattr(self._wm_world, "max_turns", None) if self._wm_is_real else self._wm_session.max_turns

        @property
        def metrics(self) -> dict[str, float]:
            session = self._wm_session
            if self._wm_is_real:
                return dict(getattr(session.world, "metrics", None) or {})
            counts, graded = session.counts, session.graded
            return {
                **graded,
                "actions": counts.actions,
                "effective": counts.effective,
                "invalid": counts.invalid,
                "lost": session.lost,
                **{f"simulation/{name}": session.asked[name] for name in _FIGURES},
            }

        @property
        def _wm_world(self) -> Any:
            return self._wm_session.world

        @property
        def _wm_only_tool(self) -> tuple[str, str]:
            return only_tool(environment)

    def get_reward(self: Any) -> Any:
        if self._wm_is_real:
            return self._wm_world.get_reward()
        settle([self])
        return self._wm_session.reward

    def world_context(self: Any) -> str:
        return world_context_of(self._wm_world)

    signature = inspect.signature(environment.reset)
    Simulated.reset.__signature__ = signature  # type: ignore[attr-defined]  # its columns
    # A class without a reward leaves it to the trainer's, unless the config asks for a verifier or a rule.
    if hasattr(environment, "get_reward") or config.success != "predicted":
        Simulated.get_reward = get_reward
    if hasattr(environment, "world_context"):
        Simulated.world_context = not_a_tool(world_context)
    for name in names:
        setattr(Simulated, name, _tool(getattr(environment, name)))
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Simulated, name, getattr(environment, name))
    return Simulated


def _tool(method: Callable[..., Any]) -> Callable[..., Any]:
    """A tool as the world has it, which asks the session."""
    signature = inspect.signature(method)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._wm_is_real:
            return method(self._wm_world, *args, **kwargs)
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            return method(self._wm_world, *args, **kwargs)  # which raises what the world would
        return self._wm_session.call(method.__name__, by_name(bound))

    return functools.wraps(method)(call)
