"""The base class of worlds whose one tool takes a command in words and whose engine runs in a process of its own.

An engine (see `process.py`) is a class with these methods, all on JSON values:

* `start(*columns) -> str`: begins the episode of a row and returns the first observation;
* `step(command)`, which returns a `reply`;
* `context() -> str`: the hidden state, called between `start` and the first `step`;
* `plan() -> list[str]`: commands that solve the episode from its start;
* `commands() -> list[str]`: commands that are worth trying now.
"""

import random
from collections.abc import Callable
from typing import Any

from wm_plugin.hosting.world import not_a_tool
from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.process import EngineProcess, LostError
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall

MAX_COMMAND = 190  # characters
NOT_A_COMMAND = f"A command is one line of at most {MAX_COMMAND} plain letters, digits and signs."


def reply(
    text: str, score: float = 0.0, won: bool = False, over: bool = False, valid: bool = True, changed: bool = False
) -> dict[str, Any]:
    """Return what an engine answers to a command.

    Args:
        score: in [0, 1].
        valid: whether the engine understood the command.
        changed: whether the command changed the state.
    """
    return {"text": text, "score": score, "won": won, "over": over or won, "valid": valid, "changed": changed}


def tidy(text: str, line: Callable[[str], str] = str.strip) -> str:
    """Leave out the empty lines of a text, and apply a function to each other line."""
    return "\n".join(line(one) for one in text.split("\n") if one.strip())


class CommandEnvironment(CountedEnvironment):
    """Passes commands to the engine. If its process is lost, the episode ends without reward and `metrics["lost"]` is 1."""

    observer = "environment"
    refusals: tuple[str, ...] = (NOT_A_COMMAND,)
    _engine = ""  # dotted path of the engine's class
    _timeout = 60.0  # seconds for a command; a start may take five times as long
    _lost = 0

    def __init__(self) -> None:
        self._process = EngineProcess(self._engine, timeout=self._timeout)
        super().__init__()

    @property
    def success(self) -> bool:
        return self._won

    @not_a_tool
    def world_context(self) -> str:
        """The hidden state before the first turn; empty if the engine's process was lost."""
        return "" if self.turns or self.over else str(self._ask("context") or "")

    def _begin(self) -> None:
        super()._begin()
        self._won = False
        self._plan: list[str] | None = None  # for the expert, who asks the engine once an episode

    def _start(self, max_turns: int, *columns: Any) -> str:
        self._begin()
        self.max_turns = 0  # the episode stays over if the engine refuses a column
        try:
            text = self._first(columns)
        except LostError:  # a process that died between two episodes is started again
            try:
                text = self._first(columns)
            except LostError as error:
                return self._lost_by(error)
        self.max_turns = max_turns
        return text

    def _first(self, columns: tuple[Any, ...]) -> str:
        return str(self._process.call("start", *columns, timeout=5 * self._timeout))

    def _act(self, command: Any) -> str:
        self._take_turn()
        line = clean(command)
        if line is None:
            self._invalid += 1
            return self._observe(NOT_A_COMMAND)
        try:
            step = self._process.call("step", line)
        except LostError as error:
            return self._lost_by(error)
        self._invalid += not step["valid"]
        self._effective += step["changed"]
        self._reward = min(max(float(step["score"]), 0.0), 1.0)
        self._won, self._ended = step["won"], step["over"]
        return self._observe(str(step["text"]))

    def _ask(self, method: str) -> Any:
        """Return the engine's `context`, `plan` or `commands`; None if its process was lost."""
        try:
            return self._process.call(method, timeout=5 * self._timeout)
        except LostError as error:
            self._lost_by(error)
            return None

    def _lost_by(self, error: LostError) -> str:
        self._lose()
        self._won = False
        return self._observe(f"The world was lost ({error}).")

    def _observe(self, text: str) -> str:
        return f"{text}\nThe task is done." if self._won else super()._observe(text)


def clean(command: Any) -> str | None:
    """Return the command with single spaces, or None if it is not one short line of printable ASCII."""
    if not isinstance(command, str) or len(command) > 2 * MAX_COMMAND:
        return None
    line = " ".join(command.split())
    return line if line.isascii() and line.isprintable() and 0 < len(line) <= MAX_COMMAND else None


def expert() -> Chooser:
    """Return a policy that follows the engine's plan from the start of an episode and gives up at the plan's end."""

    def choose(environment: CommandEnvironment) -> ToolCall | None:
        if environment._plan is None:
            environment._plan = list(environment._ask("plan") or [])
        if environment.over or environment.turns >= len(environment._plan):
            return None
        return "act", {"command": environment._plan[environment.turns]}

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that draws from the commands that the engine suggests."""

    def choose(environment: CommandEnvironment) -> ToolCall | None:
        commands = environment._ask("commands")
        return ("act", {"command": rng.choice(commands)}) if commands else None

    return choose
