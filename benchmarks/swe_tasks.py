"""The tasks of the world swe: faults planted in its packages, written to `wm_plugin/worlds/swe/tasks.jsonl`.

    python benchmarks/swe_tasks.py

Each of twelve kinds changes the syntax tree of a module in a way in which programmers err. A fault is a task if the package
still loads, at least half of its tests pass, one fails and one of the visible ones passes. A hidden test must fail with other
inputs than those that the repository's tests show: one that fails even if all shown calls are hard-coded (`hard_coded`). What a
wrong fix leaves is another fault of the same lines, or near them. Of each package so many faults are taken as `PACKAGES` says, of
all kinds in turn. Needs the sandbox.
"""

import ast
import inspect
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import wm_plugin.worlds.swe
from wm_plugin.worlds.swe import judge
from wm_plugin.worlds.swe.tasks import PACKAGES, Package, package

RESULT = Path(wm_plugin.worlds.swe.__file__).with_name("tasks.jsonl")
Function = ast.FunctionDef
Edit = tuple[ast.AST, str]  # a node, and the text that takes its place; an empty text removes a statement

COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
COMPARED |= {ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}
STRICTER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OPPOSITE = {"==": "!=", "!=": "==", "in": "not in", "not in": "in", "is": "is not", "is not": "is"}
COMPUTED = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Div: "/", ast.Mod: "%", ast.Pow: "**"}
OTHER = {"+": "-", "-": "+", "*": "+", "//": "%", "/": "*", "%": "//", "**": "*"}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
DEFAULTS = {".": '","', ",": '";"', ":": '"."', "": '" "', "?": '""', "#": '"*"'}
ERRORS = {"KeyError": "IndexError", "ValueError": "TypeError", "IndexError": "KeyError", "RuntimeError": "ValueError"}
ERRORS |= {"LookupError": "ValueError", "Shortage": "ValueError", "NotFound": "ValueError", "Cycle": "RuntimeError"}
METHODS = {
    "lower": "upper",
    "upper": "lower",
    "title": "upper",
    "ljust": "rjust",
    "partition": "rpartition",
    "lstrip": "rstrip",
}
METHODS |= {"rpartition": "partition", "rstrip": "lstrip", "splitlines": "split", "startswith": "endswith"}
FORMATS = {">": "<", "<": ">", "02": "2", ".1": ".0", ".0": ".1"}


def off_by_one(function: Function) -> Iterator[Edit]:
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and (op := COMPARED[type(node.ops[0])]) in STRICTER:
            yield node, f"{text(node.left)} {STRICTER[op]} {text(node.comparators[0])}"
        if isinstance(node, ast.Slice):
            for bound in filter(None, (node.lower, node.upper)):
                yield bound, f"{text(bound)} + 1"
        if isinstance(node, ast.BinOp) and text(node.right) == "1" and isinstance(node.op, ast.Add | ast.Sub):
            yield node, text(node.left)


def inverted_condition(function: Function) -> Iterator[Edit]:
    for node in ast.walk(function):
        tests = [node.test] if isinstance(node, ast.If | ast.IfExp) else getattr(node, "ifs", [])
        for test in tests:
            if isinstance(test, ast.UnaryOp):
                yield test, text(test.operand)
            elif isinstance(test, ast.Compare) and (op := COMPARED[type(test.ops[0])]) in OPPOSITE:
                yield test, f"{text(test.left)} {OPPOSITE[op]} {text(test.comparators[0])}"
            elif isinstance(test, ast.Name | ast.Call | ast.Attribute):
                yield test, f"not {text(test)}"


def wrong_operator(function: Function) -> Iterator[Edit]:
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp):
            yield node, f"{text(node.left)} {OTHER[COMPUTED[type(node.op)]]} {text(node.right)}"
        if isinstance(node, ast.AugAssign):
            yield node, f"{text(node.target)} {OTHER[COMPUTED[type(node.op)]]}= {text(node.value)}"
        if isinstance(node, ast.BoolOp):
            yield node, (" or " if isinstance(node.op, ast.And) else " and ").join(map(text, node.values))
        if isinstance(node, ast.Call) and text(node.func) in TWINS:
            yield node.func, TWINS[text(node.func)]


