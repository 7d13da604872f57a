"""What hosts read from an environment class: its tools, their schemas and its figures. The package's docstring has the form."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from wm_plugin.errors import MissingExtraError, UserError, nearest, shown

if TYPE_CHECKING:
    from wm_plugin.data.schema import Kind

ToolCall = tuple[str, dict[str, Any]]  # a tool's name and its arguments
# A scripted policy (an expert or a wanderer): takes the environment and returns the next call, or None to give up.
Chooser = Callable[[Any], ToolCall | None]

KINDS = ("tool", "user", "environment")  # of observers
MAX_LISTED_NAMES = 20  # of a row's columns in a message
NOT_TOOLS = ("reset", "get_reward", "world_context")
# Schemas by `path_of_tool`. A parent process that has made them fills this in its children, which then need no transformers.
READY_SCHEMAS: dict[str, dict[str, Any]] = {}


class not_a_tool:
    """Marks a public method that no agent may call, such as `world_context`: both hosts offer every plain function of a class."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method, self.__doc__ = method, method.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else partial(self._method, instance)


def tool_methods(environment: Any) -> dict[str, Callable[..., Any]]:
    """Return the tools of an instance by name: its public methods, as TRL takes them."""
    # names from the class: on the instance, properties would be evaluated
    return {name: getattr(environment, name) for name in tool_names(type(environment))}


def tool_names(environment: type) -> list[str]:
    """Return the names of a class's tools, sorted."""
    names = [name for name, _ in inspect.getmembers(environment, inspect.isfunction)]
    return [name for name in names if not name.startswith("_") and name not in NOT_TOOLS]


def observers(environment: type) -> dict[str, "Kind"]:
    """Return what is observed after a call of each tool: the tool's result, a user's reply, or a step of the environment.

    The class says so in its attribute `observer`: one of `KINDS` for all tools, or a mapping by tool. A tool that it does not
    name is observed as `tool`.

    Raises:
        UserError: `observer` is something else, or names a tool that the class does not have.
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

    Raises:
        UserError: `refusals` is something else.
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
    """Return a tool's JSON schema as both hosts make it: from the method of the class, its annotations and its docstring.

    Raises:
        MissingExtraError: transformers is not installed.
    """
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


def missing_columns(environment: type, columns: Iterable[str]) -> str | None:
    """Return a message about the columns that `environment.reset` requires and `columns` lacks; None if it lacks none."""
    columns = list(columns)
    parameters = list(inspect.signature(environment.reset).parameters.values())[1:]  # type: ignore[attr-defined]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind in kinds]
    missing = [name for name in required if name not in columns]
    if not missing:
        return None
    return (
        f"the dataset has no column {', '.join(map(repr, missing))}, which {environment.__name__}.reset needs "
        f"(it has {', '.join(map(repr, columns))})"
    )


def check_columns(environment: type, columns: Mapping[str, Any]) -> None:
    """Raise a UserError if `reset` of this class cannot be called with the columns of a row: one is missing, or not taken."""
    try:
        inspect.signature(environment.reset).bind(None, **columns)  # type: ignore[attr-defined]
    except TypeError as error:
        names = ", ".join(map(shown, list(columns)[:MAX_LISTED_NAMES])) or "none"
        raise UserError(
            f"a row does not fit {environment.__name__}.reset: {str(error)[:200]} (its columns: {names})"
        ) from None


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


def by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments of a method's call by name, as a policy writes them."""
    found: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return found


def reward_of(environment: Any) -> float | None:
    """Return the outcome of an episode; None where the class leaves it to the trainer's rewards."""
    reward = environment.get_reward() if hasattr(environment, "get_reward") else None
    return None if reward is None else float(reward)


def world_context_of(environment: Any) -> str:
    """Return the hidden state of an episode before its first turn, for world models only; "" if the class gives none.

    Raises:
        UserError: the method is one that TRL would offer to the agent as a tool, or returns no text.
    """
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


def is_over(environment: Any) -> bool:
    """Return whether an episode is over; False if the class does not say."""
    return bool(getattr(environment, "over", False))


UNANSWERED = "_wm_unanswered"  # how many answers of an episode brought no action, as its host or rollout counted


def report(environment: Any) -> dict[str, float]:
    """Return the figures of an episode: `success`, `turns`, the mapping `metrics`, and what control and the verifier counted.

    An answer without an action is a turn of one invalid action in every such count.
    """
    figures = {name: float(getattr(environment, name)) for name in ("success", "turns") if hasattr(environment, name)}
    counts = dict(getattr(environment, "metrics", None) or {})
    for name in ("_wm_control", "_wm_verifier"):
        counts |= getattr(getattr(environment, name, None), "figures", {})
    figures |= {name: float(value) for name, value in counts.items()}
    for name in figures.keys() & {"turns", "actions", "invalid"}:
        figures[name] += getattr(environment, UNANSWERED, 0)
    return figures
