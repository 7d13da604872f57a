"""Where the package turns text into values: `untrusted.py`, and a table of the few other places, each with its reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "wm_plugin"
HOME = "untrusted.py"
# Whatever of these is called: parsers, and what runs text.
PARSERS = {
    *("json.loads", "json.load", "json.JSONDecoder", "orjson.loads", "from_json", "pydantic_core.from_json"),
    *(
        "ijson.parse",
        "ijson.items",
        "ijson.kvitems",
        "ijson.basic_parse",
        "yaml.load",
        "yaml.unsafe_load",
        "yaml.safe_load",
    ),
    *("ast.literal_eval", "literal_eval", "eval", "exec", "compile", "pickle.load", "pickle.loads", "marshal.loads"),
    *("tomllib.load", "tomllib.loads", "ast.parse"),
}
NUMBERS = {"int", "float"}  # of text: digits without end, other scripts' digits, 1_0, nan and infinities

ANOTHERS = "another change is to mend it"
SHALLOW = "behind `files.Shallow`, which leaves out what is too deep"
CONFIG = "YAML of the user's own config; whatever it raises is one line"
OURS = "text that our own code, or the system, wrote"
FITS = "a pattern before it allows a few plain digits only"
CAUGHT = "whatever it raises is caught beside it"
NUMBER = "a number already, or a bool"
ALLOWED = {
    ANOTHERS: ["cli/eval/audit.py run: json.loads(args.reward_args)"],
    SHALLOW: [
        "trajectories/files.py _keys: ijson.parse(Shallow(file), use_float=True, buf_size=_BUFFER)",
        "trajectories/files.py items: ijson.items(stream, place, use_float=True, buf_size=_BUFFER, multiple_values=place == '')",
        "trajectories/files.py pairs: ijson.kvitems(stream, place, use_float=True, buf_size=_BUFFER)",
        "trajectories/readers/tau2.py _profiles: ijson.items(events, 'tasks.item')",
        "trajectories/readers/tau2.py _profiles: ijson.parse(files.Shallow(file), use_float=True)",
    ],
    CONFIG: [
        "cli/masks.py _settings: yaml.safe_load(read_text(Path(args.config), '--config'))",
        "evaluation/audit.py load_attacks: yaml.safe_load(text)",
        "samples/prompts/file.py _read: yaml.safe_load(source.read_text(encoding='utf-8'))",
        "trl/train.py _read_yaml: yaml.safe_load(Path(path).read_text(encoding='utf-8'))",
    ],
    OURS: [
        "agents/collect.py collect.everything: int(path.stem.removeprefix('episodes-'))",
        "environments/check.py _main: int(count)",
        "environments/check.py _main: int(seeds)",
        "environments/dialogue/world.py case: int(postcode)",
        "environments/docs/pages.py _page: ast.parse(path.read_bytes())",
        "environments/forth/__init__.py problems: yaml.safe_load(Path(__file__).with_name('problems.yaml').read_text())",
        "environments/memory.py resident: int((path / 'stat').read_text().rpartition(')')[2].split()[1])",
        "environments/memory.py resident: int(Path(f'/proc/{process}/statm').read_text().split()[1])",
        "environments/shop/__init__.py ShopEnvironment.click: int(name[1:])",
        "environments/textworld.py Engine.step: int(moves[1])",
        "runtime/hooks.py assigned_attributes: ast.parse(textwrap.dedent(inspect.getsource(base)))",
        "trl/train.py _refuse: int(os.environ.get('RANK', '0'))",
    ],
    FITS: [
        "environments/dialogue/__init__.py _number: int(digits)",
        "environments/dialogue/user.py tells: float(number)",
        "environments/docs/__init__.py DocsEnvironment.open_lines: int(numbers[1])",
        "environments/docs/__init__.py DocsEnvironment.open_lines: int(numbers[2] or numbers[1])",
        "environments/kit/sqlite_guard.py _at_most: int(digits[1][:9] or 0)",
        "environments/sql/__init__.py is_right: float(numbers[0])",
        "environments/sql/__init__.py is_right: float(numbers[1])",
        "rewards/rule_checks.py _number: float(value.replace(',', ''))",
        "rewards/verdict.py number: float(match[1])",
        "rewards/verdict.py number: float(match[2])",
    ],
    CAUGHT: [
        "rewards/hosted.py _as_float: float(value)",
        "runtime/server.py _seconds: float(retry_after)",
        "trajectories/readers/base.py number_of: float(value)",
    ],
    NUMBER: [
        "agents/collect.py Summary.add: int(figures.get(name, 0))",
        "cli/data/easy.py show: float(mean)",
        "cli/env/play.py run: int(figures.pop('turns'))",
        "cli/main.py _run: int(args.run(args)['exit_code'])",
        "environments/alfworld.py Engine.step: float(won)",
        "environments/dialogue/world.py _order: int(final)",
        "environments/kit/commands.py CommandEnvironment._act: float(step['score'])",
        "environments/kit/protocol.py report: float(value)",
        "environments/kit/rows.py row_number: int(value)",
        "environments/metrics.py episode: float(counted[name])",
        "environments/metrics.py episode: float(environment_tokens)",
        "environments/metrics.py episode: float(policy_tokens)",
        "environments/metrics.py episode: float(truncated)",
        "environments/rewarded.py _rewarded.score: float(outcome)",
        "environments/rewarded.py _rewarded.score: int(counts.get('invalid', 0))",
        "environments/rewarded.py _rewarded.score: int(counts['actions'])",
        "environments/rewarded.py _rewarded.score: int(counts['effective'])",
        "environments/taxi.py start_states: int(state)",
        "environments/taxi.py step: int(_taxi().P[state][ACTIONS.index(action)][0][1])",
        "evaluation/audit.py _scores: float(value)",
        "evaluation/one_step.py _greedy: int(step)",
        "evaluation/report.py _svg: float(x)",
        "objectives/echo.py _checked_ratios: float(ratios.get(name, ratio))",
        "objectives/echo.py _checked_tools: float(multiplier)",
        "rewards/cache.py ReplyCache.__len__: int(self._open().execute('SELECT COUNT(*) FROM replies').fetchone()[0])",
        "rewards/detect.py GuardedReward._guarded: float(value)",
        "rewards/hosted.py HostedReward.figures: float(value)",
        "rewards/judge.py JudgeReward._read: float(value)",
        "rewards/rule_checks.py _whole: int(value)",
        "rewards/rules.py RuleReward.verdicts: float(verdict)",
        "samples/scores.py score: float(value)",
        "verl/agent_loop.py WorldModelLoopMixin.run: float(reward)",
        "verl/loss.py world_model_loss: float(data[COEFF])",
        "verl/loss.py world_model_loss: float(data[NUM_TOKENS])",
        "verl/loss.py world_model_loss: float(data[SILENT])",
        "verl/loss.py world_model_loss: int(data['dp_size'])",
        "verl/loss.py world_model_loss: int(data[NUM_TOOLS])",
        "verl/sft.py TokenisedSFTDataset.__init__: int(config.get('max_length', 1024))",
    ],
}


def calls(source: str) -> Iterator[tuple[str, str]]:
    """(place, text) of each call that parses: the classes and functions around it, and the call itself."""

    def walk(node: ast.AST, place: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inner = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*place, child.name)
            if isinstance(child, ast.Call) and parses(child):
                yield ".".join(inner) or "(module)", ast.unparse(child)
            yield from walk(child, inner)

    return walk(ast.parse(source), ())


def parses(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name not in NUMBERS:
        return name in PARSERS
    return bool(call.args) and may_be_text(call.args[0])


def may_be_text(argument: ast.expr) -> bool:
    """Whether the argument of a number is a name, an item, or made by a method of text; a syntactic guess that errs on text."""
    if isinstance(argument, ast.BoolOp):
        return any(map(may_be_text, argument.values))
    if isinstance(argument, ast.Call):
        methods = {
            "replace",
            "removeprefix",
            "removesuffix",
            "strip",
            "read_text",
            "group",
            "get",
            "pop",
            "decode",
            "split",
        }
        return isinstance(argument.func, ast.Attribute) and argument.func.attr in methods
    return isinstance(argument, ast.Name | ast.Subscript)


def found() -> dict[str, str]:
    """{file, function and call: the file}."""
    table = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name != HOME:
            table |= {f"{name} {place}: {text}": name for place, text in calls(path.read_text())}
    return table


def test_every_place_that_parses_is_known() -> None:
    table = found()
    allowed = {place for places in ALLOWED.values() for place in places}
    unknown, gone = sorted(table.keys() - allowed), sorted(allowed - table.keys())
    hint = "parse JSON with `wm_plugin.untrusted.loads` and check numbers with `untrusted.number`, or name the place in ALLOWED"
    assert not unknown, f"these parse text on their own: {unknown}; {hint}"
    assert not gone, f"ALLOWED names what is no longer there: {gone}; take it out"


@pytest.mark.parametrize(
    "source",
    [
        "json.loads(text)",
        "json.load(file)",
        "orjson.loads(text)",
        "eval(text)",
        "ast.literal_eval(text)",
        "int(text)",
        "float(row['x'])",
        "int(match[1])",
        "float(reply.strip())",
        "int(row.get('x') or 0)",
    ],
)
def test_a_new_place_is_seen(source: str) -> None:
    body = f"class Reader:\n    async def read(self):\n        return [{source}]\n"
    assert list(calls(body)) == [("Reader.read", source)]


@pytest.mark.parametrize(
    "source", ["json.dumps(x)", "loads(text)", "int()", "float('inf')", "int(a + b)", "text.eval()"]
)
def test_what_parses_nothing_is_not(source: str) -> None:
    assert not list(calls(source))


def test_no_parser_is_imported_under_another_name() -> None:
    """Calls are found by their names."""
    modules, functions = ({name.split(".")[side] for name in PARSERS if "." in name} for side in (0, -1))
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in modules and path.name != HOME:
                names = functions.intersection(alias.name for alias in node.names)
                assert not names, f"{path.relative_to(PACKAGE)} imports {names} from {node.module}; import the module"
            if isinstance(node, ast.Import):
                renamed = [alias.name for alias in node.names if alias.name in modules and alias.asname]
                assert not renamed, f"{path.relative_to(PACKAGE)} renames {renamed}"