def wrong_default(function: Function) -> Iterator[Edit]:
    gets = [
        node.args[1]
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and node.args[1:]
    ]
    keywords = [node.value for node in ast.walk(function) if isinstance(node, ast.keyword) and node.arg == "default"]
    for node in [*function.args.defaults, *filter(None, function.args.kw_defaults), *gets, *keywords]:
        if isinstance(node, ast.Constant) and node.value is not None:
            yield node, another(node.value)


def another(value: int | str) -> str:
    """Another number, or a text with another digit or without its last letter."""
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str({0: 1, 1: 0}.get(value, value * 2))
    if value in DEFAULTS:
        return DEFAULTS[value]
    changed = re.sub("[0-9]", lambda digit: str(int(digit[0]) % 9 + 1), value, count=1)
    return json.dumps(changed if changed != value else value[:-1])


def mutable_default(function: Function) -> Iterator[Edit]:
    guard = next((one for one in function.body if isinstance(one, ast.If)), None)
    for argument, default in zip(reversed(function.args.args), reversed(function.args.defaults), strict=False):
        if guard and text(guard.test) == f"{argument.arg} is None" and text(default) == "None":
            start, end = place(function.args)
            header = source()[start:end].replace(f"{argument.arg}=None", f"{argument.arg}={text(guard.body[0].value)}")
            yield Span(start, place(guard)[1]), header + source()[end : line_start(guard)].rstrip()


def missing_case(function: Function) -> Iterator[Edit]:
    for block in blocks(function):
        for node in block:
            ends = (
                isinstance(node, ast.If)
                and not node.orelse
                and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue)
            )
            if ends and len(block) > 1:
                yield node, ""


def swapped_arguments(function: Function) -> Iterator[Edit]:
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and len(node.args) > 1
            and not any(isinstance(one, ast.Starred) for one in node.args)
        ):
            first, second, *rest = map(text, node.args)
            if first != second and text(node.func) not in ("min", "max"):
                others = [*rest, *(f"{one.arg}={text(one.value)}" for one in node.keywords)]
                yield node, f"{text(node.func)}({', '.join([second, first, *others])})"


def wrong_variable(function: Function) -> Iterator[Edit]:
    names = {one.arg for one in function.args.args} - {"self"}
    names |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            for name in sorted(names - {node.id, "_"})[:2]:
                yield node, name


def wrong_return(function: Function) -> Iterator[Edit]:
    for block in blocks(function):
        for node, following in zip(block, [*block[1:], None], strict=True):
            if isinstance(node, ast.For) and isinstance(following, ast.Return):
                start, end = place(following)
                yield Span(start, end), f"    {source()[start:end]}"
            if isinstance(node, ast.Continue):
                yield node, "break"
            if isinstance(node, ast.Break):
                yield node, "continue"
            if (
                isinstance(node, ast.Return)
                and node is function.body[-1]
                and isinstance(node.value, ast.Name | ast.Call)
            ):
                yield node, text(node.value)


def wrong_exception(function: Function) -> Iterator[Edit]:
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            known = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            for one in known:
                yield node.type, text(one) if len(known) > 1 else ERRORS.get(text(one), "ValueError")
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            yield error, ERRORS.get(text(error), "ValueError")


def wrong_text(function: Function) -> Iterator[Edit]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called, name = text(node.func.value), node.func.attr
            arguments = text(node)[len(text(node.func)) :]
            if name in METHODS:
                yield node, f"{called}.{METHODS[name]}{arguments}"
            if name in ("strip", "lower", "upper", "title") and arguments == "()":
                yield node, called
            if name in ("encode", "decode"):
                yield node, f"{called}.{name}{arguments.replace('utf-8', 'latin-1')}"
        if isinstance(node, ast.JoinedStr):
            for old, new in FORMATS.items():
                changed = re.sub(rf":{re.escape(old)}(?=[0-9{{dfdb])", f":{new}", text(node), count=1)
                if changed != text(node):
                    yield node, changed


