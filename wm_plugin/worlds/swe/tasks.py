"""Tasks of the world swe: a package of `packages/`, a fault of `tasks.jsonl` that is planted in it, and its tests.

`benchmarks/swe_tasks.py` plants the faults and writes the file; each makes some of the package's tests fail.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from wm_plugin.untrusted import loads
from wm_plugin.worlds.kit.described import described
from wm_plugin.worlds.swe.judge import Check

PACKAGES = {
    "cache": 40,
    "ledger": 40,
    "records": 40,
    "slots": 40,
    "router": 20,
    "tasks": 20,
}  # how many tasks there are of each
ARROW = " => "


class Test(NamedTuple):
    """A test: what it says, in words, its lines, and whether it is among those that the repository comes with."""

    says: str
    lines: tuple[Check, ...]
    visible: bool

    @property
    def name(self) -> str:
        """Of its method; unittest runs tests in the order of their names."""
        return "test_" + re.sub(r"\W+", "_", self.says)


class Package(NamedTuple):
    """A package without a fault: its modules by their paths in it, and its tests."""

    name: str
    about: str
    modules: Mapping[str, str]
    tests: tuple[Test, ...]


class Task(NamedTuple):
    """A fault in a package. `fault`, `fix` and `wrong` are edits of `module`: a text that occurs once in it, and another.

    Attributes:
        kind: of fault.
        fault: plants the fault.
        wrong: instead of the fix; the package does not pass its tests then either.
        shown: the number of a test that fails.
        error: how the first line of it that fails ends, as Python says it.
        visible: the numbers of the visible tests that fail.
    """

    name: str
    package: str
    kind: str
    module: str
    fault: tuple[str, str]
    wrong: tuple[str, str]
    shown: int
    error: str
    visible: tuple[int, ...]

    @property
    def fix(self) -> tuple[str, str]:
        return self.fault[1], self.fault[0]

    def modules(self) -> dict[str, str]:
        """Return the package's modules with the fault."""
        modules = dict(package(self.package).modules)
        modules[self.module] = modules[self.module].replace(*self.fault)
        return modules

    def repository(self, *, hard: bool = False) -> dict[str, str]:
        """Return the files of the repository by their paths.

        Args:
            hard: without the tests that fail; else the one that is shown is among them.
        """
        of = package(self.package)
        chosen = [test for number, test in enumerate(of.tests) if self._is_there(number, test, hard)]
        readme = f"# {of.name}\n\n{of.about}\n\nThe tests run by `python3 -m unittest`.\n"
        files = {f"{of.name}/{path}": text for path, text in self.modules().items()}
        return {
            "README.md": readme,
            **files,
            "tests/__init__.py": "",
            f"tests/test_{of.name}.py": unittests(of, chosen),
        }

    def _is_there(self, number: int, test: Test, hard: bool) -> bool:
        return test.visible and number not in self.visible if hard else test.visible or number == self.shown

    def report(self, *, hard: bool = False) -> str:
        """Return what is reported of the fault.

        Args:
            hard: in words alone; else with lines that show it.
        """
        test = package(self.package).tests[self.shown]
        if hard:
            return f"It is expected that {test.says}. That does not hold any more in all cases."
        lines = _statements(test.lines)
        return (
            f"It is expected that {test.says}. This fails:\n\n"
            + "\n".join(f"    {line}" for line in lines)
            + f"\n\n{self.error}"
        )


@cache
def package(name: str) -> Package:
    """Return the package of a name in `PACKAGES`."""
    of = described(f"swe/packages/{name}.yaml")
    about = ast.get_docstring(ast.parse(of["files"]["__init__.py"])) or ""
    tests = [
        Test(says, tuple(_checks(text)), group == "visible")
        for group in ("visible", "hidden")
        for says, text in of[group].items()
    ]
    return Package(name, about, of["files"], tuple(tests))


def _checks(text: str) -> Iterable[Check]:
    for line in text.splitlines():
        code, _, wanted = line.partition(ARROW)
        yield Check(code, wanted.strip())


@cache
def tasks() -> dict[str, Task]:
    """Return all tasks by name."""
    found = {}
    for line in Path(__file__).with_name("tasks.jsonl").read_text(encoding="utf-8").splitlines():
        of = loads(line)
        of |= {key: tuple(of[key]) for key in ("fault", "wrong", "visible")}
        found[of["name"]] = Task(**of)
    return found


def unittests(of: Package, tests: Iterable[Test]) -> str:
    """Return a module of unittest's tests."""
    bodies = []
    for test in tests:
        bodies += ["", f"    def {test.name}(self):", *(f"        {line}" for line in _statements(test.lines))]
    text = "\n".join(bodies)
    names = ast.literal_eval(of.modules["__init__.py"].partition("__all__ = ")[2])
    words = set(re.findall(r"\w+", text))
    used = ", ".join(name for name in names if name in words)
    title = f"class {of.name.title()}Test(unittest.TestCase):"
    return f"import unittest\n\nfrom {of.name} import {used}\n\n\n{title}{text}\n"


def _statements(checks: Iterable[Check]) -> list[str]:
    """Return lines of a test as unittest has them."""
    lines = []
    for one in checks:
        if one.raises:
            lines += [f"with self.assertRaises({one.wanted}):", f"    {one.line}"]
        elif one.wanted == "None":
            lines.append(f"self.assertIsNone({one.line})")
        else:
            lines.append(f"self.assertEqual({one.line}, {one.wanted})" if one.wanted else one.line)
    return lines
