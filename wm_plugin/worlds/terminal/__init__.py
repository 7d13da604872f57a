"""A terminal: tasks at a bash in a sandbox, judged by the files in the end (ECHO, Qwen-AgentWorld's domain).

The shell keeps its state between commands; `kit.shell` says what is deterministic and how commands are limited. Hidden checks run
in a new shell with the files that the episode left; a file that the task does not name must be as it was. They appear in no
observation. Tasks come from seeds: `tasks.py` and `tasks.yaml`, our own.
"""

import random
from typing import Any

from wm_plugin.data.schema import Call, Trajectory
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import not_a_tool
from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import SPLITS as SPLITS
from wm_plugin.worlds.kit.rows import Rows, check_level, draws, row_number, rows_of, split_of, turn_limit, world_seed
from wm_plugin.worlds.kit.shell import Entry, LostError, Result, Shell, check
from wm_plugin.worlds.specs import SPECS, described_as
from wm_plugin.worlds.terminal.tasks import UNSEEN, Task, kinds, make

MAX_TURNS, MAX_COMMAND, MAX_CONTEXT = 12, 4000, 4000  # turns; characters of a command and of the hidden state
LEVELS = ("standard", "hard-1", "hard-2")
PROGRAMS = ("awk", "find", "git", "grep", "gzip", "make", "sed", "tar")
INSTRUCTION = SPECS["terminal"].instruction
_STOPPED = {
    "time": "stopped: it took too long",
    "output": "stopped: it printed too much",
    "processes": "stopped: it started too many processes",
    "memory": "stopped: it took too much memory",
    "ended": "the shell ended",
}
# How git runs in checks: no program that a repository's configuration or attributes name, which could end git and print for it.
_GIT_CHECKED = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "log.showSignature": "false",
    "status.showUntrackedFiles": "normal",
}
_GIT = f"export GIT_CONFIG_COUNT={len(_GIT_CHECKED)} " + " ".join(
    f"GIT_CONFIG_KEY_{n}={key} GIT_CONFIG_VALUE_{n}={value}" for n, (key, value) in enumerate(_GIT_CHECKED.items())
)
_ATTRIBUTES = Entry("file", 0o644, b"* !filter !diff !merge\n")  # of info/attributes, which are before all others
_NEW_SHELL = "; a new shell has the files and the folder, but no variables, functions or options"


