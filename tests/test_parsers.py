"""Where the package turns text into values: `untrusted.py`, and a table of the few other files, each with its reason."""

import ast

import pytest

from support.patterns import PACKAGE, trees

# Whatever of these is called: parsers, and what runs text.
PARSERS = {
    *("json.loads", "json.load", "json.JSONDecoder", "orjson.loads", "from_json", "ast.parse", "tomllib.loads"),
    *("ijson.parse", "ijson.items", "ijson.kvitems", "ijson.basic_parse", "yaml.load", "yaml.safe_load", "yaml.parse"),
    *("ast.literal_eval", "eval", "exec", "compile", "pickle.load", "pickle.loads", "marshal.loads"),
}
CONFIG = "YAML of the user's own config"
OURS = "text that our own code, or the system, wrote"
ALLOWED = {
    "untrusted.py": "the place for text that others wrote",
    "data/files.py": "documents as streams; each value is checked for its depth",
    "data/readers/tau2.py": "documents as streams",
    "data/contexts.py": "YAML of texts, lists and mappings",
    "runtime/texts.py": CONFIG,
    "lab/evaluation/published.py": "code of a benchmark's checkout, read as data: what is no constant is one line",
    "hosting/config_file.py": CONFIG,
    "lab/pipelines/file.py": CONFIG,
    "lab/pipelines/records.py": OURS,
    "trl/doctor.py": CONFIG,
    "trl/train.py": CONFIG,
    "errors.py": OURS,
    "hosting/hooks.py": OURS,
    "hosting/tried.py": OURS,
    "lab/agents/synthesize.py": OURS,
    "lab/report/training.py": OURS,
    "lab/synthesis/scenarios.py": OURS,
    "lab/tiny/policy.py": OURS,
    "trl/demo/page.py": OURS,
    "runtime/sandbox.py": OURS,
    "worlds/docs/pages.py": OURS,
    "worlds/kit/described.py": OURS,
    "worlds/swe/tasks.py": OURS,
    "worlds/swe/judge.py": "literals of at most 2,000 characters",
}


def parses(tree: ast.Module) -> bool:
    """Whether a module calls a parser, or imports one by itself, so that its calls could not be found."""
    modules, functions = ({name.split(".")[side] for name in PARSERS if "." in name} for side in (0, -1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PARSERS:
            return True
        if isinstance(node, ast.ImportFrom) and node.module in modules and functions & {one.name for one in node.names}:
            return True
        if isinstance(node, ast.Import) and any(one.name in modules and one.asname for one in node.names):
            return True
    return False


def test_every_file_that_parses_is_known() -> None:
    found = {path.relative_to(PACKAGE).as_posix() for path, tree in trees().items() if parses(tree)}
    hint = "parse JSON with `wm_plugin.untrusted.loads`, or name the file in ALLOWED"
    assert not found - ALLOWED.keys(), f"these parse text on their own: {sorted(found - ALLOWED.keys())}; {hint}"
    assert not ALLOWED.keys() - found, f"these no longer do, take them out: {sorted(ALLOWED.keys() - found)}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        *[
            (f"def read():\n    return [{call}]", True)
            for call in ("json.loads(text)", "eval(text)", "ijson.items(f, '')")
        ],
        *[(f"x = {call}", False) for call in ("json.dumps(x)", "loads(text)", "text.eval()")],
        ("from json import loads", True),
        ("import yaml as y", True),
        ("from json import dumps", False),
    ],
)
def test_a_new_place_is_seen(source: str, found: bool) -> None:
    assert parses(ast.parse(source)) is found
