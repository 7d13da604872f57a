"""Names that follow from the one that the user gave: what is there is written over only if a run of ours wrote it.

The table is closed against the code: a new derived name joins it, or says why it needs no check.
"""

import ast
import json
import os
from pathlib import Path

import pytest

from wm_plugin.cli.data.expand import expand
from wm_plugin.data.easy import SCORES, write_filtered
from wm_plugin.data.readers.base import Reject
from wm_plugin.data.write import write
from wm_plugin.errors import UserError

ROOT = Path(__file__).parents[2]
DERIVES = {"with_name", "with_suffix", "with_stem"}
# Where names are derived, and what comes of them.
PLACES = {
    "wm_plugin/worlds/agents/collect.py _read_shard": "the rejects of a shard, in the folder X.work",
    "wm_plugin/cli/data/expand.py expand": "X.validation.jsonl",
    "wm_plugin/cli/support.py work_folder": "X.work",
    "wm_plugin/lab/pipelines/engine.py _work_folders": "X.work of a command, which is moved aside with X",
    "wm_plugin/data/summary.py scores_beside": "X.easy.jsonl",
    "recipes/pipelines/tables.py write": "the same table, as text",
    "wm_plugin/data/parallel.py _convert": "the rejects of a part, in an unfinished folder",
    "wm_plugin/data/write.py path_of_rejects": "X.rejects.jsonl",
}
SERVED = ["--server", "http://localhost:1/v1", "--server-model", "m", "--prompts", "no.yaml"]
PROPOSED = ["--world", "grid", "--propose", "random"]
SYNTHESIZE = ["lab", "synthesize", "grid", "--policy", "random", "--simulation", "sim.yaml", "--count", "1"]
ROLLOUT = ["env", "rollout", "grid", "--policy", "random", "--count", "1"]
BEST = ["--judge", "exact", "--threshold", "1"]
CONVERT, EXPAND = ["data", "convert", "rows.jsonl"], ["data", "expand", "good.jsonl", "--validation-share", "0.5"]
# A command and a name that it derives of x.jsonl.
DERIVED = [
    pytest.param(CONVERT, "x.rejects.jsonl", id="convert"),
    pytest.param([*CONVERT, "--workers", "2"], "x.rejects.jsonl", id="convert, workers"),
    pytest.param(["data", "filter", "rows.jsonl"], "x.rejects.jsonl", id="filter"),
    pytest.param(EXPAND, "x.validation.jsonl", id="expand"),
    pytest.param(["data", "easy", "rows.jsonl", *SERVED], "x.easy.jsonl", id="easy"),
    pytest.param(["data", "easy", "rows.jsonl", *SERVED], "x.work", id="easy, work"),
    pytest.param(["lab", "best", "rows.jsonl", *SERVED, *BEST], "x.work", id="best, work"),
    pytest.param(["lab", "scenarios", "grid", *SERVED[:4]], "x.work", id="scenarios, work"),
    pytest.param(["lab", "context", "rows.jsonl", *SERVED[:4]], "x.work", id="context, work"),
    pytest.param(["lab", "alternatives", "rows.jsonl", *PROPOSED], "x.work", id="alternatives, work"),
    pytest.param(["lab", "reflect", "rows.jsonl", *PROPOSED, *SERVED[:4]], "x.work", id="reflect, work"),
    pytest.param(SYNTHESIZE, "x.rejects.jsonl", id="synthesize"),
    pytest.param(SYNTHESIZE, "x.work", id="synthesize, work"),
    pytest.param(ROLLOUT, "x.rejects.jsonl", id="rollout", marks=pytest.mark.host),
    pytest.param(ROLLOUT, "x.work", id="rollout, work", marks=pytest.mark.host),
]
OTHERS = {
    "text": "mine\n",
    "more keys": json.dumps({**dict.fromkeys(("file", "row", "reason", "raw")), "mine": 1}),
    "trajectories": json.dumps({"turns": [], "context": {}}),
    "bytes": "\ud800",
}
ROW = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}] * 2}


def derivations() -> dict[str, str]:
    places = {}
    for path in [*ROOT.glob("wm_plugin/**/*.py"), *ROOT.glob("recipes/**/*.py")]:
        text = path.read_text()
        if not any(f".{name}(" in text for name in DERIVES):
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                methods = [call for call in calls if isinstance(call, ast.Attribute)]
                # beside a module lie this package's own files
                names = {call.attr for call in methods if ast.unparse(call.value) != "Path(__file__)"}
                if names & DERIVES:
                    places[f"{path.relative_to(ROOT)} {function.name}"] = ""
    return places


