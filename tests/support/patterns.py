"""The regular expressions of the package, found in its source, and texts that are hostile to them, derived from each."""

import ast
import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import wm_plugin

PACKAGE = Path(wm_plugin.__file__).parent
FUNCTIONS = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}


@dataclass
class Use:
    """A place in the source with a pattern.

    Attributes:
        source: an expression that compiles the pattern.
        functions: what is done with it, such as `search`.
    """

    source: str
    file: Path
    functions: set[str]

    def pattern(self) -> re.Pattern[Any] | None:
        """Compile it; None if it is only known when the code runs."""
        name = ".".join(self.file.relative_to(PACKAGE.parent).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        try:
            value = eval(self.source, dict(vars(module)))
            return value if isinstance(value, re.Pattern) else re.compile(value)
        except NameError:
            return None


@cache
def trees() -> Mapping[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}


@cache
def uses() -> dict[str, Use]:
    """Find all patterns, by their file and the name that they are assigned to or the function that they are in."""
    places: dict[str, Use] = {}
    called = _called()
    for file, tree in trees().items():
        counts: Counter[str] = Counter()
        for scope, source, function in _calls(tree, (), False):
            name = f"{file.relative_to(PACKAGE)} {scope}"
            counts[name] += 1
            name += f" {counts[name]}" if counts[name] > 1 else ""
            there = [calls[scope] for other, (imported, calls) in called.items() if other == file or scope in imported]
            functions = set().union(*there) & FUNCTIONS or {"finditer"} if function == "compile" else {function}
            places[name] = Use(source, file, functions)
    return places


def _calls(node: ast.AST, scopes: tuple[str, ...], inside: bool) -> Iterator[tuple[str, str, str]]:
    """Yield where a pattern is written: its name or scope, an expression that compiles it and the function that takes it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scopes, inside = (*scopes, node.name), inside or not isinstance(node, ast.ClassDef)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and not inside:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        scopes = (*scopes, ast.unparse(target))
    if isinstance(node, ast.Call):
        module, _, function = ast.unparse(node.func).rpartition(".")
        if module in ("re", "re2", "regex") and function in FUNCTIONS:
            flags = [word for word in node.keywords if word.arg == "flags"]
            pattern = next(iter([*node.args[:1], *(word.value for word in node.keywords if word.arg == "pattern")]))
            compiled = (
                node
                if function == "compile"
                else ast.Call(ast.Attribute(ast.Name(module), "compile"), [pattern], flags)
            )
            yield ".".join(scopes), ast.unparse(ast.fix_missing_locations(compiled)), function
        else:  # of pydantic and others
            for word in node.keywords:
                if word.arg in ("pattern", "regex") and isinstance(word.value, ast.Constant | ast.JoinedStr):
                    yield ".".join(scopes), ast.unparse(word.value), "search"
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, scopes, inside)


def _called() -> dict[Path, tuple[set[str], dict[str, set[str]]]]:
    """Return by file what it imports, and what it calls of each name; `finditer` where the name itself is handed on."""
    files: dict[Path, tuple[set[str], dict[str, set[str]]]] = {}
    for file, tree in trees().items():
        nodes = list(ast.walk(tree))
        owners = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
        called: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                called[node.id].add(owners.get(id(node), "finditer"))
        files[file] = {part.name for node in nodes if isinstance(node, ast.ImportFrom) for part in node.names}, called
    return files


def run(pattern: re.Pattern[Any], function: str) -> Callable[[str], object]:
    """What the code does with a pattern and a text."""
    empty: Any = b"" if isinstance(pattern.pattern, bytes) else ""

    def work(text: str) -> object:
        data: Any = text if empty == "" else text.encode()
        if function in ("sub", "subn"):
            return pattern.sub(empty, data)
        if function in ("findall", "finditer"):
            return sum(1 for _ in pattern.finditer(data))
        return getattr(pattern, function)(data)

    return work


# Characters that samples are made of.
ALPHABET = " \n\ta0A_-.,:;<>/\\\"'[](){}|=*#%$@!?`é\u0301٣\x00"
REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
SPACES = (" ", "\n", "\t", " \n")


def hostile(pattern: re.Pattern[Any]) -> list[tuple[str, str, str]]:
    """(before, unit, after): texts of many units that are hostile to a pattern.

    Each literal, each beginning of what the pattern takes, near-matches, white space, and what is in each repetition, alone and
    after what the pattern takes before it, with an end that does not match.
    """
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    tree = _parser.parse(source, pattern.flags & ~re.DEBUG)
    units: dict[str, None] = dict.fromkeys((*SPACES, "a", "a ", "0", "é"))
    after: dict[tuple[str, str, str], None] = {}
    for before, parts in _places(list(tree), "", pattern.flags):
        for part in parts[:2]:
            units |= dict.fromkeys((part, before + part, (before + part)[:-1]))
            after[before, part, "\x00"] = None
        if before:
            units[before] = None
            after |= dict.fromkeys((before, space, "\x00") for space in (" ", "\n"))
    return [shape for shape in [*(("", unit, "") for unit in units), *after] if shape[1]]


def _places(items: list[Any], before: str, flags: int) -> Iterator[tuple[str, list[str]]]:
    """What a pattern has taken before each of its parts, and what the part takes, in a few forms. A text is one part."""
    number = 0
    while number < len(items):
        code, argument = items[number]
        first = number
        while code is _constants.LITERAL and number + 1 < len(items) and items[number + 1][0] is code:
            number += 1
        yield before, _sample_of(items[first : number + 1], flags)
        if code is _constants.BRANCH:
            for branch in argument[1]:
                yield from _places(list(branch), before, flags)
        elif code in (_constants.SUBPATTERN, _constants.ASSERT, _constants.ASSERT_NOT):
            yield from _places(list(argument[-1]), before, flags)
        elif code in REPEATS:
            yield before, _sample_of(list(argument[2]), flags)
            yield from _places(list(argument[2]), before, flags)
        elif code is _constants.ATOMIC_GROUP:
            yield from _places(list(argument), before, flags)
        before += _sample_of(items[first : number + 1], flags)[0]
        number += 1


def _sample_of(items: list[Any], flags: int) -> list[str]:
    parts = [_sample(item, flags) for item in items]
    most = min(3, max(map(len, parts), default=1))
    return list(dict.fromkeys("".join(part[min(number, len(part) - 1)] for part in parts) for number in range(most)))


def _sample(item: Any, flags: int) -> list[str]:
    """Texts that a part of a pattern takes; a repetition as often as it must be, but at least once."""
    code, argument = item
    if code is _constants.LITERAL:
        return [chr(argument)]
    if code in (_constants.ANY, _constants.NOT_LITERAL, _constants.IN):
        tree = _parser.parse("", flags)
        tree.append(item)
        takes = re._compiler.compile(tree, flags)  # type: ignore[attr-defined]
        taken = [letter for letter in ALPHABET if takes.match(letter)] or [
            chr(number) for number in range(0x3000) if takes.match(chr(number))
        ]
        return list(dict.fromkeys([taken[0], taken[len(taken) // 2], taken[-1]])) if taken else [""]
    if code is _constants.BRANCH:
        return list(dict.fromkeys(text for branch in argument[1] for text in _sample_of(list(branch), flags)[:1]))
    if code is _constants.SUBPATTERN:
        return _sample_of(list(argument[-1]), flags)
    if code is _constants.ATOMIC_GROUP:
        return _sample_of(list(argument), flags)
    if code in REPEATS:
        return [text * max(1, argument[0]) for text in _sample_of(list(argument[2]), flags)]
    if code is _constants.ASSERT and argument[0] > 0:
        return _sample_of(list(argument[1]), flags)
    return [""]
