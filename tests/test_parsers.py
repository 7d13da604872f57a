"""Where the package turns text into values: `untrusted.py`, and a table of the few other places, each with its reason."""

import ast
from collections.abc import Iterator

import pytest

from support.patterns import PACKAGE, trees

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
        "yaml.parse",
    ),
    *("ast.literal_eval", "literal_eval", "eval", "exec", "compile", "pickle.load", "pickle.loads", "marshal.loads"),
    *("tomllib.load", "tomllib.loads", "ast.parse"),
}

SHALLOW = "behind `files.Shallow`, which leaves out what is too deep"
CHECKOUT = (
    "code of a benchmark's checkout, read as data: what is no constant is one line, and so is whatever they raise"
)
PLAIN = "events of YAML, bounded: no aliases, no tags, nothing but texts, lists and mappings"
CONFIG = "YAML of the user's own config; whatever it raises is one line"
OURS = "text that our own code, or the system, wrote"
ALLOWED = {
    SHALLOW: [
        "data/files.py _keys: ijson.parse(Shallow(file), use_float=True, buf_size=_BUFFER)",
        "data/files.py items: ijson.items(stream, place, use_float=True, buf_size=_BUFFER, multiple_values=place == '')",
        "data/files.py pairs: ijson.kvitems(stream, place, use_float=True, buf_size=_BUFFER)",
        "data/readers/tau2.py _profiles: ijson.items(events, 'tasks.item')",
        "data/readers/tau2.py _profiles: ijson.parse(files.Shallow(file), use_float=True)",
    ],
    CHECKOUT: [
        "lab/evaluation/published.py _tree: ast.parse(_text(path))",
        "lab/evaluation/published.py read: ast.literal_eval(nodes[-1].value)",
    ],
    CONFIG: [
        "cli/block.py read_block: yaml.safe_load(text)",
        "cli/masks.py _settings: yaml.safe_load(read_text(Path(args.config), '--config'))",
        "worlds/fictional/spec.py _of_yaml: yaml.safe_load(text)",
        "worlds/from_file.py _read: yaml.safe_load(Path(path).read_text(encoding='utf-8'))",
        "lab/evaluation/audit.py load_attacks: yaml.safe_load(text)",
        "lab/evaluation/forgetting.py config: yaml.safe_load(text)",
        "lab/evaluation/proposals.py load_styles: yaml.safe_load(source.read_text(encoding='utf-8'))",
        "data/prompts/file.py _read: yaml.safe_load(source.read_text(encoding='utf-8'))",
        "hosting/config_file.py read: yaml.safe_load(Path(path).read_text(encoding='utf-8'))",
        "trl/sharding.py _read: yaml.safe_load(path.read_text(encoding='utf-8'))",
    ],
    PLAIN: ["data/plain_yaml.py _built: yaml.parse(text, Loader=_LOADER)"],
    OURS: [
        "lab/agents/lookahead.py Decision.to_json: json.loads(self.action.to_bytes())",
        "lab/agents/synthesize.py _settings: json.loads(json.dumps({**values, 'world_model': model, 'files': files}, sort_keys=True, "
        "default=str))",
        "worlds/wrappers/verify_config.py VerifyConfig.as_mapping: json.loads(json.dumps(dataclasses.asdict(self), default=repr))",
        "errors.py _source: json.loads(metadata.distribution('wm-plugin').read_text('direct_url.json') or '{}')",
        "worlds/docs/pages.py _page: ast.parse(path.read_bytes())",
        "runtime/sandbox.py _kill: json.loads(info.read())",
        "worlds/forth/__init__.py problems: yaml.safe_load(Path(__file__).with_name('problems.yaml').read_text())",
        "hosting/hooks.py assigned_attributes: ast.parse(textwrap.dedent(inspect.getsource(base)))",
    ],
}


def calls(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(place, text) of each call that parses: the classes and functions around it, and the call itself."""

    def walk(node: ast.AST, place: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inner = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*place, child.name)
            if isinstance(child, ast.Call) and parses(child):
                yield ".".join(inner) or "(module)", ast.unparse(child)
            yield from walk(child, inner)

    return walk(tree, ())


def parses(call: ast.Call) -> bool:
    function = call.func
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and ast.unparse(call.func) in PARSERS


def places() -> dict[str, str]:
    """{file, function and call: the file}."""
    table = {}
    for path, tree in trees().items():
        name = path.relative_to(PACKAGE).as_posix()
        if name != HOME:
            table |= {f"{name} {place}: {text}": name for place, text in calls(tree)}
    return table


def test_every_place_that_parses_is_known() -> None:
    table = places()
    allowed = {place for named in ALLOWED.values() for place in named}
    unknown, gone = sorted(table.keys() - allowed), sorted(allowed - table.keys())
    hint = "parse JSON with `wm_plugin.untrusted.loads`, or name the place in ALLOWED"
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
    ],
)
def test_a_new_place_is_seen(source: str) -> None:
    body = f"class Reader:\n    async def read(self):\n        return [{source}]\n"
    assert list(calls(ast.parse(body))) == [("Reader.read", source)]


@pytest.mark.parametrize("source", ["json.dumps(x)", "loads(text)", "text.eval()"])
def test_what_parses_nothing_is_not(source: str) -> None:
    assert not list(calls(ast.parse(source)))


def test_no_parser_is_imported_under_another_name() -> None:
    """Calls are found by their names."""
    modules, functions = ({name.split(".")[side] for name in PARSERS if "." in name} for side in (0, -1))
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in modules and path.name != HOME:
                names = functions.intersection(alias.name for alias in node.names)
                assert not names, f"{path.relative_to(PACKAGE)} imports {names} from {node.module}; import the module"
            if isinstance(node, ast.Import):
                renamed = [alias.name for alias in node.names if alias.name in modules and alias.asname]
                assert not renamed, f"{path.relative_to(PACKAGE)} renames {renamed}"
