"""ScienceWorld (Wang et al. 2022): elementary science in a simulated house, in text.

The simulator is a Java program; each environment has its own virtual machine for all its episodes. The simulator's `step` is
called directly: the Python package's lists every valid action each time and is several times slower. The virtual machine gives
all objects the same identity hash: otherwise sets of objects would have another order each time, and few tasks would replay.
"""

import os
import shutil
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.worlds.kit.commands import CommandEnvironment, expert, reply, tidy, wanderer
from wm_plugin.worlds.kit.described import described
from wm_plugin.worlds.kit.rows import (
    KINDS,
    SPLITS,
    Rows,
    check_count,
    check_level,
    draws,
    row_number,
    rows_of,
    split_of,
    turn_limit,
    unknown,
)
from wm_plugin.worlds.specs import SPECS, described_as

MAX_TURNS = 100
HEAP = "1g"  # maximum of the virtual machine; WM_PLUGIN_SCIENCEWORLD_HEAP overrides it
# How many variations of a task are for training, development and testing, in this order.
TASKS = {task: tuple(sizes) for task, sizes in described("scienceworld.yaml")["tasks"].items()}
_SHORT = [task for task in TASKS if task.startswith(("find-", "lifespan-", "chemistry-"))]  # short gold paths
LEVELS = {"standard": _SHORT, "hard": [task for task in TASKS if task not in _SHORT]}
ROOMS: list[str] = described("scienceworld.yaml")["rooms"]
NOT_UNDERSTOOD = ("No known action matches that input", "Unknown action")
INSTRUCTION = SPECS["scienceworld"].instruction
JAVA = [
    "-XX:+UseSerialGC",
    "-Xmn256m",  # the young generation: a quarter less memory than by default, and faster
    "-XX:-UsePerfData",  # otherwise a killed machine leaves a file in /tmp
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # the same for all objects
]

__all__ = ["INSTRUCTION", "LEVELS", "SPLITS", "TASKS", "ScienceworldEnvironment", "dataset_rows", "expert", "wanderer"]


@described_as("scienceworld")
class ScienceworldEnvironment(CommandEnvironment):
    """One episode: at most `max_turns` commands; the reward is the task's own score in [0, 1], and success is a full one.

    A command is effective when it changes the view, the inventory or the score, and invalid when the simulator does not
    understand it.
    """

    refusals = (*CommandEnvironment.refusals, *NOT_UNDERSTOOD)
    _engine = "wm_plugin.worlds.scienceworld:Engine"

    def reset(self, task: str, variation: int, max_turns: int | None = None, **_: Any) -> str:
        """Start a variation of a task of `TASKS`; returns the task's description and the first room."""
        return self._start(turn_limit(max_turns, MAX_TURNS), task, variation)

    def act(self, command: str) -> str:
        return self._act(command)


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    split: str | None = None,
    max_turns: int = MAX_TURNS,
) -> Rows:
    """Make rows for a trainer; `reset` appends the task and the first room to the prompt.

    Args:
        held_out: the same as the split unseen.
        split: ScienceWorld's own train, development (seen) or test (unseen) variations; each occurs once. Papers on agents use
            these two names; ScienceWorld itself only says that the variations differ.
    """
    check_level(level, LEVELS, "ScienceWorld")
    part = split_of(split, held_out, "ScienceWorld")
    place = SPLITS.index(part)
    tasks = []
    for task in LEVELS[level]:
        first = sum(TASKS[task][:place])
        numbers = range(first, first + TASKS[task][place])
        tasks += [{"level": level, "task": task, "variation": number} for number in numbers]
    check_count(count, len(tasks), f"ScienceWorld has {{}} {KINDS[part]} rows of the level {level!r}")
    draws(seed, part).shuffle(tasks)
    return rows_of(INSTRUCTION, tasks[:count], max_turns, MAX_TURNS, "command")


