"""forth-lang: define a word of Forth that passes hidden tests (ECHO: predictable but complex tools).

The last submission counts. Observations are messages of the compiler and the output of any line of Forth that is run with the
code. The hidden tests run when the reward is computed and appear in no observation. Programs run in `runtime.sandbox`, which
needs the system packages gforth and bubblewrap. Problems, tests and solutions are our own: a few of each level in problems.yaml,
and hundreds in generated.jsonl, which `benchmarks/forth_problems.py` writes.
"""

import random
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads
from wm_plugin.worlds.forth import machine as forth_machine
from wm_plugin.worlds.forth.machine import LostError
from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.described import described
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import Rows, check_count, check_level, draws, repeated, rows_of, turn_limit, unknown
from wm_plugin.worlds.specs import SPECS, described_as

MAX_TURNS = 12
MAX_CODE, MAX_QUERY = 10_000, 200  # characters
HELD_OUT = "6"  # the held-out level
LEVELS = ("standard", "0", "1", "2", "3", "4", "5", HELD_OUT)  # standard: all levels of a split
INSTRUCTION = SPECS["forth"].instruction


class Problem(NamedTuple):
    """A task. Pairs are a line of Forth and its output; `wrong` is code that fails some of `tests`."""

    name: str
    level: str
    task: str
    example: tuple[str, str]
    tests: list[tuple[str, str]]
    solution: str
    wrong: str


