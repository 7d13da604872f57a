"""The table of docs/support.md: each row has one of five words and what belongs to it, and the tests that it names exist."""

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs/support.md"
STATES = ("tested here", "tested nightly", "tested on a GPU", "follows from the source", "refused")
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
UPSTREAM = re.compile(r"`[\w/]+(?:[._/]\w+)+(?:\.py)?`")  # a place in a host's source


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table whose second column is called `state`."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        head, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines())
        if head[1:2] == ["state"]:
            found.append(rows)
    return found


@functools.cache
def nightly(file: str) -> dict[str, bool]:
    """The tests of a file, and whether each runs on a schedule only."""
    tree = ast.parse((TESTS / file).read_text())
    marks = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign) and is_mark(node)]
    whole = any("mark.nightly" in mark for mark in marks)
    return {
        node.name: whole or any(ast.unparse(mark).startswith("pytest.mark.nightly") for mark in node.decorator_list)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def is_mark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def problem(row: list[str]) -> str | None:
    """What a row lacks."""
    if len(row) != 3:
        return "has not three cells"
    what, state, where = row
    words = re.findall("|".join(STATES), NAMED.sub("", " ".join(row)))
    if state not in STATES or words != [state]:
        return f"has not one of the five words: {words}"
    names = NAMED.findall(where)
    if "::" in what or where.count("::") != len(names):
        return "names a test in another way than `folder/test_file.py::test_name`"
    for file, name in names:
        if not (TESTS / file).exists() or name not in nightly(file) or not name.startswith("test_"):
            return f"names {file}::{name}, which does not exist"
    schedules = {nightly(file)[name] for file, name in names}
    if state in ("tested here", "refused") and schedules != {False}:
        return "names no test, or one that runs nightly"
    if state == "tested nightly" and schedules != {True}:
        return "names no test, or one that does not run nightly"
    if state == "tested on a GPU" and not re.search(r"\b20\d\d-[01]\d-[0-3]\d\b", where):
        return "has no date"
    if state == "follows from the source" and not UPSTREAM.search(NAMED.sub("", where)):
        return "names no place in the source"
    if state == "refused" and len(NAMED.sub("", where).split()) < 4:
        return "gives no reason"
    return None


def test_every_row_says_how_it_is_known():
    rows = tables(PAGE.read_text())
    assert len(rows) == 2  # a host each
    assert min(len(table) for table in rows) > 15
    assert {row[0]: problem(row) for table in rows for row in table if problem(row)} == {}
    for table in rows:
        names = [row[0] for row in table]
        assert len(set(names)) == len(names)


GOOD = "`on_trl/test_distributed.py::test_two_ranks`"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (f"DDP | tested here | {GOOD}", None),
        ("ZeRO | tested nightly | `on_trl/test_distributed.py::test_zero_trains_as_ddp_does`", None),
        ("NCCL | tested on a GPU | 2026-11-22, two H100", None),
        ("FSDP1 | follows from the source | averaged as in `GRPOTrainer._compute_loss`", None),
        (f"TP | refused | ranks share a batch; {GOOD}", None),
        (f"DDP | {GOOD}", "three cells"),
        (f"DDP | works | {GOOD}", "five words"),
        (f"DDP, refused | tested here | {GOOD}", "five words"),
        (f"DDP | tested here; refused | {GOOD}", "five words"),
        ("DDP | tested here | by hand", "names no test"),
        ("DDP | tested here | `on_trl/test_distributed.py::test_zero_trains_as_ddp_does`", "runs nightly"),
        (f"DDP | tested nightly | {GOOD}", "does not run nightly"),
        ("DDP | tested here | `on_trl/test_distributed.py::test_three_ranks`", "does not exist"),
        ("DDP | tested here | `on_trl/test_distribution.py::test_two_ranks`", "does not exist"),
        ("DDP | tested here | `on_trl/test_distributed.py::two_ranks`", "does not exist"),
        ("DDP | tested here | on_trl/test_distributed.py::test_two_ranks", "in another way"),
        ("NCCL | tested on a GPU | recently", "no date"),
        ("FSDP1 | follows from the source | as it must", "no place"),
        (f"FSDP1 | follows from the source | {GOOD}", "no place"),
        ("TP | refused | ranks share a batch", "names no test"),
        (f"TP | refused | {GOOD}", "no reason"),
    ],
)
def test_a_row_without_it_is_found(row, words):
    text = problem([cell.strip() for cell in row.split("|")])
    assert (text is None) == (words is None), text
    assert words is None or words in text


def test_other_tables_are_left_alone():
    text = "| a | state |\n|---|---|\n| b | c |\n\n| host | releases |\n|---|---|\n| d | e |\n"
    assert tables(text) == [[["b", "c"]]]


def test_contributing_says_of_every_nightly_file_what_stands_in_for_it():
    table = (TESTS.parent / "CONTRIBUTING.md").read_text().partition("Nightly are:")[2].partition("\n## ")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `")]
    named = {file for cell in cells for file in re.findall(r"`([\w/]+/test_\w+\.py)`", cell)}
    marked = {path for path in TESTS.rglob("*/test_*.py") if "pytest.mark.nightly" in path.read_text()}
    assert named == {str(path.relative_to(TESTS)) for path in marked}
