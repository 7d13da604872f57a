"""What is read from an environment class beside what hosts need (`hosting.world`): schemas of tools, observers, hidden state."""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from wm_plugin.errors import MissingExtraError, UserError, nearest, shown
from wm_plugin.hosting.world import (
    tool_names,
)

if TYPE_CHECKING:
    from wm_plugin.data.schema import Kind

ToolCall = tuple[str, dict[str, Any]]  # a tool's name and its arguments
# A scripted policy (an expert or a wanderer): takes the environment and returns the next call, or None to give up.
Chooser = Callable[[Any], ToolCall | None]

KINDS = ("tool", "user", "environment")  # of observers
# Schemas by `path_of_tool`. A parent process that has made them fills this in its children, which then need no transformers.
READY_SCHEMAS: dict[str, dict[str, Any]] = {}


def observers(environment: type) -> dict[str, "Kind"]:
    """Return what is observed after a call of each tool: the tool's result, a user's reply, or a step of the environment.

    The class says so in its attribute `observer`: one of `KINDS` for all tools, or a mapping by tool. A tool that it does not
    name is observed as `tool`.
    """
    tools = tool_names(environment)
    kinds: dict[str, Kind] = dict.fromkeys(tools, "tool")
    declared = getattr(environment, "observer", {})
    by_tool: Any = dict.fromkeys(tools, declared) if isinstance(declared, str) else declared
    if not isinstance(by_tool, Mapping):
        raise UserError(f"{environment.__name__}.observer is {shown(declared)}; write tool, user or environment")
    for tool, kind in by_tool.items():
        if tool not in kinds:
            hint = nearest(tool, tools)
            raise UserError(f"{environment.__name__}.observer names {shown(tool)}, which is no tool{hint}")
        if kind not in KINDS:
            raise UserError(f"{environment.__name__}.observer is {shown(kind)}; write tool, user or environment")
        kinds[tool] = kind
    return kinds


def refusals(environment: type) -> tuple[str, ...] | None:
    """Return how the observations begin that answer an invalid action; None if the class does not say.

    The class says so in its attribute `refusals`, a tuple of texts. Only readers of hosts' dumps need it: our own rollouts have
    what the class counts in `metrics`.
    """
    declared = getattr(environment, "refusals", None)
    if declared is None:
        return None
    if not isinstance(declared, tuple) or not all(isinstance(text, str) and text for text in declared):
        name = environment.__name__
        raise UserError(f"{name}.refusals is {shown(declared)}; write a tuple of texts, none of them empty")
    return declared


@lru_cache  # the same for every episode
def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a tool's JSON schema as both hosts make it: from the method of the class, its annotations and its docstring."""
    if ready := READY_SCHEMAS.get(path_of_tool(function)):
        return ready
    try:
        from transformers.utils import get_json_schema
    except ImportError:
        raise MissingExtraError("The schemas of an environment's tools", "transformers", "trl") from None
    schema: dict[str, Any] = get_json_schema(function)
    return schema


def path_of_tool(function: Callable[..., Any]) -> str:
    """Return a tool's method as a dotted path."""
    return f"{function.__module__}:{function.__qualname__}"


def check_world(environment: type) -> None:
    """Raise a UserError if a class has only tools, which a world model must answer (see `worlds.from_file`)."""
    if path := getattr(environment, "_wm_file", None):
        raise UserError(
            f"environment: {path} has tools and no world behind them; add simulation: {{url: ..., model: NAME}} "
            "(--simulation FILE of wm env rollout)"
        )


def fits(tool: Callable[..., Any], arguments: Any) -> bool:
    """Return whether a tool can be called with the arguments of a call; None stands for no arguments."""
    try:
        inspect.signature(tool).bind(**({} if arguments is None else arguments))
    except TypeError:
        return False
    return True


def reward_of(environment: Any) -> float | None:
    """Return the outcome of an episode; None where the class leaves it to the trainer's rewards."""
    reward = environment.get_reward() if hasattr(environment, "get_reward") else None
    return None if reward is None else float(reward)


def world_context_of(environment: Any) -> str:
    """Return the hidden state of an episode before its first turn, for world models only; "" if the class gives none."""
    if not hasattr(environment, "world_context"):
        return ""
    name = type(environment).__name__
    if inspect.isfunction(getattr(type(environment), "world_context", None)):
        raise UserError(
            f"{name}.world_context is a tool to TRL, and would show the hidden state to the agent: "
            "put @not_a_tool of wm_plugin.worlds before it"
        )
    text = environment.world_context()
    if not isinstance(text, str):
        raise UserError(f"{name}.world_context gives {shown(text)}; return a text")
    return text


def script(calls: Callable[[Any], list[ToolCall]]) -> Chooser:
    """Return a policy that makes the calls of an episode in order, one a turn, and repeats the last one."""

    def choose(environment: Any) -> ToolCall | None:
        made = calls(environment)
        return made[min(environment.turns, len(made) - 1)] if made else None

    return choose
