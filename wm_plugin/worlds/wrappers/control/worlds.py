"""A world under control, for hosts: `controlled(World, config)` is the same class, and what its episodes show is perturbed.

    environment_factory=controlled(SqlEnvironment, {"perturbations": [{"name": "error", "rate": 0.1}]})     # TRL
    control: {perturbations: [{name: error, rate: 0.1}]}                                                  # a file for wm train
    'wm.control={perturbations: [{name: error, rate: 0.1}]}'                                              # verl

A real world's answers are perturbed by rule. A call that fails does not reach the world, which neither moves on nor counts a
turn, and so it can be tried again; all other calls are carried out as ever. A simulated world (`_wm_simulated`) is told instead:
it asks `control_of` for the instructions.
"""

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.protocol import is_over, tool_names
from wm_plugin.worlds.wrappers.control.config import ControlConfig
from wm_plugin.worlds.wrappers.control.episode import ControlEpisode, Plan

_CONFIG, _EPISODE = "_wm_control_config", "_wm_control"
_phase: ContextVar[tuple[bool, float]] = ContextVar("wm_control_phase", default=(True, 1.0))
_inside: ContextVar[bool] = ContextVar("wm_control_inside", default=False)  # a tool may call another one of its world


def config_of(environment: Any) -> ControlConfig | None:
    """The control of an environment or of its class; None if it has none."""
    config: ControlConfig | None = getattr(environment, _CONFIG, None)
    return config


def control_of(environment: Any) -> ControlEpisode | None:
    """The control of the episode that runs; None if its class has none, or the episode is left as it is."""
    control: ControlEpisode | None = getattr(environment, _EPISODE, None)
    return control


def begin_turn(environment: Any) -> None:
    """Tell a real world's control that the policy's next turn begins. A simulated world does so itself."""
    control = control_of(environment)
    if control is not None and not getattr(environment, "_wm_simulated", False):
        control.begin_turn()


@contextmanager
def phase(*, training: bool = True, strength: float = 1.0) -> Iterator[None]:
    """What hosts say of the episodes that are reset within: whether they are of a training, and a curriculum's factor of all
    rates. Outside, every episode is under control, with a factor of 1."""
    token = _phase.set((training, strength))
    try:
        yield
    finally:
        _phase.reset(token)


def controlled(environment: type, config: ControlConfig | Mapping[str, Any]) -> type:
    """A subclass of `environment` whose episodes are perturbed as `config` says. Everything else, its name included, is the
    environment's. The figures of an episode (`protocol.report`) have the counts `control/calls` and `control/<name>`, too.

    Raises:
        UserError: the config does not fit, or names a tool that the environment does not have; or evaluations are to be
            perturbed that a simulated world leaves to the real one.
    """
    made = ControlConfig.from_mapping(config)
    made.check_tools(tool_names(environment), environment.__name__)
    if made.evaluation and getattr(environment, "_wm_evaluates_for_real", False):
        raise UserError(
            "control.evaluation is true, and evaluations play in the real world beside this simulation, which is not perturbed; "
            "write simulation.evaluation: simulated, or leave control.evaluation out"
        )
    return _controlled(environment, made)


@lru_cache  # the same class each time a config is read
def _controlled(environment: Any, config: ControlConfig) -> type:
    irreversible = tuple(getattr(environment, "irreversible", ()))

    def begin(self: Any, arguments: tuple[Any, ...], columns: Mapping[str, Any]) -> None:
        training, strength = _phase.get()
        control = None
        if training or config.evaluation:
            row = _columns(environment, arguments, columns)
            config.check_columns(row, environment.__name__)
            control = ControlEpisode(config, _task(row), columns=row, strength=strength, irreversible=irreversible)
        setattr(self, _EPISODE, control)

    class Controlled(environment):  # type: ignore[misc]
        def reset(self, *args: Any, **columns: Any) -> Any:
            begin(self, args, columns)
            return super().reset(*args, **columns)  # awaited by the host where it is a coroutine

    if inspect.iscoroutinefunction(environment.reset):
        plain: Any = Controlled.reset

        async def reset(self: Any, *args: Any, **columns: Any) -> Any:
            return await plain(self, *args, **columns)

        Controlled.reset = reset  # type: ignore[method-assign]
    Controlled.reset.__signature__ = inspect.signature(environment.reset)  # type: ignore[attr-defined]  # its columns
    if not getattr(environment, "_wm_simulated", False):
        for name in tool_names(environment):
            setattr(Controlled, name, _perturbed(name, getattr(environment, name)))
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Controlled, name, getattr(environment, name))
    for name, value in ((_CONFIG, config), (_EPISODE, None)):
        setattr(Controlled, name, value)
    return Controlled


class _Begun(NamedTuple):
    """A call under control. `answer` is there if it does not reach the world."""

    control: ControlEpisode
    plan: Plan
    arguments: dict[str, Any]
    answer: str | None


def _perturbed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A tool whose answers are perturbed by rule."""
    signature = inspect.signature(method)

    def before(self: Any, args: Any, kwargs: Any) -> _Begun | None:
        """The call under control; None if it is not: a call that does not fit the tool is the host's to answer."""
        control = control_of(self)
        if control is None or _inside.get() or is_over(self):
            return None
        try:
            arguments = dict(list(signature.bind(self, *args, **kwargs).arguments.items())[1:])
        except TypeError:
            return None
        plan = control.plan(name)
        text = control.failure(plan)
        if text is None and (page := control.next_page(plan, arguments)) is not None:
            text = control.perturbed(plan, page, page=True)
        return _Begun(control, plan, arguments, text)

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(self: Any, *args: Any, **kwargs: Any) -> Any:
            begun = before(self, args, kwargs)
            if begun is None:
                return await method(self, *args, **kwargs)
            if begun.answer is not None:
                return begun.answer
            try:
                with _alone():
                    answer = await method(self, *args, **kwargs)
            except Exception as error:
                raise begun.control.raised(begun.plan, error) from None
            return begun.control.perturbed(begun.plan, str(answer), begun.arguments)

        return awaited

    @functools.wraps(method)
    def tool(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = before(self, args, kwargs)
        if begun is None:
            return method(self, *args, **kwargs)
        if begun.answer is not None:
            return begun.answer
        try:
            with _alone():
                answer = method(self, *args, **kwargs)
        except Exception as error:
            raise begun.control.raised(begun.plan, error) from None
        return begun.control.perturbed(begun.plan, str(answer), begun.arguments)

    return tool


@contextmanager
def _alone() -> Iterator[None]:
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def _columns(environment: Any, arguments: tuple[Any, ...], columns: Mapping[str, Any]) -> dict[str, Any]:
    """A row's columns by name, as `reset` is given them."""
    try:
        names = list(inspect.signature(environment.reset).parameters)[1:]
    except ValueError as error:
        raise UserError(f"{environment.__name__}.reset has no signature ({error})") from None
    return {**dict(zip(names, arguments, strict=False)), **columns}


def _task(columns: Mapping[str, Any]) -> str:
    """What an episode's draws depend on: a digest of the columns. Columns without a value are as if they were not there: a
    dataset of several worlds has them."""
    here = {name: value for name, value in columns.items() if value is not None and name != "prompt"}
    return hashlib.sha256(json.dumps(here, sort_keys=True, default=str).encode()).hexdigest()[:16]
