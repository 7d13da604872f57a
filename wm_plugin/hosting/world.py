"""The form of a world, and worlds around worlds, as in Gymnasium.

Both hosts take a *class* whose public methods are the tools, so that a world in wrappers has to look like one: `dress` makes a
subclass of the user's class whose instances pass everything on to their chain of wrappers. The chain has tools by name, and what
a host says of an episode: where it begins, its turns, where it ends (see `episode.EpisodePort`).
"""

import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol, Self, TypeVar

from wm_plugin.errors import UserError, shown

NOT_TOOLS = ("reset", "get_reward", "world_context")
MOST_TURNS = 10**9  # more count as this many
_NAMES = 20  # of a row's columns that a message has room for


class World(Protocol):
    """An environment as hosts take it. Its other public methods are its tools, each of which returns what is observed.

    A world may also have `get_reward() -> float`, `world_context() -> str` (marked by `not_a_tool`), and what says how an
    episode stands: `over`, `success`, `turns`, `max_turns` and a mapping `metrics`.
    """

    def reset(self, **columns: Any) -> str | None:
        """Begin the episode of a dataset's row, and return what is observed first."""
        ...


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


def check_columns(environment: type, columns: Mapping[str, Any]) -> None:
    """Raise a UserError if `reset` of this class cannot be called with the columns of a row: one is missing, or not taken."""
    try:
        _signature(environment.reset).bind(None, **columns)  # type: ignore[attr-defined]
    except TypeError as error:
        names = ", ".join(map(shown, list(columns)[:_NAMES])) or "none"
        raise UserError(
            f"a row does not fit {environment.__name__}.reset: {str(error)[:200]} (its columns: {names})"
        ) from None


_signature = cache(inspect.signature)  # a served world is reset a thousand times a second


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


def turn_limit(max_turns: Any, usual: int, column: str = "max_turns") -> int:
    """Return the number of turns in a row's column: `usual` for None, NaN (an empty cell of a table) or 0."""
    if max_turns is None:
        return usual
    if is_number(max_turns):
        if max_turns != max_turns or max_turns == 0:
            return usual
        if max_turns >= 1 and max_turns % 1 == 0:
            return int(min(max_turns, MOST_TURNS))
    raise UserError(f"A row's column `{column}` is {shown(max_turns)}; write a whole number of turns >= 1")


def is_number(value: Any) -> bool:
    """Return whether a row's value is a number; numpy's are, too."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_over(world: Any) -> bool:
    """Return whether an episode is over, as far as the class says so."""
    return bool(getattr(world, "over", False))


def is_waiting(world: Any) -> bool:
    """Return whether a world says that its episode is not over. One that says nothing about it may be left at any time."""
    return getattr(world, "over", None) is False


def report(world: Any, unanswered: int = 0) -> dict[str, float]:
    """Return the figures of an episode: `success`, `turns` and all of the mapping `metrics`, as far as the world has them.

    Args:
        unanswered: answers that brought no action to a world that waited for one. Each counts as a turn of one invalid action, in
            every count that the world has of them.
    """
    figures = {name: float(getattr(world, name)) for name in ("success", "turns") if hasattr(world, name)}
    figures |= {name: float(value) for name, value in (getattr(world, "metrics", None) or {}).items()}
    for name in figures.keys() & {"turns", "actions", "invalid"}:
        figures[name] += unanswered
    return figures


# -- wrappers ---------------------------------------------------------------------------------------------------------------

_STATE = ("over", "success", "turns", "max_turns", "metrics", "get_reward")  # what wrappers may answer for a world


@dataclass(frozen=True)
class Start:
    """What a host says of an episode that begins.

    Attributes:
        prompt: of the row; a column `prompt` wins.
        training: the episode is a training's; else an evaluation's.
        strength: a curriculum's factor of all rates of perturbations.
        control: of the episode, for a world model that is told of it instead of being perturbed.
    """

    prompt: Any = None
    training: bool = True
    strength: float = 1.0
    control: Any = None


class Wrapper:
    """A world around another one. What it leaves alone is the inner world's.

    Args:
        world: the inner one.
        options: of the wrapper.
        environment: the class under the wrapper.

    Attributes:
        instance: of the user's class, inside all wrappers.
    """

    instance: Any
    is_turn_aware = False  # whether `turn` wants the turns of an episode before their calls run
    is_simulated = False  # whether observations are a world model's

    def __init__(self, world: "Wrapper", options: Any, environment: type) -> None:
        self.world, self.instance = world, world.instance
        self.options, self.environment = options, environment

    def __getattr__(self, name: str) -> Any:
        if name not in _STATE:
            raise AttributeError(name)
        return getattr(self.world, name)

    @classmethod
    def tools(cls, environment: type, options: Any) -> dict[str, Callable[..., Any]]:  # noqa: ARG003 - for those who need it
        """Return the tools of the class, by name, with the signatures that hosts read."""
        return {name: getattr(environment, name) for name in tool_names(environment)}

    @classmethod
    def has_reward(cls, environment: type, options: Any) -> bool:  # noqa: ARG003
        """Return whether the class has `get_reward`."""
        return hasattr(environment, "get_reward")

    def reset(self, columns: dict[str, Any], start: Start) -> Any:
        """Begin the episode of a row. May return an awaitable, like `call`, where the world's method is asynchronous."""
        return self.world.reset(columns, start)

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Run a tool and return what is observed."""
        return self.world.call(tool, arguments)

    def turn(self, action: Any, results: Sequence[str]) -> None:
        """The policy's next turn, an `Action`, before its calls run.

        Args:
            results: what the policy observed after the calls of the turn before.
        """
        self.world.turn(action, results)

    async def ready(self) -> None:
        """Wait, without a thread, until the calls of the turn return at once. It never raises."""
        await self.world.ready()

    def end(self, unanswered: int) -> None:
        """The episode is over for its host, with so many answers that brought no action."""
        self.world.end(unanswered)

    @classmethod
    def finalize(cls, episodes: Sequence[Self]) -> None:
        """Decide episodes that ended together, so that judges are asked once, or raise why they cannot be."""

    def notes(self, failed: bool) -> dict[str, Any]:
        """Take what the observation of the last call is to say in its `data`.

        Args:
            failed: the host wrote the observation.
        """
        return self.world.notes(failed)

    def about(self) -> dict[str, Any]:
        """Return what a record of the episode is to say in its `metadata`."""
        return self.world.about()


class _Plain(Wrapper):
    """The user's world at the end of the chain."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance

    def __getattr__(self, name: str) -> Any:
        if name not in _STATE:
            raise AttributeError(name)
        return getattr(self.instance, name)

    def reset(self, columns: dict[str, Any], start: Start) -> Any:  # noqa: ARG002 - for wrappers
        return self.instance.reset(**columns)

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return getattr(self.instance, tool)(**arguments)

    def turn(self, action: Any, results: Sequence[str]) -> None:
        pass

    async def ready(self) -> None:
        pass

    def end(self, unanswered: int) -> None:
        pass

    def notes(self, failed: bool) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def about(self) -> dict[str, Any]:
        return {}


