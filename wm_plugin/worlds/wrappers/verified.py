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

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.data.schema import Action
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting.world import Start, Wrapper, by_name, dress, tool_names
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.control import control_of
from wm_plugin.worlds.wrappers.simulated import is_simulated
from wm_plugin.worlds.wrappers.verify_checks import Checks
from wm_plugin.worlds.wrappers.verify_config import VerifyConfig


def verified(environment: type, config: VerifyConfig | Mapping[str, Any]) -> type:
    """The class of `environment` whose irreversible actions are checked. With a budget of 0 it is `environment` itself.

    `metrics` has the counts of `Checks.figures`, too.

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
    return dress(environment, Verified, config)


@dataclass(frozen=True)
class VerifiedWorld(World):
    """A world whose irreversible actions are checked."""

    config: VerifyConfig = field(kw_only=True)

    @property
    def environment(self) -> type:
        """The class, whose irreversible actions are checked; what it observes may be under control."""
        return verified(super().environment, self.config)


class Verified(Wrapper):
    """A world whose irreversible actions a world model checks."""

    is_turn_aware = True

    def __init__(self, world: Wrapper, options: VerifyConfig, environment: type) -> None:
        super().__init__(world, options, environment)
        declared = getattr(environment, "irreversible", ()) if options.asks_world else options.tools or ()
        self.checks = Checks(environment, world, options, frozenset(declared))
        self._columns = inspect.signature(environment.reset)  # type: ignore[attr-defined]

    def reset(self, columns: dict[str, Any], start: Start) -> Any:
        first = self.world.reset(columns, start)
        row = by_name(self._columns.bind(None, **columns))
        self.checks.begin(columns.get("prompt", start.prompt), row, first, control_of(self))
        return first

    def turn(self, action: Action, results: Sequence[str]) -> None:
        self.world.turn(action, results)
        self.checks.note(action, results)

    async def ready(self) -> None:
        await self.checks.ready()

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        if (refusal := self.checks.before(tool, arguments)) is not None:
            return refusal
        result = self.world.call(tool, arguments)
        control = control_of(self)
        self.checks.after("" if result is None else str(result), {} if control is None else control.data)
        return result

    @classmethod
    def finalize(cls, episodes: Sequence["Verified"]) -> None:
        for one in episodes:
            one.checks.settle()

    @property
    def metrics(self) -> dict[str, float]:
        """The world's, and the counts of the checks."""
        return {**dict(getattr(self.world, "metrics", None) or {}), **self.checks.figures}

    def notes(self, failed: bool) -> dict[str, Any]:
        own, self.checks.data = self.checks.data, {}
        return {**self.world.notes(failed), **own}

    def about(self) -> dict[str, Any]:
        return {**self.world.about(), "verify": self.options.as_mapping()}