def stale_state(function: Function) -> Iterator[Edit]:
    for block in blocks(function):
        for node in block if function.name != "__init__" else []:
            cleared = isinstance(node, ast.Assign) and text(node).startswith("self._") and text(node.value) == "None"
            called = isinstance(node, ast.Expr) and re.match(r"self\._\w+\.(clear|pop)\(", text(node))
            counted = isinstance(node, ast.AugAssign) and text(node.target).startswith("self.")
            if (cleared or called or counted) and len(block) > 1:
                yield node, ""
            copied = re.fullmatch(r"return (?:list|dict)\((self\._\w+)\)", text(node))
            if copied:
                yield node, f"return {copied[1]}"


KINDS: dict[str, Callable[[Function], Iterator[Edit]]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        *(
            off_by_one,
            inverted_condition,
            wrong_operator,
            wrong_default,
            mutable_default,
            missing_case,
            swapped_arguments,
        ),
        *(wrong_variable, wrong_return, wrong_exception, wrong_text, stale_state),
    )
}


class Span(NamedTuple):
    """A part of the source that is no node."""

    start: int
    end: int


class Fault(NamedTuple):
    """A change of a module: the text from `start` to `end` gives way to `new`."""

    kind: str
    module: str
    start: int
    end: int
    new: str

    def of(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


_source = ""


def source() -> str:
    return _source


def text(node: ast.AST) -> str:
    return ast.get_source_segment(_source, node) or ""


def place(node: Any) -> tuple[int, int]:
    """Where a node begins and ends in the source, which is ASCII."""
    if isinstance(node, Span):
        return node
    if isinstance(node, ast.arguments):
        return place(node.args[0])[0], place((node.defaults or node.args)[-1])[1]
    starts = [0]
    for line in _source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def line_start(node: ast.AST) -> int:
    return _source.rfind("\n", 0, place(node)[0]) + 1


def blocks(function: Function) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, name, None), list) and block:
                yield block


def faults(module: str, code: str) -> Iterator[Fault]:
    """All changes of a module, of all kinds."""
    global _source
    _source = code
    for function in [node for node in ast.walk(ast.parse(code)) if isinstance(node, Function)]:
        for kind, changes in KINDS.items():
            for node, new in changes(function):
                start, end = place(node)
                if not new:
                    start, end = line_start(node), end + 1
                yield Fault(kind, module, start, end, new)


class Found(NamedTuple):
    """A fault, the numbers of the visible tests that fail, and of a test that shows it, and what Python says there."""

    fault: Fault
    visible: list[int]
    shown: int
    error: str
    holds: bool  # whether hard-coding what is shown does not pass


def tried(of: Package, fault: Fault) -> Found | None:
    """A fault that a reader can find by a test, or None."""
    changed = fault.of(of.modules[fault.module])
    try:
        ast.parse(changed)
    except SyntaxError:
        return None
    tests = [test.lines for test in of.tests]
    found = judge.run(of.name, {**of.modules, fault.module: changed}, tests)
    failing = judge.failures(found, tests)
    if len(found) < len(tests) or not 0 < len(failing) <= len(tests) // 2:
        return None
    visible = failing_together(of, {**of.modules, fault.module: changed}) | {n for n in failing if of.tests[n].visible}
    if len(visible) == sum(test.visible for test in of.tests):
        return None
    best = None
    for number in failing:  # an error that a reader understands
        line = judge.first_failure(found, tests[number], number)
        error = said(tests[number][line], found[number][line])
        if error and best is None:
            best = Found(fault, sorted(visible), number, error, holds=False)
        if error and judge.failures(judge.run(of.name, hard_coded(of, fault.module, changed, number), tests), tests):
            return Found(fault, sorted(visible), number, error, holds=True)
    return best


def failing_together(of: Package, modules: Mapping[str, str]) -> set[int]:
    """The numbers of the visible tests that fail in one process, where a test may find what another one left."""
    visible = sorted(
        (number for number, test in enumerate(of.tests) if test.visible), key=lambda one: of.tests[one].name
    )
    lines = [(number, check) for number in visible for check in of.tests[number].lines]
    (values,) = judge.run(of.name, modules, [[check for _, check in lines]]) or [[]]
    values = [*values, *[""] * (len(lines) - len(values))]
    return {number for (number, check), value in zip(lines, values, strict=True) if not check.holds(value)}