_Kind = TypeVar("_Kind", bound=Wrapper)
_Layer = tuple[type[Wrapper], Any, type]  # a wrapper, its options, the class under it
_OWN = ("_wm_layers", "_wm_world")  # all that is added to a user's class

_START = Start()  # the default
_starts: ContextVar[Start] = ContextVar("wm_start", default=_START)


@contextmanager
def resets(*, training: bool = True, strength: float = 1.0) -> Iterator[None]:
    """Say of the episodes whose `reset` a host calls within what `EpisodePort.begin` says of its own."""
    token = _starts.set(Start(training=training, strength=strength))
    try:
        yield
    finally:
        _starts.reset(token)


def chain_of(environment: Any) -> Wrapper | None:
    """Return the wrappers of a dressed instance, from the outermost on; None if it is a plain world."""
    layers = getattr(type(environment), "_wm_layers", None)
    return None if layers is None else environment._wm_world


def layer_of(world: Any, kind: type[_Kind]) -> _Kind | None:
    """Return the wrapper of a kind in a dressed instance, or in the chain from a wrapper inwards, or None."""
    found = world if isinstance(world, Wrapper) else chain_of(world)
    while found is not None and not isinstance(found, kind):
        found = None if isinstance(found, _Plain) else found.world
    return found


def options_of(environment: Any, kind: type[Wrapper]) -> Any:
    """Return the options of a wrapper of a kind, from a class, or an instance; None if it has no such wrapper."""
    return next((options for layer, options, _ in layers_of(environment) if issubclass(layer, kind)), None)


def layers_of(environment: Any) -> tuple[_Layer, ...]:
    """Return the wrappers of a class or an instance, from the inside out."""
    return getattr(environment, "_wm_layers", ())


@cache  # the same class each time a config is read
def dress(environment: Any, wrapper: type[Wrapper], options: Any = None) -> type:
    """Return a subclass of a world's class whose instances are in one more wrapper.

    Its name, documentation, tools, signatures and columns are those of `environment`, and so is every other attribute.
    """
    layers = (*layers_of(environment), (wrapper, options, environment))
    base = layers[0][2]  # the user's
    tools = wrapper.tools(environment, options)
    own = {*_OWN, *tools, "reset", *(["get_reward"] if wrapper.has_reward(environment, options) else [])}

    class Dressed(base):  # type: ignore[misc, valid-type]
        _wm_layers = layers

        def __init__(self) -> None:
            world: Wrapper = _Plain(base())
            for kind, given, under in layers:
                world = kind(world, given, under)
            object.__setattr__(self, "_wm_world", world)

        def __getattribute__(self, name: str) -> Any:
            if name in own or name.startswith("__"):
                return object.__getattribute__(self, name)
            world = object.__getattribute__(self, "_wm_world")
            return getattr(world if name in _STATE else world.instance, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self._wm_world.instance, name, value)

    names = list(inspect.signature(environment.reset).parameters)[1:]

    def reset(self: Any, *args: Any, **columns: Any) -> Any:
        columns = {**dict(zip(names, args, strict=False)), **columns}
        return self._wm_world.reset(columns, replace(_starts.get(), prompt=columns.get("prompt")))

    def get_reward(self: Any) -> Any:
        return self._wm_world.get_reward()

    Dressed.reset = _like(environment.reset, reset)
    if "get_reward" in own:
        Dressed.get_reward = _like(getattr(environment, "get_reward", get_reward), get_reward)
    for name in tool_names(base):
        if name not in tools:
            setattr(Dressed, name, None)  # none to those who list a class's functions
    for name, function in tools.items():
        setattr(Dressed, name, _like(function, _tool(name, function, base)))
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Dressed, name, getattr(environment, name))
    return Dressed


def _tool(name: str, function: Callable[..., Any], base: type) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            arguments = by_name(signature.bind(self, *args, **kwargs))
        except TypeError:  # the world's own method raises what it would
            return getattr(base, name, function)(self._wm_world.instance, *args, **kwargs)
        return self._wm_world.call(name, arguments)

    return call


def _like(function: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with the name, the signature and the documentation of a method, and asynchronous if that is."""
    if not inspect.iscoroutinefunction(function):
        return functools.wraps(function)(run)

    @functools.wraps(function)
    async def wait(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return wait


def by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments of a method's call by name, as a policy writes them."""
    found: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return found
