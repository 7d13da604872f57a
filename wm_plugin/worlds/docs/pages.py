"""The documentation of Python's standard library as plain pages, one a module, read from its source without importing it.

The pages depend only on the version of the running Python, patch release included.
"""

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.search import Index

# Left out: modules that distributions do not always install, deprecated ones, and texts that document no library.
SKIPPED = """antigravity curses dbm distutils encodings ensurepip idlelib lib2to3 lib-dynload pydoc_data sqlite3 test this tkinter
turtle turtledemo venv"""
SUMMARY = 160  # characters


class Entry(NamedTuple):
    """A module, class, function or method with a docstring.

    `defaults` has the defaults of its parameters and `bases` the base classes of a class, as the source writes them.
    """

    kind: str
    name: str
    page: str
    line: int  # of its page, from 1
    signature: str
    text: str
    defaults: dict[str, str]
    bases: list[str]

    @property
    def summary(self) -> str:
        """The docstring's first paragraph on one line."""
        paragraph = " ".join(self.text.split("\n\n")[0].split())
        return paragraph if len(paragraph) <= SUMMARY else f"{paragraph[:SUMMARY]}..."


class Page(NamedTuple):
    """The docstrings of a module, in the order of its source."""

    lines: list[str]
    entries: list[Entry]


@cache
def pages() -> dict[str, Page]:
    """Return all pages by the names of their modules."""
    table = {name: page for name, path in sorted(_sources()) if (page := _page(name, path)) is not None}
    if not table:
        raise UserError("the world docs reads the sources of Python's standard library, and this Python has none")
    return table


@cache
def entries() -> list[Entry]:
    """Return all entries, in the order of the pages."""
    return [entry for page in pages().values() for entry in page.entries]


@cache
def index() -> Index:
    """Return the search index over `entries`."""
    return Index([f"{entry.page} {entry.name} {entry.kind} {entry.text}" for entry in entries()])


def _sources() -> Iterator[tuple[str, Path]]:
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {*SKIPPED.split(), "site-packages", "dist-packages"}
    for path in [*root.glob("*.py"), *root.glob("*/*.py")]:
        parts = [*path.relative_to(root).parts[:-1], *([] if path.stem == "__init__" else [path.stem])]
        if parts and parts[0] not in skipped and all(part.isidentifier() and part[0] != "_" for part in parts):
            yield ".".join(parts), path


def _page(name: str, path: Path) -> Page | None:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # not a module of this Python's
        return None
    text = ast.get_docstring(tree)
    lines, entries = [f"MODULE {name}"], []
    if text:
        entries.append(Entry("module", name, name, 1, name, text, {}, []))
        lines += ["", *text.splitlines()]
    for node in tree.body:
        _describe(node, name, "", lines, entries)
    return Page([line.rstrip() for line in lines], entries) if len(entries) > 1 else None


def _describe(node: ast.AST, page: str, owner: str, lines: list[str], entries: list[Entry]) -> None:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
        return
    text = ast.get_docstring(node)
    if not text:
        return
    name = f"{owner}.{node.name}" if owner else node.name
    if isinstance(node, ast.ClassDef):
        kind, defaults, bases = "class", dict[str, str](), [ast.unparse(base) for base in node.bases]
        signature = f"{name}({', '.join(bases)})" if bases else name
    else:
        kind, defaults, bases = "method" if owner else "function", _defaults(node.args), []
        signature = f"{name}({ast.unparse(node.args)})"
    indent = "    " if owner else ""
    lines += ["", f"{indent}{kind.upper()} {signature}"]
    entries.append(Entry(kind, name, page, len(lines), signature, inspect.cleandoc(text), defaults, bases))
    lines += [f"{indent}    {line}" for line in inspect.cleandoc(text).splitlines()]
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            _describe(inner, page, name, lines, entries)


def _defaults(arguments: ast.arguments) -> dict[str, str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[::-1], arguments.defaults[::-1], strict=False)][::-1]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    pairs += [(name, value) for name, value in keywords if value is not None]
    return {name.arg: ast.unparse(value) for name, value in pairs}
