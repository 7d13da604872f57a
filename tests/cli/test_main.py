import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.commands import verbs
from wm_plugin.cli import demo, main, output
from wm_plugin.errors import MissingExtraError, UserError, install
from wm_plugin.runtime import secrets

LIGHT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        assert name not in ("torch", "trl", "verl", "transformers", "datasets", "numpy", "pandas", "pyarrow"), name
sys.meta_path.insert(0, Blocked())
from wm_plugin.cli.main import main
"""
EACH = """
import contextlib, io, json
results = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


def wm(*commands: list[str]) -> list[list[int | str]]:
    """Exit code, standard output and standard error of each command, in one process that can import nothing heavy."""
    done = subprocess.run(
        [sys.executable, "-c", LIGHT + EACH, json.dumps(commands)], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def error_of(capsys, *arguments):
    """The one line on standard error of bad input."""
    assert main.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("wm: ")
    assert "Traceback" not in err
    return err


def test_help_and_mistakes_import_nothing_heavy():
    """`LIGHT` refuses what takes seconds, so that they come at once."""
    groups = [[verb, "--help"] for verb, steps in main.VERBS.items() if steps]
    for code, out, err in wm([], ["--help"], ["masks", "--help"], ["doctor", "--help"], ["--version"], *groups):
        assert (code, err) == (0, "")
        assert out
        assert ("--json" in out) is not out.startswith((*(f"Usage: wm {group}" for group, _ in groups), "wm-plugin"))
    for code, out, err in wm(["mask"], ["masks", "--htlm=x"], ["masks"], ["doctor", "x"], ["lab", "best"]):
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_help_names_every_verb_and_a_first_step(capsys):
    assert main.main([]) == 0
    alone = capsys.readouterr().out
    assert main.main(["--help"]) == 0
    assert capsys.readouterr().out == alone
    for verb in main.VERBS:
        assert re.search(rf"│ {verb} +[A-Z]", alone)
    assert "wm masks --example" in alone


VERBS = [
    words for words in verbs() if words != ("train",) and not main.VERBS.get(words[-1])
]  # its flags are the trainer's


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_flag_is_explained_once_and_has_its_group(words):
    """Its type, default and help stand once: at the parameter of the verb, or in the model that declares it."""
    app = main.make_app(words)
    for word in words:
        app = app[word]
    arguments = [one for one in app.assemble_argument_collection(parse_docstring=True) if one.show]
    for argument in arguments:
        assert argument.parameter.help, argument.name
    names = [name for argument in arguments for name in argument.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("words", "parameter", "defaults"),
    [
        ("lab reflect x --out y --world grid --propose random", "writer", {"temperature": 1.0, "max_new_tokens": 2048}),
        ("lab search-prompts x --out y --prompts rwml --proposer-model m", "output", {"max_new_tokens": 32768}),
        ("env rollout grid --policy random --count 1 --out x", "work", {"shard_size": 64}),
        ("eval lookahead grid", "policy", {"temperature": 1.0, "max_new_tokens": 512}),
    ],
)
def test_a_verb_has_defaults_of_its_own_with_and_without_a_flag_of_the_group(words, parameter, defaults):
    flags = {
        "writer": "--concurrency 3",
        "output": "--proposer-temperature 2",
        "work": "--work w",
        "policy": "--no-seed",
    }
    for arguments in (words, f"{words} {flags[parameter]}"):
        options = main.parse(arguments.split())[1].arguments.get(parameter)
        if options is None:  # nothing of the group was given
            options = inspect.signature(main.parse(arguments.split())[0]).parameters[parameter].default
        assert {name: getattr(options, name) for name in defaults} == defaults


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mask"], "no verb 'mask'; did you mean 'masks'?"),
        (["zzz"], f"; there is {', '.join(map(repr, sorted(main.VERBS)))}"),
        (["eval", "one-stp"], "no verb 'eval one-stp'; did you mean 'eval one-step'?"),
        (["--jsno"], "no flag '--jsno'; see wm --help"),
        (["masks", "--htlm", "x"], "no flag --htlm. Did you mean --html?; see wm masks --help"),
        (["masks", "--exampl"], "Did you mean --example?"),
        (["masks", "--limit", "many"], '--limit: unable to convert "many" into int; see wm masks --help'),
        (["masks", "--limit", "-1"], "--limit is -1; write a number >= 0"),
        (["masks", "--limit"], "--limit requires an argument"),
        (["doctor", "here"], "no place for 'here'; see wm doctor --help"),
        (["eval", "one-step"], "SOURCE requires an argument; see wm eval one-step --help"),
        (["env", "rollout", "grid", "--polcy", "x"], "no flag --polcy; did you mean '--policy'?"),
        (["env", "rollout", "grid", "--policy", "random", "--count", "1", "--out", "x", "--host", "a"], "trl"),
        (["simulate", "grid"], "no verb 'simulate'; did you mean 'lab simulate'?"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(capsys, arguments, said):
    assert said in error_of(capsys, *arguments)


def test_the_last_of_a_repeated_flag_counts(capsys):
    assert "--limit is -2" in error_of(capsys, "masks", "--limit", "-1", "--limit", "-2")


@pytest.fixture
def verb(monkeypatch):
    """Makes `wm demo` do something else."""

    def replace(run, show=None):
        def made():
            return run(None)

        if show:
            made.show = show
        monkeypatch.setattr(demo, "demo", made)

    return replace


def raises(error):
    def run(args):
        raise error

    return run


def test_user_errors_are_one_line_without_control_characters(capsys, verb):
    verb(raises(UserError("first\n  second \x1b[31m größe")))
    assert error_of(capsys, "demo") == "wm: first second \\x1b[31m größe\n"
    verb(raises(MissingExtraError("the demo", "trl", "demo")))
    assert install("demo") in error_of(capsys, "demo")


@pytest.mark.parametrize("error", [KeyError("bug"), BrokenPipeError("not standard output")])
def test_other_errors_keep_their_traceback(verb, error):
    verb(raises(error))
    with pytest.raises(type(error)):
        main.main(["demo"])


def test_an_interrupt_is_one_line(capsys, verb):
    verb(raises(KeyboardInterrupt()))
    assert main.main(["demo"]) == 130
    assert capsys.readouterr() == ("", "wm: interrupted\n")


@pytest.mark.parametrize("error", [UserError, lambda text: OSError(5, text), lambda text: OSError(5, "no", text)])
def test_keys_are_not_in_errors(capsys, verb, monkeypatch, error):
    monkeypatch.setattr(secrets, "_forms", set())
    monkeypatch.setattr(secrets, "_pattern", None)
    secrets.hold("sk-1234567890")
    verb(raises(error("Bearer sk-1234567890 is wrong")))
    assert main.main(["demo"]) in (1, 2)
    err = capsys.readouterr().err
    assert "Bearer [key] is wrong" in err
    assert "sk-1234567890" not in err


def test_json_is_one_object_and_the_rest_is_for_people(capsys, verb):
    verb(lambda _: {"a": [1, "ö"]}, show=lambda result: print("for people", result["a"]))
    assert main.main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": [1, "ö"]}
    assert main.main(["demo"]) == 0
    assert capsys.readouterr().out == "for people [1, 'ö']\n"


@pytest.mark.parametrize(("result", "code"), [({}, 0), ({"ok": True}, 0), ({"ok": False}, 1)])
def test_exit_codes_come_from_the_result(capsys, verb, result, code):
    verb(lambda _: result)
    assert main.main(["demo", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == result


@pytest.mark.parametrize("buffering", ["", "1"])
def test_a_reader_that_leaves_is_not_an_error(buffering):
    code = f"import sys; sys.stdin.read(1)\n{LIGHT}sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--version"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": buffering},
    )
    process.stdout.close()
    _, err = process.communicate(b"go", timeout=60)
    assert (process.returncode, err) == (1, b"")


def test_train_hands_on_its_arguments_and_exit_code(capsys, monkeypatch):
    seen = []
    entry = SimpleNamespace(main=lambda argv: seen.append(argv) or 5)
    monkeypatch.setitem(sys.modules, "wm_plugin.trl.train", entry)
    arguments = ["--config", "x.yaml", "--help-all", "--json", "--learning_rate", "-1", "--version", "plain"]
    assert main.main(["train", *arguments]) == 5
    assert seen == [arguments]
    assert capsys.readouterr() == ("", "")


def test_train_without_trl_says_what_to_install(capsys, monkeypatch):
    for name in [name for name in sys.modules if name == "wm_plugin.trl" or name.startswith("wm_plugin.trl.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "trl", None)
    assert install("trl") in error_of(capsys, "train")


STARTS = {
    "wm": "from {module} import {name}; sys.exit({name}())",  # as the installed script does it
    "wm_plugin": "import runpy; runpy.run_module('wm_plugin', run_name='__main__', alter_sys=True)",
}
INTERRUPTED = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
"""


LATE = ("wm_plugin.cli.masks", None)  # after half a second of imports; by day in one of the ways to start


@pytest.mark.parametrize(
    ("start", "at"),
    [
        pytest.param(start, at, marks=pytest.mark.slow if at in LATE and start != "wm" else ())
        for start in STARTS
        for at in ("cyclopts", "wm_plugin.errors", "wm_plugin.runtime.command", *LATE)
    ],
)
def test_an_interrupt_while_it_starts_is_one_line(start, at):
    script = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]["wm"]
    module, name = script.split(":")
    code = INTERRUPTED.format(at=at) + STARTS[start].format(module=module, name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    if at is None:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: wm ")
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "wm: interrupted\n")


def test_no_name_in_a_result_acts_on_the_terminal():
    result = {"\x1b[31mreason": ["\u202eback", 1, {"a": "half \ud800"}], "plain": "ü\n", "none": None}
    assert output.readable(result) == {
        "\\x1b[31mreason": ["\\u202eback", 1, {"a": "half \\ud800"}],
        "plain": "ü\n",
        "none": None,
    }


def test_json_has_null_for_a_number_that_is_not_finite(capsys, verb):
    nan, infinity = float("nan"), float("inf")
    result = {"a": nan, "b": [infinity, 1.5, (nan,)], "c": {"d": -infinity}}
    verb(lambda _: result)
    assert main.main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5, [None]], "c": {"d": None}}


def test_help_keeps_what_stands_in_angle_brackets(capsys):
    """The help is Markdown, in which a bare `<think>` is markup and vanishes."""
    assert main.main(["lab", "reflect", "--help"]) == 0
    assert "<think>...</think>" in capsys.readouterr().out