def hard_coded(of: Package, module: str, faulty: str, shown: int) -> dict[str, str]:
    """A package with a fault whose function is right in every call that the visible tests and the shown one make.

    This is the most that a policy can hard-code. A call is the arguments, and the attributes of `self` that the function reads.

    Args:
        faulty: the module with the fault.
        shown: the number of the shown test.
    """
    clean, changed = functions(of.modules[module]), functions(faulty)
    (path,) = [path for path in clean if ast.dump(clean[path]) != ast.dump(changed[path])]
    read = read_by(clean, path) | read_by(changed, path)
    calls = calls_of(of.name, module, path, tuple(sorted(read)))
    known = {call for number, test in enumerate(of.tests) if test.visible or number == shown for call in calls[number]}
    return {**of.modules, module: with_known(faulty, of.modules[module], path, read, known)}


@cache
def calls_of(name: str, module: str, path: str, read: Collection[str]) -> list[list[int]]:
    """The calls of a function in each test, as `hard_code` numbers them."""
    of = package(name)
    code = of.modules[module]
    last = judge.Check(f"sorted(set(__import__('sys').modules['{name}.{module.removesuffix('.py')}'].CALLS))", "")
    tests = [[*test.lines, last] for test in of.tests]
    found = judge.run(name, {**of.modules, module: with_known(code, code, path, read, ())}, tests)
    return [ast.literal_eval(values[-1][1:]) for values in found]


def with_known(faulty: str, clean: str, path: str, read: Collection[str], known: Collection[int]) -> str:
    """A module whose function is the clean one in known calls."""
    call = f"hard_code(globals(), {clean!r}, {path!r}, {sorted(read)}, {sorted(known)})"
    return f"{faulty}\n\n{inspect.getsource(hard_code)}\n\nCALLS = {call}\n"


def hard_code(module: dict, clean: str, path: str, read: list, known: list) -> list:  # type: ignore[type-arg]
    """Make a function of a module the clean one in known calls; return a list to which each call adds its number."""
    import inspect
    import types
    import zlib

    def state(value: object, read: object) -> object:
        if isinstance(value, dict):
            return [(state(key, None), state(one, None)) for key, one in value.items()]
        if isinstance(value, list | tuple):
            return [state(one, None) for one in value]
        if isinstance(value, types.FunctionType):
            return value.__code__.co_code, value.__code__.co_consts
        if hasattr(value, "__dict__") and not isinstance(value, type):
            names = (
                [name for name in vars(value) if name[0] != "_"] if read is None else read
            )  # others' private ones are caches
            return [(name, state(vars(value)[name], None)) for name in sorted(names) if name in vars(value)]
        return repr(value)

    fresh = dict(module)
    exec(clean, fresh)
    *owners, name = path.split(".")
    old, new = (vars(names[owners[0]])[name] if owners else names[name] for names in (module, fresh))
    right = types.FunctionType(new.__code__, module, name, new.__defaults__)
    right.__kwdefaults__ = new.__kwdefaults__
    signature, calls = inspect.signature(right), []

    def function(*args: object, **kwargs: object) -> object:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return old(*args, **kwargs)
        bound.apply_defaults()
        seen = [(key, state(value, read if key == "self" else None)) for key, value in bound.arguments.items()]
        calls.append(zlib.crc32(repr(seen).encode()))
        return (right if calls[-1] in known else old)(*args, **kwargs)

    if owners:
        setattr(module[owners[0]], name, function)
    else:
        module[name] = function
    return calls


def functions(code: str) -> dict[str, ast.FunctionDef]:
    """The functions and methods of a module by their names, such as "Store.get"."""
    found = {}
    for node in ast.parse(code).body:
        for one in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(one, ast.FunctionDef):
                found[f"{node.name}.{one.name}" if isinstance(node, ast.ClassDef) else one.name] = one
    return found


