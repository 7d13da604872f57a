"""The episodes of one client of a server, as a host plays them: a row, tool calls, and the reward at the end.

Knows nothing of OpenEnv, which `openenv_server` puts in front of it.
"""

import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from wm_plugin.data.schema import Action, Call, Context
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.hosting.world import is_over, tool_methods
from wm_plugin.runtime.background import wait_for
from wm_plugin.untrusted import encodable
from wm_plugin.worlds.kit.protocol import fits, reward_of
from wm_plugin.worlds.kit.start import context_of, task_of
from wm_plugin.worlds.worlds import World

OPTIONS = ("seed", "level", "split", "held_out", "row")  # of a reset
_MOST_CHARACTERS = 2000  # of an error
_KEPT = 1024  # rows: all episodes of a group begin with the same one


@dataclass
class Source:
    """Where all sessions take their worlds and rows from.

    Attributes:
        world: makes rows.
        environment: its class in the wrappers of a run (`RunConfig.dressed`), made without arguments.
        seed: of the first row of a client that names none. Each such reset takes the next seed.
        level, split, held_out: of the rows of clients that do not say.
    """

    world: World
    environment: type
    seed: int = 0
    level: str | None = None
    split: str | None = None
    held_out: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._made = lru_cache(_KEPT)(self._make)

    def _make(self, seed: int, held_out: bool, level: str | None, split: str | None) -> tuple[dict[str, Any], str]:
        row = self.world.rows(1, seed, held_out, level, split)[0]
        return row, task_of(row)

    def row(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], str, int | None]:
        """Return the row that a reset asks for, its task's id, and the seed that it is made with; None for a client's row.

        Raises:
            UserError: an option does not exist or does not fit, or the world has no such rows.
        """
        for name in options:
            if name not in OPTIONS:
                raise UserError(f"reset has no option {shown(name)}{nearest(name, OPTIONS)}")
        given = {name: value for name, value in options.items() if value is not None}
        if "row" in given:
            row = given.pop("row")
            if given or not isinstance(row, dict):
                raise UserError(f"row is {shown(row)}; write the columns of a row, and no other option beside it")
            return (row := encodable(row)), task_of(row), None
        seed = given.get("seed")
        if seed is None:
            with self._lock:
                seed, self.seed = self.seed, self.seed + 1
        elif isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise UserError(f"seed is {shown(seed)}; write a whole number >= 0")
        split, held_out = given.get("split"), given.get("held_out", False)
        if not {"split", "held_out"} & given.keys():
            split, held_out = self.split, self.held_out
        level = given.get("level", self.level)
        if not (isinstance(held_out, bool) and all(one is None or isinstance(one, str) for one in (level, split))):
            raise UserError("reset: held_out is true or false, level and split are texts")
        return *self._made(seed, held_out, level, split), seed


@dataclass(frozen=True)
class Told:
    """What a client is told after a call, or a reset.

    Attributes:
        text: of the observation; None after a call that failed.
        error: why it failed: its kind and what the world, or the host in its place, says.
    """

    text: str | None
    error: tuple[Literal["tool_not_found", "invalid_args", "execution_error"], str] | None
    over: bool
    reward: float | None