@described_as("forth")
class ForthEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` tool calls; the reward is the share of hidden tests that the last submission passes.

    `success` means all of them. Nothing is irreversible: code can be submitted again and again. A call is effective when it
    submits other code than before, or is new and ends without an error.
    """

    observer = "tool"
    _problem: Problem | None = None
    _lost = 0

    def _begin(self) -> None:
        super()._begin()
        self._submissions = self._compile_errors = 0
        self._code: str | None = None
        self._last_test: tuple[str, float] | None = None  # the last code that was tested, and its share

    def reset(self, problem: str, max_turns: int | None = None, **_: Any) -> str:
        """Begin a problem.

        Args:
            problem: its name, a key of `problems()`.
        """
        if not isinstance(problem, str) or problem not in problems():
            raise UserError(f"forth's column `problem` is {unknown(problem, problems())}")
        forth_machine.check()
        self._problem, self.max_turns = problems()[problem], turn_limit(max_turns, MAX_TURNS)
        self._begin()
        return "No code is submitted yet."

    def submit_code(self, code: str) -> str:
        if refusal := self._take_turn(MAX_CODE, code=code):
            return refusal
        self._effective += code != self._code
        self._code = code
        self._submissions += 1
        return self._run("Compiled.", code)

    def run_code(self, line: str) -> str:
        if refusal := self._take_turn(MAX_CODE, line=line):
            return refusal
        if self._code is None:
            return self._refuse("no code is submitted yet")
        return self._run("Nothing is printed.", self._code, line)

    def lookup_doc(self, query: str) -> str:
        if refusal := self._take_turn(MAX_QUERY, query=query):
            return refusal
        if not query.strip():
            return self._refuse("query is empty")
        text, has_entry = forth_machine.look_up(query)
        self._note(has_entry, "lookup_doc", *query.lower().split())
        return self._observe(text)

    def get_reward(self) -> float:
        return self._share()

    @property
    def success(self) -> bool:
        return self._share() == 1.0

    def _share(self) -> float:
        """Return the share of hidden tests that the last submission passes."""
        if self._lost or self._code is None or self._problem is None:
            return 0.0
        if self._last_test is None or self._last_test[0] != self._code:
            try:
                outputs = forth_machine.test(self._code, [line for line, _ in self._problem.tests])
            except LostError:
                self._lose()
                return 0.0
            passes = sum(
                printed == expected for printed, (_, expected) in zip(outputs, self._problem.tests, strict=True)
            )
            self._last_test = self._code, passes / len(outputs)
        return self._last_test[1]

    @property
    def metrics(self) -> dict[str, int]:
        """The counts, the submissions, and how many of them did not compile."""
        return super().metrics | {"submissions": self._submissions, "compile_errors": self._compile_errors}

    def _run(self, silent: str, *sources: str) -> str:
        try:
            result = forth_machine.execute(*sources)
        except LostError:
            self._lose()
            return self._observe("gforth could not be started.")
        if len(sources) == 2:
            self._note(result.ended, *sources)
        else:
            self._compile_errors += not result.ended
        return self._observe(result.text or (silent if result.ended else "Stopped by an error."))


@cache
def problems() -> dict[str, Problem]:
    """Return all problems by name, lower levels first."""
    generated = Path(__file__).with_name("generated.jsonl").read_text().splitlines()
    found = []
    for entry in [*described("forth/problems.yaml"), *map(loads, generated)]:
        pairs = {"example": tuple(entry["example"]), "tests": [(line, printed) for line, printed in entry["tests"]]}
        found.append(Problem(**entry | pairs | {"level": str(entry["level"])}))
    return {problem.name: problem for problem in sorted(found, key=lambda problem: problem.level)}


def dataset_rows(
    count: int, seed: int = 0, held_out: bool = False, level: str = "standard", max_turns: int = MAX_TURNS
) -> Rows:
    """Make rows with the columns `prompt`, `problem` and `level`.

    Level 6 is held out, and each of its problems occurs once; the others are for training, repeated as often as `count` needs.
    """
    check_level(level, LEVELS, "Forth")
    if level != "standard" and (level == HELD_OUT) != held_out:
        asked = level == HELD_OUT
        raise UserError(f"forth's level {HELD_OUT} is the held-out one; write held_out={asked} for level {level}")
    names = [
        one.name
        for one in problems().values()
        if (one.level == HELD_OUT) == held_out and level in ("standard", one.level)
    ]
    if held_out:
        check_count(count, len(names), "forth has {} held-out problems")
    tasks = [_task(problems()[name]) for name in repeated(draws(seed, held_out), names, count)]
    return rows_of(INSTRUCTION, tasks, max_turns, MAX_TURNS)


def _task(problem: Problem) -> dict[str, Any]:
    line, printed = problem.example
    task = f"{problem.task} For example, `{line}` prints `{printed}`."
    return {"words": {"task": task}, "problem": problem.name, "level": problem.level}


def expert() -> Chooser:
    """Return a policy that looks up a word of the solution, submits the solution, runs the example and stops."""

    def choose(environment: ForthEnvironment) -> ToolCall | None:
        problem = environment._problem
        assert problem is not None
        if environment._code != problem.solution:
            if not environment.turns:
                return "lookup_doc", {"query": problem.solution.split()[2]}
            return "submit_code", {"code": problem.solution}
        if (problem.solution, problem.example[0]) in environment._calls:
            return None
        return "run_code", {"line": problem.example[0]}

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that submits solutions with changed words, runs lines and looks words up."""

    def choose(environment: ForthEnvironment) -> ToolCall:
        problem = environment._problem
        assert problem is not None
        words = problem.solution.split()
        kind = rng.choice(["submit", "submit", "run", "run", "look"])
        if kind == "look":
            return "lookup_doc", {"query": " ".join(rng.sample(words, min(len(words), rng.choice([1, 1, 2]))))}
        if kind == "run" and environment._code is not None:
            line = rng.choice([problem.example, *problem.tests])[0] if rng.random() < 0.7 else f"{rng.choice(words)} .s"
            return "run_code", {"line": line}
        code = rng.choice([problem.solution, problem.wrong])
        if rng.random() < 0.5:
            place = rng.randrange(2, max(3, len(words) - 1))
            instead = rng.choice([[], ["dup"], ["swap"], ["1+"], [rng.choice(words)]])
            code = " ".join([*words[:place], *instead, *words[place + 1 :]])
        return "submit_code", {"code": code}

    return choose