class Engine:
    """The simulator, in the engine's process, which starts the virtual machine."""

    def __init__(self) -> None:
        try:
            from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
            from scienceworld.constants import BASEPATH, JAR_PATH
        except ImportError:
            raise MissingExtraError("This environment", "scienceworld", "scienceworld") from None
        port, token, self._java = launch_gateway(
            classpath=JAR_PATH,
            javaopts=[f"-Xmx{os.environ.get('WM_PLUGIN_SCIENCEWORLD_HEAP') or HEAP}", *JAVA],
            java_path=find_java(),
            die_on_exit=True,
            enable_auth=True,
            cwd=BASEPATH,
            return_proc=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_field=True)
        gateway = JavaGateway(gateway_parameters=parameters)
        self.server = gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
        self._episode: tuple[str, int] = ("", 0)
        self._told: tuple[tuple[str, int], str] = (("", 0), "")  # an episode and its context
        self._view: Any = None

    def start(self, task: str, variation: int) -> str:
        if not isinstance(task, str) or task not in TASKS:
            raise UserError(f"ScienceWorld: a row's column `task` is {unknown(task, TASKS)}")
        self._episode = (task, row_number(variation, "variation", "ScienceWorld", sum(TASKS[task]) - 1))
        self._load()
        return f"{self.server.getTaskDescription()}\n{tidy(self._view[0], str.rstrip)}"

    def step(self, command: str) -> dict[str, Any]:
        text = str(self.server.step(command))
        score, completed = float(self.server.getScore()), bool(self.server.getCompleted())
        before, self._view = self._view, self._look(score)
        valid, changed = not text.startswith(NOT_UNDERSTOOD), self._view != before
        return reply(tidy(text, str.rstrip), score, score >= 1.0, completed or score < 0, valid, changed)

    def context(self) -> str:
        """Describe the task's subgoals, and what is in each room at the start, closed things as closed.

        Each room is shown in a game of its own, into which the agent teleports; then the episode is loaded again. It is slow, so
        the last text is kept: rollouts of one task follow each other.
        """
        if self._told[0] == self._episode:
            return self._told[1]
        goals = "\n".join(line.strip("- \t\r") and line for line in str(self.server.getGoalProgressStr()).split("\n"))
        parts = ["Subgoals:\n" + tidy(goals, lambda line: " ".join(line.split()))]  # without rules
        for room in ROOMS:
            self.server.load(*self._episode, "teleportAction", False)
            if str(self.server.step(f"teleport to {room}")).startswith("You teleport"):
                parts.append(tidy(str(self.server.freeActionLook()), str.rstrip))
        self._load()
        self._told = self._episode, "\n\n".join(parts)
        return self._told[1]

    def plan(self) -> list[str]:
        self.server.load(*self._episode, "", True)
        path = list(self.server.getGoldActionSequence())
        self._load()
        return path

    def commands(self) -> list[str]:
        valid = sorted(self.server.getValidActionObjectCombinations())
        return [command for command in valid if not command.startswith(("focus", "reset"))]

    def splits(self, tasks: list[str]) -> list[list[int]]:
        """Count the simulator's variations for training, development and testing."""
        counts = []
        for task in tasks:
            self.server.load(task, 0, "", False)
            parts = (self.server.getVariationsTrain(), self.server.getVariationsDev(), self.server.getVariationsTest())
            counts.append([len(list(part)) for part in parts])
        return counts

    def machine(self) -> int:
        """Return the process id of the virtual machine."""
        return int(self._java.pid)

    def close(self) -> None:
        self._java.kill()
        self._java.wait()

    def _load(self) -> None:
        self.server.load(*self._episode, "", False)  # the simulator's `reset` does no more than load again
        self._view = self._look(0.0)

    def _look(self, score: float) -> tuple[str, str, float]:
        return str(self.server.freeActionLook()), str(self.server.freeActionInventory()), score


def find_java() -> str:
    """Return the path of the program java, from JAVA_HOME or the PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if path is None:
        where = f"in {home}/bin (JAVA_HOME)" if home else "on the path"
        raise UserError(f"ScienceWorld needs Java, and there is none {where}: install a JRE, e.g. default-jre-headless")
    return path
