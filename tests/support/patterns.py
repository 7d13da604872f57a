"""The regular expressions of the package, found in its source, and texts that are hostile to them, derived from each."""

import ast
import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import wm_plugin

PACKAGE = Path(wm_plugin.__file__).parent
MODULES = {"re", "re2", "regex"}
FUNCTIONS = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn", "template"}


@dataclass
class Use:
    """A place in the source with a pattern.

    Attributes:
        name: the file and the name that the pattern is assigned to, or the function that it is in (the second one: ` 2`, ...).
        source: an expression that compiles the pattern.
        functions: what is done with it, such as `search`.
    """

    name: str
    source: ast.expr
    file: Path
    functions: set[str] = field(default_factory=set)

    def pattern(self) -> re.Pattern[str] | re.Pattern[bytes] | None:
        """Compiled with its flags; None if it is only known when the code runs."""
        module = importlib.import_module(module_name(self.file))
        try:
            value = eval(ast.unparse(self.source), dict(vars(module)))
            return value if isinstance(value, re.Pattern) else re.compile(value)
        except NameError:
            return None


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def trees() -> Mapping[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}


def uses() -> dict[str, Use]:
    """All patterns of the package, by name."""
    places: dict[str, Use] = {}
    names = _names()
    for file, tree in trees().items():
        counts: Counter[str] = Counter()
        for scope, expression, function in _calls(tree):
            name = f"{file.relative_to(PACKAGE)} {scope}"
            counts[name] += 1
            name += f" {counts[name]}" if counts[name] > 1 else ""
            functions = _methods(names, file, scope) if function == "compile" else {function}
            places[name] = Use(name, expression, file, functions)
    return places


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.expr, str]]:
    """Where a pattern is written: its name or scope, its expression and the function that takes it."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {name.asname or name.name for node in imports for name in node.names if name.name in MODULES}
    functions = {
        name.asname or name.name: name.name
        for node in imports
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for name in node.names
    }

    def visit(node: ast.AST, scopes: tuple[str, ...], inside: bool) -> Iterator[tuple[str, ast.expr, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scopes, inside = (*scopes, node.name), inside or not isinstance(node, ast.ClassDef)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not inside:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            scopes = (*scopes, ast.unparse(target))
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in modules:
                function = called.attr if called.attr in FUNCTIONS else None
            else:
                function = functions.get(called.id) if isinstance(called, ast.Name) else None
            patterns = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "pattern")]
            if function == "compile":
                yield ".".join(scopes), node, function  # with its flags
            elif function in FUNCTIONS:
                yield ".".join(scopes), _compiled(node, patterns[0]), function
            else:  # of pydantic and others
                for word in node.keywords:
                    if word.arg in ("pattern", "regex") and isinstance(word.value, ast.Constant | ast.JoinedStr):
                        yield ".".join(scopes), word.value, "search"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scopes, inside)

    yield from visit(tree, (), False)


def _compiled(call: ast.Call, pattern: ast.expr) -> ast.expr:
    """`re.compile` of a pattern that another function of `re` is called with."""
    flags = [word for word in call.keywords if word.arg == "flags"]
    assert isinstance(call.func, ast.Attribute | ast.Name)
    function = (
        ast.Attribute(call.func.value, "compile", ast.Load()) if isinstance(call.func, ast.Attribute) else call.func
    )
    return ast.Call(function, [pattern], flags)


Names = dict[Path, tuple[set[str], dict[str, set[str]]]]


def _methods(names: Names, file: Path, name: str) -> set[str]:
    """What is called of a name, in its file and where it is imported; `finditer` too if it is handed on."""
    methods: set[str] = set()
    for other, (imported, called) in names.items():
        if other == file or name in imported:
            methods |= called.get(name, set())
    return (methods & FUNCTIONS) or {"finditer"}


def _names() -> Names:
    """For each file, the names that it imports from modules, and what it calls of each name that it reads."""
    names: Names = {}
    for file, tree in trees().items():
        nodes = list(ast.walk(tree))
        owners = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
        imported = {part.name for node in nodes if isinstance(node, ast.ImportFrom) for part in node.names}
        called: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                called[node.id].add(owners.get(id(node), "finditer"))
        names[file] = imported, called
    return names


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