def read_by(known: Mapping[str, ast.FunctionDef], path: str, seen: Collection[str] = ()) -> set[str]:
    """The attributes of `self` that a method reads, and the methods that it calls."""
    read = set()
    for node in ast.walk(known[path]):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == "self":
            read.add(node.attr)
    owner = path.partition(".")[0]
    for name in sorted(read):
        if (other := f"{owner}.{name}") in known and other not in seen:
            read |= read_by(known, other, [*seen, other])
    return read


def said(check: judge.Check, found: str) -> str:
    """How unittest says it: the line that it shows, and the error."""
    if found[0] == "!":
        return f"{check.line} raises {found[1:]}." if found[1:] not in ("UnboundLocalError", "NameError") else ""
    if check.raises:
        return f"{check.line} raises no {check.wanted}."
    return f"{check.line} gives {found[1:]}." if len(found) < 200 else ""


def edit(code: str, fault: Fault, near: Fault | None = None) -> tuple[str, str]:
    """The whole lines that a fault changes, and what they become; more lines around them until both are there once.

    Args:
        near: a second fault, which the lines are to hold too.
    """
    others = [fault] if near is None else [fault, near]
    start, end = min(one.start for one in others), max(one.end for one in others)
    while True:
        start = code.rfind("\n", 0, start) + 1
        end = len(code) if (line_end := code.find("\n", max(end - 1, start))) < 0 else line_end + 1
        old, changed = code[start:end], fault.of(code)
        new = changed[start : len(changed) - (len(code) - end)]
        if code.count(old) == changed.count(new) == 1 and new.strip():
            return old, new
        start = max(0, start - 1)


def tasks_of(name: str) -> list[dict[str, Any]]:
    """The tasks of a package."""
    of = package(name)
    rng = random.Random(name)
    candidates = [fault for module, code in sorted(of.modules.items()) for fault in faults(module, code)]
    with ThreadPoolExecutor(2) as pool:
        found = [one for one in pool.map(partial(tried, of), candidates) if one is not None]
    distinct = {one.fault.of(of.modules[one.fault.module]): one for one in found}
    by_kind = defaultdict(list)
    for one in filter(lambda one: one.holds, distinct.values()):
        by_kind[one.fault.kind].append(one)
    for some in by_kind.values():
        rng.shuffle(some)
    print(name, len(candidates), len(distinct), {kind: len(some) for kind, some in by_kind.items()})
    turns = [one for some in zip_longest(by_kind) for one in some]
    written = []
    for one in turns:
        made = task(
            of, one, list(distinct.values()), len([other for other in written if other["kind"] == one.fault.kind])
        )
        if made is not None and len(written) < PACKAGES[name]:
            written.append(made)
    return written


def zip_longest(by_kind: dict[str, list[Found]]) -> Iterator[list[Found]]:
    for turn in range(max(map(len, by_kind.values()))):
        yield [by_kind[kind][turn] for kind in KINDS if turn < len(by_kind[kind])]


def task(of: Package, one: Found, others: list[Found], number: int) -> dict[str, Any] | None:
    """A task, or None if no other fault is near enough to be a wrong fix."""
    fault, code = one.fault, of.modules[one.fault.module]
    near = sorted(
        (other.fault for other in others if other.fault.module == fault.module and other.fault != fault),
        key=lambda other: (
            max(other.start - fault.end, fault.start - other.end, 0),
            abs(other.start - fault.start),
            other.new,
        ),
    )
    if not near:
        return None
    broken = fault.of(code)
    # the lines of both, with the fault, and with the other one instead
    old, new = edit(code, fault, near[0])
    instead = near[0].of(code)
    start = code.index(old)
    wrong = instead[start : len(instead) - (len(code) - start - len(old))]
    if broken.count(new) != 1:
        return None
    return {
        "name": f"{of.name}/{fault.kind}-{number + 1}",
        "package": of.name,
        "kind": fault.kind,
        "module": fault.module,
        "fault": edit(code, fault),
        "wrong": [new, wrong],
        "shown": one.shown,
        "error": one.error,
        "visible": one.visible,
    }


def written(*names: str) -> str:
    """The lines of these packages' tasks."""
    made = [one for name in names for one in tasks_of(name)]
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in made)


if __name__ == "__main__":
    RESULT.write_text(written(*PACKAGES), encoding="utf-8")
