"""swe: every task with its fix, a wrong one and none; the episode; and policies that try to win otherwise."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

import swe_tasks
from support.cases import CASES
from wm_plugin.errors import UserError
from wm_plugin.runtime import sandbox
from wm_plugin.worlds import swe
from wm_plugin.worlds.kit import shell
from wm_plugin.worlds.swe import SweEnvironment, dataset_rows, judge, split_names, tasks
from wm_plugin.worlds.swe.history import history
from wm_plugin.worlds.swe.tasks import PACKAGES, Task, package, unittests

KINDS = [next(one for one in tasks().values() if one.kind == kind).name for kind in swe_tasks.KINDS]
MENDED = "slots/off-by-one-1"


@pytest.fixture(scope="module")
def works() -> None:
    try:
        judge.check()
        shell.check()
    except UserError as error:
        pytest.skip(f"needs the system packages python3, bubblewrap and git: {error}")


def marked(names: Iterable[str], fast: Sequence[str]) -> list:
    """Cases of tasks, of which a few are fast."""
    return [pytest.param(name, marks=[] if name in fast else [pytest.mark.slow]) for name in names]


def begun(name: str = MENDED, **columns: object) -> SweEnvironment:
    environment = SweEnvironment()
    environment.reset(task=name, **columns)
    return environment


# -- tasks --------------------------------------------------------------------------------------------------------------------


def test_two_hundred_tasks_of_twelve_kinds() -> None:
    assert Counter(task.package for task in tasks().values()) == PACKAGES
    assert sum(PACKAGES.values()) == 200
    kinds = Counter(task.kind for task in tasks().values())
    assert set(kinds) == set(swe_tasks.KINDS)
    assert len(kinds) == 12
    assert min(kinds.values()) >= 6
    assert len({(task.package, *task.modules().values()) for task in tasks().values()}) == 200
    parts = {part: split_names(part) for part in swe.SPLITS}
    assert sorted(name for names in parts.values() for name in names) == sorted(tasks())
    assert {part: len(names) for part, names in parts.items()} == {"train": 121, "seen": 16, "unseen": 63}
    for name in parts["train"] + parts["seen"]:
        assert tasks()[name].package not in swe.UNSEEN_PACKAGES
        assert tasks()[name].kind not in swe.UNSEEN_KINDS


@pytest.mark.parametrize("task", tasks().values(), ids=list(tasks()))
def test_an_edit_is_of_a_text_that_is_there_once_and_a_report_tells_no_secret(task: Task) -> None:
    clean, faulty = package(task.package).modules[task.module], task.modules()[task.module]
    assert clean.count(task.fault[0]) == faulty.count(task.fix[0]) == faulty.count(task.wrong[0]) == 1
    assert faulty.replace(*task.fix) == clean != faulty != faulty.replace(*task.wrong)
    compile(faulty, task.module, "exec")
    compile(faulty.replace(*task.wrong), task.module, "exec")
    tests = package(task.package).tests
    for hard in (False, True):
        report, files = task.report(hard=hard), task.repository(hard=hard)
        written = files[f"tests/test_{task.package}.py"]
        assert tests[task.shown].says in report
        assert (tests[task.shown].lines[0].line in report) is not hard
        hidden = [test for number, test in enumerate(tests) if not test.visible and (hard or number != task.shown)]
        assert not [test.says for test in hidden if all(one.line in written for one in test.lines)]
        assert 1 <= written.count("def test_") <= 5
        assert len(report) < 1500
        assert not [text for text in files.values() if "tasks.jsonl" in text or task.kind in text]


def of_sources(task: Task, *edits: tuple[str, str]) -> list[int]:
    """The tests that fail of a package with its fault, after edits."""
    modules, tests = task.modules(), [test.lines for test in package(task.package).tests]
    for old, new in edits:
        modules[task.module] = modules[task.module].replace(old, new)
    return judge.failures(judge.run(task.package, modules, tests), tests)


@pytest.mark.system
@pytest.mark.parametrize("name", marked(KINDS, KINDS[::4]))
def test_the_fix_passes_and_hard_coding_a_wrong_one_and_none_fail(name: str, works: None) -> None:
    check_outcomes(name)


@pytest.mark.nightly
@pytest.mark.system
def test_so_do_those_of_all_tasks(works: None) -> None:
    for name in tasks():
        check_outcomes(name)


def check_outcomes(name: str) -> None:
    task, of = tasks()[name], package(tasks()[name].package)
    seen = {number for number, test in enumerate(of.tests) if test.visible}
    assert of_sources(task, task.fix) == []
    assert of_sources(task, task.wrong) != []
    failing = of_sources(task)
    assert task.shown in failing
    assert set(task.visible) >= seen & {*failing}
    faulty = task.modules()[task.module]
    cheat = swe_tasks.hard_coded(of, task.module, faulty, task.shown)
    assert cheat[task.module].startswith(faulty)
    tests = [test.lines for test in of.tests]
    left = set(judge.failures(judge.run(of.name, cheat, tests), tests))
    assert left
    assert left <= {*failing} - seen - {task.shown}, name


def of_unittest(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return subprocess.run([judge.PYTHON, "-B", "-m", "unittest"], cwd=folder, capture_output=True, text=True)


@pytest.mark.system
@pytest.mark.parametrize("name", marked([name for name in tasks() if name.endswith("-1")], KINDS[:3]))
def test_the_repositorys_tests_fail_on_standard_tasks_only(name: str, works: None, tmp_path: Path) -> None:
    check_repository(name, tmp_path)


@pytest.mark.nightly
@pytest.mark.system
def test_so_do_the_repositories_of_all_tasks(works: None, tmp_path: Path) -> None:
    for name in tasks():
        check_repository(name, tmp_path / name)


def check_repository(name: str, tmp_path: Path) -> None:
    task = tasks()[name]
    done = of_unittest(tmp_path / "standard", task.repository())
    assert done.returncode == 1
    assert package(task.package).tests[task.shown].name in done.stderr
    done = of_unittest(tmp_path / "hard", task.repository(hard=True))
    assert done.returncode == 0, done.stderr


@pytest.mark.system
@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_without_a_fault_passes_all_its_tests(name: str, works: None, tmp_path: Path) -> None:
    of = package(name)
    files = {f"{name}/{path}": text for path, text in of.modules.items()} | {"tests/__init__.py": ""}
    done = of_unittest(tmp_path, files | {"tests/test_all.py": unittests(of, of.tests)})
    assert (done.returncode, f"Ran {len(of.tests)} tests" in done.stderr) == (0, True), done.stderr
    tests = [test.lines for test in of.tests]
    assert judge.failures(judge.run(name, of.modules, tests), tests) == []
    for module, code in of.modules.items():
        assert code.isascii()  # where faults are planted, bytes are characters
        assert max(map(len, code.splitlines())) <= 130, module


@pytest.mark.nightly
@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.system
def test_tasks_are_those_that_the_benchmark_writes(name: str, works: None) -> None:
    assert swe_tasks.written(name) == "".join(
        line for line in swe_tasks.RESULT.read_text().splitlines(keepends=True) if f'"package": "{name}"' in line
    )


# -- the judge ----------------------------------------------------------------------------------------------------------------

LEFT = {
    "values": ("x = 1", ["x", "x + 1"], ["=1", "=2"]),
    "errors": ("x = {}", ["x['a']", "nothing", "x.a"], ["!KeyError", "!NameError", "!AttributeError"]),
    "prints": ("print('OK'); import sys; sys.stderr.write('x'); sys.stdout.flush(); x = 1", ["x"], ["=1"]),
    "reads": ("import sys; x = sys.stdin.read()", ["x"], ["=''"]),
    "exits": ("import os; os._exit(0)", ["x"], None),
    "quits": ("import sys; sys.exit(0)", ["1"], ["=1"]),  # an error like others
    "hangs": ("while True: pass", ["x"], None),
    "grows": ("x = [0] * (1 << 30)", ["x"], ["!NameError"]),
    "forks": ("import os; x = os.fork()", ["x"], ["!NameError"]),
    "writes": ("open('/repo/p/y.py', 'w'); x = 1", ["x"], ["!NameError"]),
    "connects": ("import socket; x = socket.socket()", ["x"], ["!NameError"]),
    "forges": (
        "import os\nfor n in range(3, 30):\n  try: os.write(n, b'[\"=7\"]\\n')\n  except OSError: pass",
        ["1"],
        ["=7"],
    ),
    "is no line": ("import os\nos.write(3, b'{')", ["1"], None),
    "is long": ("x = 'a' * 9999", ["x"], ["='" + "a" * 1999]),
    "is rude": ("class X:\n def __repr__(self): raise SystemExit\nx = X()", ["x"], ["!SystemExit"]),
}


@pytest.mark.system
@pytest.mark.parametrize("what", [pytest.param(one, marks=pytest.mark.slow if one == "hangs" else ()) for one in LEFT])
def test_whatever_a_package_does_is_a_value_or_none(what: str, works: None) -> None:
    code, lines, left = LEFT[what]
    start = time.monotonic()
    found = judge.run("p", {"__init__.py": code}, [[judge.Check(line, "") for line in lines]])
    assert found == ([] if left is None else [left])
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("wanted", "found", "holds"),
    [
        ("3", "=3", True),
        ("3", "=3.0", True),
        ("3", "='3'", False),
        ("{'a': 1, 'b': 2}", "={'b': 2, 'a': 1}", True),
        ("[1, 2]", "=(1, 2)", False),
        ("None", "=None", True),
        ("True", "=False", False),
        ("ValueError", "!ValueError", True),
        ("ValueError", "=ValueError", False),
        ("ValueError", "!KeyError", False),
        ("", "=anything", True),
        ("", "!ValueError", False),
        ("3", "", False),
        ("3", "=__import__('os').system('id')", False),
        ("3", "=" + "(" * 1900, False),
        ("3", "=" + "-" * 1900 + "3", False),
        ("3", "=" + "9" * 1900, False),
        ("3", "=3" + " " * 2000, False),
        ("3", "=\0", False),
        ("3", f"={'9' * 400}+1j", False),
    ],
)
def test_values_are_compared_and_never_evaluated(wanted: str, found: str, holds: bool) -> None:
    assert judge.Check("x", wanted).holds(found) is holds


# -- policies that try to win otherwise ---------------------------------------------------------------------------------------

CHEATS = CASES["swe_cheats"]


@pytest.mark.system
@pytest.mark.parametrize("what", CHEATS)
def test_only_a_mended_package_wins(what: str, works: None) -> None:
    environment = begun()
    assert not environment.success
    environment.bash(CHEATS[what])
    assert (environment.success, environment.get_reward()) == (False, 0.0)
    assert (environment.over, environment.metrics["lost"]) == (False, 0)
    environment._shell.close()


@pytest.mark.system
def test_hard_coding_what_is_shown_passes_the_repositorys_tests_and_loses(works: None) -> None:
    environment, task = begun(), tasks()[MENDED]
    cheat = swe_tasks.hard_coded(package("slots"), task.module, task.modules()[task.module], task.shown)
    environment._shell.write(f"{environment._root}/slots/{task.module}", cheat[task.module])
    assert environment.bash("python3 -m unittest").endswith("\nOK")
    assert not environment.success
    environment._shell.close()


@pytest.mark.system
def test_a_mended_package_wins_whatever_else_is_there(works: None) -> None:
    environment = begun()
    for what in ("no tests", "conftest", "sitecustomize", "another python", "odd names"):
        environment.bash(CHEATS[what])
    assert not environment.success
    old, new = tasks()[MENDED].fix
    environment.edit(f"slots/{tasks()[MENDED].module}", old, new)
    assert (environment.success, environment.get_reward()) == (True, 1.0)
    environment.bash(CHEATS["too many modules"])
    assert not environment.success
    environment.bash("git clean -qfd")
    assert environment.success
    environment.bash("git checkout -q .")
    assert not environment.success  # the state at the end counts
    environment._shell.close()


@pytest.mark.system
@pytest.mark.slow
def test_nothing_in_the_shell_tells_the_hidden_tests(works: None) -> None:
    environment = begun()
    hidden = next(test for test in package("slots").tests if not test.visible)
    environment.bash(
        "grep -rl 'minutes(\"24:01\")' / --include=*.py --include=*.yaml --include=*.jsonl 2>/dev/null > /tmp/found"
    )
    assert environment._shell.read("/tmp/found") == b""
    assert hidden.lines[1].line == 'minutes("24:01")'
    environment._shell.close()


# -- the episode --------------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_an_episode(works: None) -> None:
    environment = SweEnvironment()
    (row,) = dataset_rows(1, seed=3)
    assert environment.reset(**row) == f"The repository is in /home/user/{row['package']}, the folder of your shell."
    environment.reset(task=MENDED, max_turns=12)
    module = f"slots/{tasks()[MENDED].module}"
    assert environment.bash("x=5; cd slots; ls") == "__init__.py\nclock.py\nroom.py\nspans.py"
    assert environment.bash("echo $x; pwd; cd ..; false") == "5\n/home/user/slots/slots\n[exit code 1]"
    failing = environment.bash("python3 -m unittest")
    assert failing.startswith("..F..\n====")
    assert failing.endswith("\nRan 5 tests in 0.001s\n\nFAILED (failures=1)\n[exit code 1]")
    assert '  File "/home/user/slots/tests/test_slots.py", line ' in failing
    assert environment.bash("python3 -m unittest") == failing  # the clock stands still, and it shows nothing new
    assert environment.bash("find . -name '*.pyc' -o -name __pycache__; git status --short") == "[no output]"
    none = "No replacement was made: "
    assert environment.edit("slots/none.py", "a", "b") == f"{none}there is no file slots/none.py."
    assert (
        environment.edit(module, "into  and", "b")
        == f"{none}old does not occur in {module}; it does with other white space."
    )
    assert environment.edit(module, "return", "b").startswith(f"{none}old occurs 3 times in {module}, in lines 6, 2")
    old, new = tasks()[MENDED].fix
    edited = environment.edit(f"/home/user/slots/{module}", old, new)
    assert edited.startswith(f"{module} was edited. Here it is now:\n    13\t")
    assert f"    16\t{new}" in edited
    assert environment.success
    assert environment.bash("python3 -m unittest").endswith("\nRan 5 tests in 0.001s\n\nOK")
    assert environment.metrics == {"actions": 10, "effective": 6, "invalid": 3, "lost": 0}
    assert environment.bash("git diff --stat").startswith(f" {module} | 2 +-")
    assert environment.bash("cat << X").endswith("[exit code 2]\nThe episode is over.")
    assert (environment.over, environment.success, environment.get_reward(), environment.turns) == (True, True, 1.0, 12)
    with pytest.raises(ValueError, match="over"):
        environment.edit(module, "a", "b")
    assert environment._shell is None
    environment.reset(task=MENDED)
    assert (environment.over, environment.success, environment.turns, environment.get_reward()) == (
        False,
        False,
        0,
        0.0,
    )
    assert environment.bash("echo [$x]; git status --short") == "[]"
    environment._shell.close()


@pytest.mark.system
def test_what_cannot_be_edited_is_said(works: None) -> None:
    environment = begun(max_turns=50)
    environment.bash(
        "head -c 300000 /dev/zero > big; printf '\\xff' > bytes; ln -s /etc/passwd link; ln -s slots/room.py inner; mkfifo pipe"
    )
    none, place = "No replacement was made: ", "/etc/passwd"
    for path in ("", ".", "slots", "link", "inner", "pipe", "{path}", "x" * 9000, "slots/room.py/x"):
        assert environment.edit(path, "root", "x").startswith(f"{none}there is no file "), path
    assert environment.edit("big", "\0", "x") == f"{none}big is too large."
    assert environment.edit("bytes", "a", "x") == f"{none}bytes is no text in UTF-8."
    for path in (place, "../../x", "/proc/1/environ", "/home/user/../../etc/passwd", "a\0b"):
        assert "is no path in /home/user or /tmp" in environment.edit(path, "root", "x"), path
    assert environment.edit("README.md", "", "x") == f"{none}old is empty."
    assert environment.edit("README.md", "slots", "slots") == f"{none}old and new are the same."
    assert (
        environment.edit("README.md", "# slots", "{0} é")
        == "README.md was edited. Here it is now:\n     1\t{0} é\n     2\t\n     3\tBookings of rooms by the minute.\n     4\t"
    )
    assert environment.edit("README.md", 5, "x") == "Invalid: old must be text."
    assert environment.bash("head -n 1 README.md") == "{0} é"
    environment._shell.close()


@pytest.mark.system
def test_a_shell_that_is_gone_costs_the_episode(works: None, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = begun()
    started = environment._shell._pipes.sandbox
    os.kill(started.inner, signal.SIGKILL)
    started.process.wait(30)  # a signal may take longer than a command
    assert environment.bash("ls") == "The shell is gone.\nThe episode is over."
    assert (environment.success, environment.get_reward(), environment.metrics["lost"]) == (False, 0.0, 1)
    environment.reset(task=MENDED)
    assert (environment.over, environment.metrics["lost"]) == (False, 0)
    environment.bash("ls")

    def fail(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(sandbox, "run", fail)
    assert (environment.get_reward(), environment.over, environment.metrics["lost"]) == (0.0, True, 1)


@pytest.mark.system
def test_the_history_is_a_real_one(works: None) -> None:
    environment = begun("ledger/off-by-one-1")
    assert environment.bash("git fsck --full 2>&1; git status --short; git log --format='%an %ad %s'") == (
        "user Wed Jan 15 09:30:00 2025 +0000 Add ledger"
    )
    files = environment.bash("git ls-tree -r HEAD --name-only").splitlines()
    assert files == sorted(tasks()["ledger/off-by-one-1"].repository())
    assert len("ledger/__init__.py") % 8 == 2  # its entry in the index fills whole words
    assert history({"a": "x"}, 1, "m") == history({"a": "x"}, 1, "m") != history({"a": "y"}, 1, "m")
    environment._shell.close()


def test_without_the_systems_python_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "PYTHON", "/nowhere/python3")
    with pytest.raises(UserError, match="swe needs the system's Python: install the system package python3"):
        SweEnvironment().reset(task=MENDED)


def test_rows() -> None:
    train, unseen = dataset_rows(500, seed=1), dataset_rows(63, seed=1, held_out=True)
    assert len({row["task"] for row in train}) == 121
    assert len({row["task"] for row in unseen}) == 63
    assert {row["package"] for row in train} == set(PACKAGES) - set(swe.UNSEEN_PACKAGES)
    assert {row["package"] for row in unseen} == set(PACKAGES)
    hard = dataset_rows(500, seed=1, level="hard-1")
    assert [row["task"] for row in hard] == [row["task"] for row in train]
    for row, other in zip(train[:121], hard, strict=False):
        assert "This fails:" in row["prompt"][0]["content"]
        assert "does not hold any more" in other["prompt"][0]["content"]
        assert row["package"] in row["prompt"][0]["content"].partition("\n")[0]
