"""Worlds with one tool, a command in words, whose engine runs in a process (see `process.py`).

An engine is a class with these methods, all on JSON values:

* `start(*columns) -> {"text"}`: begins the episode of a row;
* `step(command) -> {"text", "score", "won", "over", "valid", "changed"}`: score in [0, 1]; valid: the world understood it;
  changed: the world is another one now;
* `plan() -> list[str]`: commands that solve the episode from its start;
* `commands() -> list[str]`: commands that are worth trying now.
"""

import random
from typing import Any

from wm_plugin.environments.kit.counted import CountedEnvironment
from wm_plugin.environments.kit.process import EngineProcess, LostError
from wm_plugin.environments.kit.protocol import Chooser, ToolCall

MAX_COMMAND = 190  # characters
NOT_A_COMMAND = f"A command is one line of at most {MAX_COMMAND} plain letters, digits and signs."


class CommandEnvironment(CountedEnvironment):
    """What these worlds share. A call that is lost ends the episode without reward, and is counted in `metrics["lost"]`."""

    _engine = ""  # dotted path
    _timeout = 60.0  # seconds a command; a start may take five times as long
    _lost = 0

    def __init__(self) -> None:
        self._process = EngineProcess(self._engine, timeout=self._timeout)
        super().__init__()

    def get_reward(self) -> float:
        return self._score

    def _begin(self) -> None:
        super()._begin()
        self.success, self._score = False, 0.0
        self._plan: list[str] | None = None  # of the expert, who asks once an episode

    def _start(self, max_turns: int, *columns: Any) -> str:
        self._begin()
        self.max_turns = 0  # stays over if a column is refused
        for last_try in (False, True):  # between episodes a process may have gone: that costs nothing
            try:
                text = self._process.call("start", *columns, timeout=5 * self._timeout)["text"]
                break
            except LostError as error:
                if last_try:
                    return self._lost_by(error)
        self.max_turns = max_turns
        return str(text)

    def _act(self, command: Any) -> str:
        self._take_turn()
        line = clean(command)
        if line is None:
            self._invalid += 1
            return NOT_A_COMMAND + self._closing
        try:
            seen = self._process.call("step", line)
        except LostError as error:
            return self._lost_by(error)
        self._invalid += not seen["valid"]
        self._effective += seen["changed"]
        self._score = min(max(float(seen["score"]), 0.0), 1.0)
        self.success, self._ended = seen["won"], seen["over"] or seen["won"]
        return str(seen["text"]) + self._closing

    def _ask(self, what: str) -> list[str]:
        """`plan` or `commands` of the engine, for scripted policies; nothing where it was lost."""
        try:
            return list(self._process.call(what, timeout=5 * self._timeout))
        except LostError as error:
            self._lost_by(error)
            return []

    def _lost_by(self, error: LostError) -> str:
        self._lose()
        self.success, self._score = False, 0.0
        return f"The world was lost ({error})." + self._closing

    @property
    def _closing(self) -> str:
        if not self.over:
            return ""
        return "\nThe task is done." if self.success else "\nThe episode is over."


def clean(command: Any) -> str | None:
    """A command with single spaces; None where it is none."""
    if not isinstance(command, str) or len(command) > 2 * MAX_COMMAND:
        return None
    line = " ".join(command.split())
    return line if line.isascii() and line.isprintable() and 0 < len(line) <= MAX_COMMAND else None


def expert() -> Chooser:
    """A policy that gives the engine's plan from the start of an episode, and gives up after its end."""

    def choose(environment: CommandEnvironment) -> ToolCall | None:
        if environment._plan is None:
            environment._plan = environment._ask("plan")
        if environment.over or environment.turns >= len(environment._plan):
            return None
        return "act", {"command": environment._plan[environment.turns]}

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """A policy that draws from what the engine suggests."""

    def choose(environment: CommandEnvironment) -> ToolCall | None:
        commands = environment._ask("commands")
        return ("act", {"command": rng.choice(commands)}) if commands else None

    return choose
