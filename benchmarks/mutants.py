"""Which small changes of the code does no test notice? Mutation testing of a few modules, each with its own tests.

    python benchmarks/mutants.py [--count 30] [--seed 0] [NAME...]

A mutant is one change of one module: a comparison, an operator, a constant, a condition, or what a function returns. Each is
tried in a fork of a process that has imported torch, so that it costs no more than its tests; files are not touched. Prints the
survivors, and the share that was killed. A survivor is either equivalent, which mutants.yaml explains, or a missing assertion:
then the exit code is 1. Writes the modules' rows in results/mutants.json and .md; those that are not named keep theirs.
"""

import argparse
import ast
import contextlib
import copy
import gc
import importlib.abc
import importlib.machinery
import io
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stamps import ROOT, stamp

RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
REASONS = Path(__file__).with_suffix(".yaml")  # module -> mutant -> why no test can notice it
TARGETS: dict[str, list[str]] = {  # module -> its tests, those that are about it first
    "objectives/base": ["tests/objectives/test_echo.py", "tests/objectives", "tests/test_options.py"],
    "objectives/echo": ["tests/objectives/test_echo.py", "tests/objectives"],
    "objectives/empty_batches": ["tests/objectives/test_empty_batches.py"],
    "objectives/guard": ["tests/objectives/test_guard.py"],
    "objectives/information": ["tests/objectives/test_information.py"],
    "objectives/metrics": ["tests/objectives/test_metrics.py", "tests/objectives"],
    "objectives/run": ["tests/objectives/test_run.py", "tests/objectives"],
    "objectives/schedule": ["tests/objectives/test_schedule.py"],
    "objectives/turns": ["tests/objectives/test_turns.py"],
    "objectives/weigh": ["tests/objectives/test_weigh.py", "tests/objectives", "tests/test_options.py"],
    "hosting/annealing": ["tests/hosting/test_annealing.py"],
    "hosting/checks": ["tests/hosting/test_checks.py"],
    "hosting/config": ["tests/hosting/test_config.py"],
    "hosting/config_file": ["tests/hosting/test_config_file.py"],
    "hosting/dialogues": ["tests/hosting/test_dialogues.py"],
    "hosting/episode": ["tests/hosting/test_episode.py", "tests/hosting", "tests/worlds/wrappers"],
    "hosting/figures": ["tests/hosting/test_figures.py"],
    "hosting/hooks": ["tests/hosting/test_hooks.py"],
    "hosting/installation": ["tests/cli/test_doctor.py"],
    "hosting/optimizers": ["tests/hosting/test_optimizers.py"],
    "hosting/predictions": ["tests/hosting/test_predictions.py"],
    "hosting/rows": ["tests/hosting/test_rows.py"],
    "hosting/tags": ["tests/hosting/test_tags.py"],
    "hosting/tried": ["tests/hosting/test_tried.py"],
    "hosting/world": ["tests/hosting/test_world.py", "tests/hosting", "tests/worlds/wrappers"],
    "rewards/extract": ["tests/rewards/test_extract.py", "tests/rewards/test_no_prediction.py"],
    "rewards/verdict": ["tests/rewards/test_verdict.py"],
}
SECONDS = 60  # of processor time, for the tests of one mutant: an endless loop is noticed, on a busy machine, too

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATE: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


class Mutant(NamedTuple):
    line: int
    what: str  # the line of the module, with the change between «»
    tree: ast.Module


Row = dict[str, Any]  # of a module: `possible` and `tried` mutants, and the `survivors`


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a module. Annotations, docstrings, messages of errors and `if TYPE_CHECKING` stay."""
    tree, lines = ast.parse(source), source.encode().splitlines()
    for number, node in enumerate(_nodes(tree)):
        for what, change in _changes(node):
            mutated = copy.deepcopy(tree)
            change(list(_nodes(mutated))[number])
            line = lines[node.lineno - 1]
            end = node.end_col_offset if node.end_lineno == node.lineno else len(line)
            before, old, after = (
                part.decode() for part in (line[: node.col_offset], line[node.col_offset : end], line[end:])
            )
            marked = f"{before}«{old} → {what}»{after}".strip()
            yield Mutant(node.lineno, marked, ast.fix_missing_locations(mutated))


def _nodes(tree: ast.AST) -> Iterator[Any]:
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_params") or isinstance(
            tree, ast.Raise | ast.JoinedStr
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                if isinstance(child, ast.expr | ast.stmt):
                    yield child
                yield from _nodes(child)


def _changes(node: Any) -> Iterator[tuple[str, Any]]:
    def setting(name: str, value: Any) -> Any:
        return lambda found: setattr(found, name, value)

    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
        other = _COMPARE[type(node.ops[0])]
        yield other.__name__, lambda found: found.ops.__setitem__(0, other())
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATE:
        yield _OPERATE[type(node.op)].__name__, setting("op", _OPERATE[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield other_op.__name__, setting("op", other_op())
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "not", lambda found: setattr(found, "test", ast.UnaryOp(ast.Not(), found.test))
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield repr(node.value + 1), setting("value", node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield repr(not node.value), setting("value", not node.value)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "return None", setting("value", ast.Constant(None))


class _Loader(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Gives one module the code of a mutant."""

    def __init__(self, module: str, path: Path, tree: ast.Module) -> None:
        super().__init__(module, str(path))
        self.tree = tree

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, _name: str) -> Any:
        return compile(self.tree, self.path, "exec")