class Session:
    """One client's episodes, one after another, in a world of its own.

    A world that says when it is over gives its reward with the last step, and 0 before, so that trainers that take the last
    reward and those that add them up have the same. Another one gives with each step its reward so far: the last one counts.

    Attributes:
        about: of the episode: the row's `task_id`, its `seed`, and after its end the `reward` and the world's figures.
        steps: calls of the episode.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()  # a client may send calls at once, by several ways
        self.about: dict[str, Any] = {}
        self.steps = 0
        self._port: EpisodePort | None = None
        self._tools: dict[str, Callable[..., Any]] = {}
        self._clear()

    def _clear(self) -> None:
        self.about, self.steps = {}, 0
        self._results: list[str] = []
        self._unanswered, self._over = 0, True

    def reset(self, options: Mapping[str, Any]) -> tuple[Context, Told]:
        """Begin the episode of a row, and return what an agent is shown: a system message, and the user's with the first
        observation at its end.

        Raises:
            UserError: there is no such row, or the world failed to begin; the next reset makes a new world.
        """
        with self._lock:
            self._clear()
            row, task, seed = self._source.row(options)
            columns, prompt = {name: value for name, value in row.items() if name != "prompt"}, row.get("prompt")
            try:
                if self._port is None:
                    self._port = EpisodePort(self._source.environment())
                    self._tools = tool_methods(self._port.environment)
                first = encodable(str(_awaited(self._port.begin(columns, prompt=prompt)) or ""))
                shown_first = context_of(prompt, first, (), "")
            except Exception as error:
                self._drop()
                raise _as_user_error(error) from error
            self._over = False
            self.about = {"task_id": task, "seed": seed}
            reward = self._settle()
            return shown_first, Told(first, None, self._over, reward)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Told:
        """Run one tool call, as a turn of its own.

        Raises:
            UserError: there is no episode, or a judge of its reward cannot be asked.
        """
        with self._lock:
            port = self._port
            if port is None or self._over:
                raise UserError(
                    f"the episode is over after {self.steps} steps; reset begins the next one"
                    if self.about
                    else "there is no episode; reset begins one"
                )
            self.steps += 1
            waiting = port.is_waiting
            text, error = self._run(port, tool, dict(arguments))
            self._unanswered += waiting and error is not None
            reward = self._settle()
            return Told(text, error, self._over, reward)

    def _run(self, port: EpisodePort, tool: str, arguments: dict[str, Any]) -> tuple[str | None, Any]:
        """The observation, or what went wrong. The texts are those of a host, as `agents.rollout` records them."""
        tools = self._tools
        try:
            if port.is_turn_aware:
                port.turn(Action(calls=(Call(name=tool, arguments=arguments),)), self._results)
            port.notes()
            if tool not in tools:
                raise KeyError
            text = encodable(str(_awaited(tools[tool](**arguments))))
            error = None
        except Exception as failed:
            unknown = tool not in tools
            kind = (
                "tool_not_found" if unknown else "execution_error" if fits(tools[tool], arguments) else "invalid_args"
            )
            message = f"Tool {tool} not found." if unknown else str(failed)
            text, error = None, (kind, encodable(message)[:_MOST_CHARACTERS])
        port.notes(failed=error is not None)
        self._results = [str({"error": error[1]}) if error else str(text)]
        return text, error

    def _settle(self) -> float | None:
        """The reward of the step. At its end, the episode is decided."""
        port = self._port
        assert port is not None
        environment = port.environment
        try:
            says = getattr(environment, "over", None) is not None
            self._over = is_over(environment)
            if says and not self._over:
                return 0.0 if hasattr(environment, "get_reward") else None
            if self._over:
                port.end(self._unanswered)
            total = reward_of(environment)
        except Exception as error:
            self._over = True
            raise _as_user_error(error) from error
        if self._over:
            self.about |= {"reward": total, **port.report()}
        return total

    def close(self) -> None:
        """End the world and its processes."""
        with self._lock:
            self._clear()
            self._drop()

    def _drop(self) -> None:
        port, self._port, self._tools = self._port, None, {}
        if port is None:
            return
        try:
            world = weakref.ref(port.environment)
        except TypeError:  # a class with slots
            return
        del port
        if world() is not None:  # in a cycle: its processes end when it is collected
            gc.collect()


def _awaited(value: Any) -> Any:
    """The result of a method, which may be asynchronous."""

    async def result() -> Any:
        return await value

    return wait_for(result()) if inspect.isawaitable(value) else value


def _as_user_error(error: Exception) -> UserError:
    """A world's exception as one for its client: the server goes on."""
    if isinstance(error, UserError):
        return error
    return UserError(encodable(f"the world failed ({type(error).__name__}: {error})")[:_MOST_CHARACTERS])