def test_the_table_has_every_derived_name():
    assert sorted(derivations()) == sorted(PLACES)
    derived = {parameters.values[1].removeprefix("x") for parameters in DERIVED}
    assert derived == {what[1:] for what in PLACES.values() if what.startswith("X.") and " " not in what}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{json.dumps({**ROW, 'id': number})}\n" for number in range(9))
    Path("good.jsonl").write_text(rows)
    Path("rows.jsonl").write_text(f"{rows}broken\n")


def files() -> dict[str, bytes | str]:
    paths = [path for path in Path().rglob("*") if path.is_symlink() or path.is_file()]
    return {str(path): os.readlink(path) if path.is_symlink() else path.read_bytes() for path in paths}


def refused(wm, command: list[str]) -> str:
    before = files()
    line: str = wm.error(*command, "--out", "x.jsonl")
    assert files() == before
    return line


@pytest.mark.parametrize(("command", "name"), DERIVED)
def test_what_no_run_wrote_stays(wm, command, name):
    path = Path(name)
    if name == "x.work":
        path.write_text("mine")
        refused(wm, command)
        path.unlink()
    else:
        for text in OTHERS.values():
            path.write_text(text, errors="surrogatepass")
            assert f"{name}: holds something else than" in refused(wm, command)
        path.unlink()
        path.mkdir()
        assert f"{name}: is a folder" in refused(wm, command)
        path.rmdir()
        os.mkfifo(path)
        assert f"{name}: is no regular file" in refused(wm, command)
        path.unlink()
    for target in ("rows.jsonl", "nothing", "folder"):
        Path("folder").mkdir(exist_ok=True)
        path.symlink_to(target)
        refused(wm, command)
        path.unlink()


@pytest.mark.parametrize("command", [CONVERT, EXPAND], ids=["convert", "expand"])
def test_what_an_earlier_run_wrote_is_written_over(wm, command):
    arguments = [*command, "--out", "x.jsonl"]
    wm.text(*arguments)
    before = files()
    assert len(before) == 4
    for _ in range(2):
        wm.text(*arguments)
        assert files() == before
        for name in before.keys() - {"rows.jsonl", "good.jsonl"}:
            Path(name).write_text("")  # nothing is lost


RUNS = {
    "x.rejects.jsonl": lambda rows: write(rows, "x.jsonl"),
    "x.validation.jsonl": lambda rows: _expand(rows),
    "x.easy.jsonl": lambda rows: write_filtered(filter(None, rows), [], Path("x.jsonl"), threshold=0.2),
}


def _expand(rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wm_plugin.cli.data.expand.read", lambda _: iter(list(rows)[:0]))
        expand("good.jsonl", out=Path("x.jsonl"), validation_share=0.5)


@pytest.mark.parametrize("name", RUNS)
def test_what_appears_during_a_run_stays(name):
    def rows():
        Path(name).write_text("mine")
        yield Reject("rows.jsonl", 1, "broken", "x", "") if name == "x.rejects.jsonl" else None

    with pytest.raises(UserError, match=f"{name}: holds something else than"):
        RUNS[name](rows())
    assert Path(name).read_text() == "mine"
    assert not list(Path().glob(".wm-*"))


def test_transitions_in_either_form_are_ours(wm):
    wm.text(*EXPAND, "--out", "x.jsonl", "--repeat-history")
    wm.text(*EXPAND, "--out", "x.jsonl")
    Path("x.easy.jsonl").write_text(json.dumps(dict.fromkeys(SCORES)))
    assert "no.yaml" in wm.error("data", "easy", "good.jsonl", *SERVED, "--out", "x.jsonl")


@pytest.mark.parametrize(
    "command", [("data", "easy", "rows.jsonl", *SERVED), ("lab", "best", "rows.jsonl", *SERVED, *BEST)]
)
def test_an_output_is_no_intermediate_result(wm, command):
    arguments = [*command, "--work", "w", "--out"]
    Path("w/predictions").mkdir(parents=True)
    Path("link").symlink_to("w/predictions")
    for name in ("w/predictions/predictions-00000.jsonl", "link/predictions-00001.jsonl"):
        assert "has the name of an intermediate result" in wm.error(*arguments, name)
    assert "no.yaml" in wm.error(*arguments, "w/x.jsonl")
