"""The documentation of the standard library: what its pages say against the running library, the tools, and the questions."""

import ast
import importlib
import inspect
import platform
import subprocess
import sys

import pytest

from support.cases import CASES
from wm_plugin.worlds import docs
from wm_plugin.worlds.check import texts
from wm_plugin.worlds.docs import DocsEnvironment, dataset_rows, is_right, questions
from wm_plugin.worlds.docs import pages as docs_pages

PYTHON = platform.python_version()


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    pytest.importorskip("bm25s")


@pytest.fixture
def environment() -> DocsEnvironment:
    environment = DocsEnvironment()
    environment.reset(answer="dedent", python=PYTHON, page="textwrap", entry="dedent", max_turns=1000)
    return environment


def number_of(page: str, name: str) -> int:
    return next(entry.line for entry in docs_pages.pages()[page].entries if entry.name == name)


@pytest.mark.parametrize(
    "module", ["textwrap", "json", "json.decoder", "bisect", "shlex", "string", "heapq", "fractions"]
)
def test_pages_say_what_the_library_says(module: str) -> None:
    there = importlib.import_module(module)
    for entry in docs_pages.pages()[module].entries:
        found = there
        for part in entry.name.split(".") if entry.kind != "module" else []:
            found = inspect.getattr_static(found, part)
        found = getattr(found, "__func__", found)  # of static and class methods
        if entry.kind in ("function", "method") and inspect.isfunction(found):
            assert inspect.getdoc(found) == entry.text
            defaults = {
                name: one.default
                for name, one in inspect.signature(found).parameters.items()
                if one.default is not one.empty
            }
            assert list(defaults) == list(entry.defaults)
            for name, value in entry.defaults.items():
                try:
                    assert ast.literal_eval(value) == defaults[name]
                except ValueError:  # a name
                    assert value.isidentifier() or "." in value or "(" in value


def test_nothing_is_imported() -> None:
    code = """
import sys
from wm_plugin.worlds.docs import pages as d
few = [source for source in d._sources() if source[0] in ("imaplib", "wsgiref.handlers")]
d._sources = lambda: few
print(*d.pages(), *(name in sys.modules for name, _ in few))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout == "imaplib wsgiref.handlers False False\n"
    assert not [name for name in docs_pages.pages() if name.startswith(("test", "idlelib", "_", "this"))]


def test_an_episode() -> None:
    environment = DocsEnvironment()
    row = next(row for row in dataset_rows(2000) if row["entry"] == "dedent")
    assert "module textwrap is documented" in row["prompt"][0]["content"]
    assert environment.reset(**row, max_turns=6) == f"The documentation has {len(docs_pages.pages())} pages."
    line = number_of("textwrap", "dedent")
    seen = environment.search_docs("remove common leading whitespace\n\nqqqqq")
    assert f"textwrap:{line} function dedent: Remove any common leading whitespace" in seen
    assert seen.endswith("# qqqqq\nnothing found")
    assert environment.scan_page("textwrap", "function DEDENT | nonsense") == (
        f"textwrap: {len(docs_pages.pages()['textwrap'].lines)} lines\n{line}: FUNCTION dedent(text)"
    )
    assert environment.open_lines("textwrap", f"{line}-{line}") == f"{line}: FUNCTION dedent(text)"
    assert environment.scan_page("textwarp") == "Invalid: there is no such page; there is textwrap."
    assert environment.finish("`textwrap.dedent()`") == "The answer is right. The episode is over."
    assert (environment.over, environment.success, environment.turns, environment.get_reward()) == (True, True, 5, 1.0)
    assert environment.metrics == {"actions": 5, "effective": 4, "invalid": 1}
    with pytest.raises(ValueError, match="over"):
        environment.finish("dedent")
    environment.reset(**row, max_turns=1)
    assert (environment.over, environment.success, environment.turns) == (False, False, 0)
    assert environment.scan_page("textwrap").endswith("\nThe episode is over.")
    assert environment.over


def test_a_wrong_answer(environment: DocsEnvironment) -> None:
    assert environment.finish("fill") == "The answer is wrong. The episode is over."
    assert (environment.over, environment.get_reward()) == (True, 0.0)


@pytest.mark.parametrize(("submission", "answer", "page", "right"), CASES["docs_answers"])
def test_answers(submission: str, answer: str, page: str, right: bool) -> None:
    assert is_right(submission, answer, page) is right


def test_lines(environment: DocsEnvironment) -> None:
    there = docs_pages.pages()["textwrap"].lines
    assert environment.open_lines("textwrap").split("\n")[0] == "1: MODULE textwrap"
    assert len(environment.open_lines("textwrap").split("\n")) == 60
    assert len(environment.open_lines("textwrap", "1-999999").split("\n")) == 60
    assert environment.open_lines(" textwrap ", f"{len(there)}") == f"{len(there)}: {there[-1]}"
    assert environment.open_lines("textwrap", f"{len(there) + 1}") == f"Invalid: textwrap has lines 1 to {len(there)}."
    for lines in ("0-5", "9-3", "x", "1-2-3", "-5", "1-9999999", "１-２"):
        assert environment.open_lines("textwrap", lines).startswith("Invalid: "), lines


def test_repetitions_and_what_finds_nothing_have_no_effect(environment: DocsEnvironment) -> None:
    for _ in range(2):
        environment.search_docs("random numbers")
        environment.search_docs("qqqqq")
        environment.scan_page("json", "encode")
        environment.scan_page("json", "qqqqq")
        environment.open_lines("json", "1-5")
    assert environment.metrics == {"actions": 10, "effective": 3, "invalid": 0}


@pytest.mark.parametrize("level", docs.LEVELS)
def test_rows_and_the_expert(level: str) -> None:
    train, held_out = questions(level, False), questions(level, True)
    assert len(train) > 300
    assert len(held_out) > 50
    tops = [{one.entry.page.partition(".")[0] for one in some} for some in (train, held_out)]
    assert not tops[0] & tops[1]
    assert len({one.text for one in [*train, *held_out]}) == len([*train, *held_out])
    environment = DocsEnvironment()
    for row in [*dataset_rows(25, seed=1, level=level), *dataset_rows(10, seed=1, held_out=True, level=level)]:
        assert row["level"] == level
        assert row["python"] == PYTHON
        first, *found, _, _ = texts(environment, row, docs.expert())  # the last ones are the verdict and the outcome
        assert len(row["prompt"][0]["content"] + first) < 1500
        assert environment.success
        assert environment.metrics["effective"] == environment.turns == 4
        answer = row["answer"].removeprefix(f"{row['page']}.").rpartition(".")[2]
        assert answer.strip("'\"").casefold() in "".join(found).casefold()  # it can be read