@described_as("terminal")
class TerminalEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` commands; reward 1 if all hidden checks hold in the end.

    A call is effective when it ends with 0 and shows something new; it is invalid if what it prints begins with a complaint of
    bash: it cannot read the command, or finds no such program.
    """

    observer = "tool"
    refusals = ("Invalid: ", "bash: ")
    irreversible_when = "wm_plugin.worlds.terminal:is_irreversible"
    _lost = 0

    def __init__(self) -> None:
        self._shell: Shell | None = None
        self._task: Task | None = None
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._final: dict[str, Entry] | None = None  # the files when the episode is over
        self._judged = (-1, False)  # after how many turns, and whether all checks held

    def reset(self, task: str, task_seed: int, max_turns: int | None = None, **_: Any) -> str:
        """Open a new shell.

        Args:
            task: a kind of `tasks.kinds()`, or two joined by "+".
            task_seed: the files and what is asked follow from it.
        """
        made = make(task, row_number(task_seed, "task_seed", "terminal"))
        turns = turn_limit(max_turns, MAX_TURNS)
        check(*PROGRAMS)
        self._close()
        self._begin()
        self._task, self.max_turns = made, turns
        try:
            self._shell = Shell(made.files)
            for command in made.setup:
                self._shell.run(f"({command})")
        except LostError as error:
            self._lose()
            return f"The shell was lost ({error})."
        return "The shell is open."

    def run(self, command: str) -> str:
        if refusal := self._take_turn(MAX_COMMAND, command=command):
            return self._closing(refusal)
        if not command.strip():
            return self._closing(self._refuse("command is empty"))
        assert self._shell is not None
        try:
            ran = self._shell.run(command)
        except LostError as error:
            self._lose()
            return self._closing(self._observe(f"The shell was lost ({error})."))
        invalid = ran.output.startswith(self.refusals)
        self._invalid += invalid
        self._note(ran.code == 0 and not invalid, command, ran.output)
        return self._closing(self._observe(written(ran)))

    def get_reward(self) -> float:
        return float(self.success)

    @property
    def success(self) -> bool:
        """Whether all checks hold now. Nothing is done before the first turn, and nothing is asked that is done already."""
        if not self.turns or self._lost or self._task is None:
            return False
        if self._judged[0] != self.turns:
            try:
                self._judged = self.turns, self._holds(self._task)
            except LostError:
                self._lose()
                return False
        return self._judged[1]

    @not_a_tool
    def world_context(self) -> str:
        """The files before the first turn."""
        parts = []
        for path, entry in self._files().items():
            what = {"folder": "/", "link": f" -> {entry.content.decode(errors='replace')}"}.get(entry.kind, "")
            body = "" if what else f"\n{entry.content.decode(errors='replace')}"
            if not path.partition("/.git/")[1]:
                parts.append(f"{entry.mode:o} {path}{what}{body}".rstrip("\n"))
        return "\n".join(parts).replace("\0", "\ufffd")[:MAX_CONTEXT]

    def _files(self) -> dict[str, Entry]:
        if self._final is not None or self._shell is None:
            return self._final or {}
        return self._shell.files()

    def _holds(self, task: Task) -> bool:
        files = self._files()
        for path, content in task.kept().items():
            wanted = content if isinstance(content, Entry) else Entry("file", content=content.encode())
            if (found := files.get(path)) is None or (found.kind, found.content) != (wanted.kind, wanted.content):
                return False
        try:
            with Shell(files | _attributes(files)) as shell:
                shell.run(_GIT)
                for command, expected in task.checks:
                    ran = shell.run(command)  # what a file of git's runs may print what is expected, and end the shell
                    if ran.failure is not None or ran.output.rstrip("\n") != expected:
                        return False
                return True
        except UserError:  # a name that cannot be written again
            return False

    def _closing(self, text: str) -> str:
        """Close the shell after the last turn."""
        if self.over:
            self._close()
        return text

    def _close(self) -> None:
        if self._shell is not None:
            self._final = self._shell.files() if not self._lost else {}
            self._shell.close()
            self._shell = None


def _attributes(files: dict[str, Entry]) -> dict[str, Entry]:
    """Return the attributes of all repositories, wherever their folders are."""
    folders = {path.removesuffix("objects") for path in files if path.rpartition("/")[2] == "objects"}
    folders = {folder for folder in folders if files.keys() & {f"{folder}HEAD", f"{folder}config"}}
    return {f"{folder}info/attributes": _ATTRIBUTES for folder in folders}


def written(ran: Result) -> str:
    """What is observed of a command: its outputs, its exit code, and what became of the shell."""
    text = ran.output if ran.output.endswith("\n") or not ran.output else f"{ran.output}\n"
    stopped = f", {_STOPPED[ran.failure]}" if ran.failure is not None else ""
    return f"{text}[exit code {ran.code}{stopped}{_NEW_SHELL if ran.restarted else ''}]"


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    split: str | None = None,
    max_turns: int = MAX_TURNS,
) -> Rows:
    """Make rows with the columns `prompt`, `task`, `task_seed` and `level`.

    Training rows and seen ones have tasks of the same families, from other seeds; unseen rows, which are the held-out ones, have
    those of other families.
    """
    check_level(level, LEVELS, "terminal")
    split = split_of(split, held_out, "terminal")
    rng = draws(seed, split)
    of_level = [name for name, kind in kinds().items() if (kind.family in UNSEEN) == (split == "unseen")]
    of_level = [name for name in of_level if level == "hard-2" or kinds()[name].level == level]
    tasks: Rows = []
    for _ in range(count):
        task = rng.choice(of_level)
        if level == "hard-2":
            others = [name for name in of_level if kinds()[name].family != kinds()[task].family]
            task = f"{task}+{rng.choice(others)}"
        task_seed = world_seed(rng, split != "train")
        words = {"task": make(task, task_seed).text}
        tasks.append({"words": words, "task": task, "task_seed": task_seed, "level": level})
    return rows_of(INSTRUCTION, tasks, max_turns, MAX_TURNS, "command")


def expert() -> Chooser:
    """Return a policy that runs the commands of the reference solution and stops."""

    def choose(environment: TerminalEnvironment) -> ToolCall | None:
        commands = environment._task.solution if environment._task is not None else []
        return ("run", {"command": commands[environment.turns]}) if environment.turns < len(commands) else None

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that looks around, makes mistakes, and runs commands of the solution and of a wrong one, in any order."""

    def choose(environment: TerminalEnvironment) -> ToolCall:
        task = environment._task
        assert task is not None
        path = rng.choice(sorted(task.files) or ["nothing"])
        look = [
            f"cat {path!r}",
            f"wc -l {path!r}",
            "ls -l",
            f"grep -c e {path!r}",
            "pwd; ls *",
            f"echo 'open {path}",
            f"cd {path}",
        ]
        return "run", {"command": rng.choice([*look, *task.solution, *task.wrong])}

    return choose


DELETES = frozenset(("rm", "rmdir", "unlink", "shred", "truncate", "-delete", "clean", "reset", "prune"))
OVERWRITES = frozenset(
    ("mv", "cp", "dd", "tee", "ln", "install", "chmod", "-i", "checkout", "restore", "rebase", "--force", ">")
)


def effects(command: str) -> set[str]:
    """Return what a command may do that nothing takes back: "deletes", "overwrites". It goes by words, quoted ones too."""
    for sign in (">>", "2>&1", ">&2", ">/dev/null", "> /dev/null"):
        command = command.replace(sign, " ")
    for sign in ";|&()`\n":
        command = command.replace(sign, " ")
    words = set(command.replace(">", " > ").split())
    return {name for name, what in (("deletes", DELETES), ("overwrites", OVERWRITES)) if words & what}


def is_irreversible(call: Call, trajectory: Trajectory) -> bool:  # noqa: ARG001 - the form of `verify.when`
    """Whether a call deletes or overwrites."""
    command = call.arguments.get("command") if isinstance(call.arguments, dict) else None
    return isinstance(command, str) and bool(effects(command))