def survives(module: str, path: Path, tree: ast.Module, tests: Sequence[str]) -> bool:
    """Whether the tests pass with the mutant."""
    child = os.fork()
    if child == 0:
        code = 1
        with (
            contextlib.suppress(BaseException),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            import pytest

            sys.meta_path.insert(0, _Loader(module, path, tree))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            options = ["--core", "-x", "-q", "-m", "not slow and not nightly", "-p", "no:cacheprovider", "-n", "0"]
            code = int(pytest.main([*tests, *options]))
        os._exit(code)
    deadline = time.monotonic() + 10 * SECONDS  # one that waits
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1]) == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--count", type=int, default=30, help="mutants of a module, drawn at random (default: 30)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.chdir(ROOT)
    import hypothesis  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import torch._dynamo  # noqa: F401 - an optimizer's step would

    gc.freeze()  # a collection in a fork, which tests/conftest.py asks for, need not look at what is there already

    reasons: dict[str, dict[str, str]] = yaml.safe_load(REASONS.read_text())
    rows: dict[str, Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    unexplained = 0
    for name in args.names or TARGETS:
        path = ROOT / "wm_plugin" / f"{name}.py"
        module = f"wm_plugin.{name.replace('/', '.')}"
        if not survives(module, path, ast.parse(path.read_text()), TARGETS[name]):
            print(f"{name}: its tests fail without a mutant", file=sys.stderr)
            return 1
        found = list(mutants(path.read_text()))
        some = sorted(random.Random(args.seed).sample(found, min(args.count, len(found))), key=lambda one: one.line)
        left = [one for one in some if survives(module, path, one.tree, TARGETS[name])]
        print(f"{name}: {len(some) - len(left)} of {len(some)} killed ({len(found)} in all)", flush=True)
        for one in left:
            reason = reasons.get(name, {}).get(one.what)
            unexplained += reason is None
            print(f"  {one.line}: {one.what}\n    {reason or 'NOT EXPLAINED'}", flush=True)
        for what in reasons.get(name, {}).keys() - {one.what for one in found}:
            print(f"  explained, and no longer a mutant: {what}", flush=True)
        rows[name] = {"possible": len(found), "tried": len(some), "survivors": [one.what for one in left]}
        RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    RESULTS.with_suffix(".md").write_text(page(rows, reasons))
    stamp(RESULTS, {"count": args.count, "seed": args.seed}, args.names or list(TARGETS))
    return int(unexplained > 0)


def page(rows: Mapping[str, Row], reasons: Mapping[str, Mapping[str, str]]) -> str:
    """Return results/mutants.md."""
    rows = {name: rows[name] for name in TARGETS if name in rows}
    tried, survived = sum(row["tried"] for row in rows.values()), sum(len(row["survivors"]) for row in rows.values())
    killed = f"{tried - survived} changes ({(tried - survived) / tried:.0%})"
    lines = [
        "# Mutants",
        "",
        f"`python benchmarks/mutants.py` changed {len(rows)} modules in {tried} small ways, drawn at random from all that it "
        f"knows, and ran each module's own core tests: {killed} make a test fail.",
        "",
        "| module | possible | tried | killed | survivors |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        left = len(row["survivors"])
        lines.append(f"| `{name}` | {row['possible']} | {row['tried']} | {row['tried'] - left} | {left} |")
    lines += ["", "| survivor, with the change between «» | why no test can notice it |", "|---|---|"]
    for name, row in rows.items():
        for what in row["survivors"]:
            code = what.replace("|", "\\|")
            lines.append(f"| `{name}`: `{code}` | {reasons.get(name, {}).get(what, 'not explained')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
