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
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from wm_plugin.data.schema import Action
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.worlds.kit.protocol import by_name, tool_names
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.control import control_of
from wm_plugin.worlds.wrappers.simulated import is_simulated, only_tool
from wm_plugin.worlds.wrappers.tags import takes_tags
from wm_plugin.worlds.wrappers.verify_checks import Checks
from wm_plugin.worlds.wrappers.verify_config import VerifyConfig


def verified(environment: type, config: VerifyConfig | Mapping[str, Any]) -> type:
    """A subclass of `environment`, of the same name, tools, schemas and columns, whose irreversible actions are checked. With a
    budget of 0 it is `environment` itself.

    The figures of an episode (`protocol.report`) have the counts of `Checks.figures`, too.

    Raises:
        UserError: the config does not fit, or names a tool that the environment does not have; nothing says which actions are
            irreversible, or something says it of what is no tool; the environment is a simulated one, or a method of it is
            asynchronous.
    """
    if not isinstance(config, VerifyConfig):
        config = VerifyConfig.from_mapping(config)
    if not config.budget:
        return environment
    name, known = environment.__name__, tool_names(environment)
    if is_simulated(environment):
        raise UserError(
            f"verify: {name} is simulated, and a world model plays it already; actions are checked in the real world, so leave "
            "simulation or verify out (worlds: says which of several environments each is for)"
        )
    for method in ("reset", "get_reward", *known):
        if inspect.iscoroutinefunction(getattr(environment, method, None)):
            raise UserError(f"verify: {name}.{method} is asynchronous; write a plain method")
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
    return _verified(environment, config)


@dataclass(frozen=True)
class VerifiedWorld(World):
    """A world whose irreversible actions are checked."""

    config: VerifyConfig = field(kw_only=True)

    @property
    def environment(self) -> type:
        """The class, whose irreversible actions are checked; what it observes may be under control."""
        return verified(super().environment, self.config)


@lru_cache  # the same class each time a config is read
def _verified(environment: Any, config: VerifyConfig) -> type:
    names = frozenset(getattr(environment, "irreversible", ()) if config.asks_world else config.tools or ())

    class Verified(environment):  # type: ignore[misc]
        _wm_hears_turns = True
        _wm_verify = config
        _wm_verifier: Checks | None = None
        _wm_prompt: Any = None
        _wm_inside = False  # a tool may call another one of its world

        def __init__(self) -> None:
            super().__init__()
            if config.depth > 1 and takes_tags(self):
                raise UserError("verify.depth is of an agent that calls tools; write depth: 1, or protocol: tools")
            self._wm_verifier = Checks(environment, self, config, names)

        def reset(self, *args: Any, **columns: Any) -> Any:
            prompt, self._wm_prompt = columns.get("prompt", self._wm_prompt), None
            with _inside(self):
                first = super().reset(*args, **columns)
            if self._wm_verifier is not None:  # a world may reset itself as it is made
                bound = signature.bind(None, *args, **columns)
                self._wm_verifier.begin(prompt, by_name(bound), first, control_of(self))
            return first

        def _wm_hear(self, action: Action, results: Sequence[str]) -> None:
            if self._wm_verifier is not None:
                self._wm_verifier.note(action, results)

        async def _wm_wait(self) -> None:
            if self._wm_verifier is not None:
                await self._wm_verifier.ready()

        def _wm_settle(self) -> None:
            if self._wm_verifier is not None:
                self._wm_verifier.settle()

        @property
        def _wm_only_tool(self) -> tuple[str, str]:
            return only_tool(environment)

    signature = inspect.signature(environment.reset)
    Verified.reset.__signature__ = signature  # type: ignore[attr-defined]  # its columns
    for name in tool_names(environment):
        setattr(Verified, name, _checked(name, getattr(environment, name)))
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Verified, name, getattr(environment, name))
    return Verified


def _checked(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A tool as the world has it, whose calls are checked where the config says so."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def tool(self: Any, *args: Any, **kwargs: Any) -> Any:
        checks: Checks | None = self._wm_verifier
        if checks is None or self._wm_inside:
            return method(self, *args, **kwargs)
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            return method(self, *args, **kwargs)  # which raises what the world would
        if (refusal := checks.before(name, by_name(bound))) is not None:
            return refusal
        with _inside(self):
            result = method(self, *args, **kwargs)
        control = control_of(self)
        checks.after("" if result is None else str(result), {} if control is None else control.data)
        return result

    return tool


@contextmanager
def _inside(environment: Any) -> Iterator[None]:
    before, environment._wm_inside = environment._wm_inside, True
    try:
        yield
    finally:
        environment._wm_inside = before
