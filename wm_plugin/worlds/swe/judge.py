"""Hidden tests of a package, run beside nothing but its modules, by a process that cannot know the verdict.

A test is lines of Python. A process in `runtime.sandbox` runs them and writes what each one gives, as `repr` has it, or the name
of the error that it raises. What they should give is compared outside and never enters the sandbox, so that neither a changed
unittest, an exit with 0, a forged "OK", nor an object that equals everything helps: only right values do.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.runtime import sandbox
from wm_plugin.untrusted import loads

PYTHON = "/usr/bin/python3"  # the one of the shell
TIMEOUT = 20.0  # seconds, also on a busy host
LIMITS = {"RLIMIT_CPU": 1, "RLIMIT_AS": 512 << 20, "RLIMIT_FSIZE": 1 << 18, "RLIMIT_NOFILE": 32, "RLIMIT_CORE": 0}
LONGEST = 2000  # characters of a value that are compared
NOTHING = ""  # of a line that is to raise no error, whatever it gives
# Of every line: "=" and its value, or "!" and the name of the error. What the package prints goes nowhere.
PROBE = f"""
import io, json, os, resource, sys
for name, most in {LIMITS}.items():
    resource.setrlimit(getattr(resource, name), (most, most))
tests = json.loads(sys.stdin.read())
verdict = os.fdopen(os.dup(1), "w")
class Nowhere(io.TextIOBase):
    def write(self, text):
        return len(text)
sys.stdin, sys.stdout, sys.stderr = io.StringIO(), Nowhere(), Nowhere()
for stream in (0, 1, 2):
    os.close(stream)
sys.path.insert(0, "/repo")
for test in tests["tests"]:
    for name in [name for name in sys.modules if name.partition(".")[0] == tests["package"]]:
        del sys.modules[name]  # what a test leaves behind is no other one's
    found, names = [], {{}}
    for line in ["from " + tests["package"] + " import *", *test]:
        try:
            try:
                code, gives = compile(line, "test", "eval"), True
            except SyntaxError:
                code, gives = compile(line, "test", "exec"), False
            value = eval(code, names)
            found.append("=" + (repr(value) if gives else "")[:{LONGEST}])
        except BaseException as error:
            found.append("!" + type(error).__name__)
    verdict.write(json.dumps(found[1:]) + "\\n")
    verdict.flush()
"""


class Check(NamedTuple):
    """A line of a test, and the value that it is to give, the error that it is to raise, or `NOTHING`."""

    line: str
    wanted: str

    @property
    def raises(self) -> bool:
        """Whether the line is to raise an error."""
        return self.wanted.isidentifier() and self.wanted not in ("None", "True", "False")

    def holds(self, found: str) -> bool:
        """Return whether a process found, as the probe writes it, what is wanted."""
        kind, text = found[:1], found[1:]
        if self.raises:
            return kind == "!" and text == self.wanted
        return kind == "=" and (self.wanted in (NOTHING, text) or _equal(text, self.wanted))


def _equal(text: str, wanted: str) -> bool:
    """Return whether a value equals another one that is written otherwise, such as a mapping in another order."""
    if len(text) >= LONGEST:
        return False
    try:
        return bool(ast.literal_eval(text) == ast.literal_eval(wanted))
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError, OverflowError):
        return False


def check() -> None:
    """Raise a UserError if the system's Python or bubblewrap is not installed, or may not run."""
    if not Path(PYTHON).exists():
        raise UserError("the world swe needs the system's Python: install the system package python3")
    sandbox.check("swe runs", [PYTHON, "-I", "-S", "-c", "pass"])


def run(package: str, sources: Mapping[str, str | bytes], tests: Sequence[Sequence[Check]]) -> list[list[str]]:
    """Return what the lines of each test give; fewer tests, or lines of a test, where the process ended before.

    Args:
        sources: the package's modules by their paths in it.

    Raises:
        OSError: no process can be started.
    """
    lines = {"package": package, "tests": [[check.line for check in test] for test in tests]}
    files = {
        f"/repo/{package}/{path}": text.encode() if isinstance(text, str) else text for path, text in sources.items()
    }
    process = sandbox.run(
        [PYTHON, "-I", "-S", "-B", "/probe.py"],
        stdin=json.dumps(lines).encode(),
        files={"/probe.py": PROBE.encode(), **files},
        timeout=TIMEOUT,
        most=LIMITS["RLIMIT_FSIZE"],
    )
    found = []
    for line in process.output.decode(errors="replace").splitlines()[: len(tests)]:
        try:
            values = loads(line)
        except ValueError:
            break
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            break
        found.append(values)
    return found


def failures(found: Sequence[Sequence[str]], tests: Sequence[Sequence[Check]]) -> list[int]:
    """Return the numbers of the tests that fail."""
    return [number for number, test in enumerate(tests) if first_failure(found, test, number) is not None]


def first_failure(found: Sequence[Sequence[str]], test: Sequence[Check], number: int) -> int | None:
    """Return the first line of the test of this number that does not hold, or None."""
    values = found[number] if number < len(found) else []
    for place, one in enumerate(test):
        if place >= len(values) or not one.holds(values[place]):
            return place
    return None
