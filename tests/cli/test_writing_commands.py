"""Every command that writes, under attack: interrupted, without standard output, with a full disk, at places that refuse.

The table is closed against the verbs: a new command joins it, or says that it writes nothing.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from support.commands import verbs
from support.processes import members
from wm_plugin.cli import main
from wm_plugin.worlds.agents.collect import remove_shards

WRITING = {"--out", "--html", "--rejects", "--work"}  # the flags that name what is written
NOTHING = (
    "lab prompts",
    "lab coefficient",
    "doctor",
    "env check",
    "env list",
    "env play",
    "env serve",
    "lab simulate",
)  # what is saved, in test_simulate.py
# a folder that only a run of the same may write to (`measures.open_folder`, evaluation/test_measures.py; pipelines' own tests)
FOLDERS = (
    *("env new", "lab fictional", "lab search-prompts", "lab bench", "eval consistency", "lab foresight"),
    *("lab forgetting", "eval lookahead", "eval one-step", "lab perplexity", "lab weights", "lab pipeline"),
)
# trainings of minutes, and what asks a model; what they write goes through the functions of `outputs`, whose tests are in
# test_outputs.py of the data room
TRAININGS = (
    *("demo", "train", "lab alternatives", "lab best"),
    *("lab context", "data easy", "lab reflect", "lab scenarios", "lab synthesize"),
)
# command: its arguments, the flag of its output, the output's name, and inputs that it must not write over
COMMANDS: dict[str, tuple[list[str], str, str, list[str]]] = {
    "data convert": (["rows.jsonl"], "--out", "x.jsonl", ["rows.jsonl"]),
    "data filter": (["rows.jsonl"], "--out", "x.jsonl", ["rows.jsonl"]),
    "lab control": (["rows.jsonl", "--config", "control.yaml"], "--out", "x.jsonl", ["rows.jsonl", "control.yaml"]),
    "data expand": (["rows.jsonl"], "--out", "x.jsonl", ["rows.jsonl"]),
    "data inspect": (["rows.jsonl"], "--html", "x.html", ["rows.jsonl"]),
    "data build": (["rows.jsonl", "--as", "imitation", "--host", "trl"], "--out", "x.jsonl", ["rows.jsonl"]),
    "lab mix": (["rows.jsonl", "--count", "all"], "--out", "x.jsonl", ["rows.jsonl"]),
    "env rollout": (["grid", "--policy", "random", "--count", "3"], "--out", "x.jsonl", []),
    "lab audit": (["--reward", "exact", "--data", "rows.jsonl", "--attacks", "mine.md"], "--out", "x.md", ["mine.md"]),
    "masks": (
        ["spans.jsonl", "--tokenizer", "tok", "--config", "c.yaml"],
        "--html",
        "x.html",
        ["spans.jsonl", "c.yaml"],
    ),
    "report": (["rows.jsonl"], "--out", "x.html", ["rows.jsonl"]),
}
ROW = {
    "messages": [{"role": "user", "content": "hi"}]
    + [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "seen {n}"},
    ]
    * 3
}
STEPS = 6  # interrupts of a command
TRANSFORMERS = ("masks", "env rollout")  # tokenizers, and the schemas of tools
EACH = [pytest.param(name, marks=pytest.mark.host if name in TRANSFORMERS else ()) for name in COMMANDS]


def test_the_table_has_every_command_that_writes():
    commands = {" ".join(words): flags for words, flags in verbs().items() if "--json" in flags}
    assert sorted([*COMMANDS, *NOTHING, *FOLDERS, *TRAININGS]) == sorted(commands)
    for name, flags in commands.items():
        assert bool(WRITING & flags) is (name not in NOTHING and name != "train"), name


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("\n".join(json.dumps(ROW).replace("{n}", str(number)) for number in range(10)))
    Path("mine.md").write_text("- {name: mine, group: g, text: $right}\n")
    Path("c.yaml").write_text("coeff: 0.1\n")
    Path("control.yaml").write_text("perturbations: [{name: error, rate: 0.5}]\n")
    Path("spans.jsonl").write_text(json.dumps({"completion_ids": [5, 6], "spans": [[0, 1, "tool", "f", True]]}))
    return tmp_path


def command(name: str, out: str | Path, *more: str) -> list[str]:
    arguments, flag, _, _ = COMMANDS[name]
    if name == "masks" and not Path("tok").exists():
        from wm_plugin.lab.tiny.policy import make_tokenizer

        make_tokenizer().save_pretrained("tok")
    if name in ("data inspect", "masks", "report"):
        pytest.importorskip("jinja2")
    return [*name.split(), *arguments, flag, str(out), *more]


def files(folder: Path) -> dict[str, bytes]:
    """The files with their contents, without finished shards, from which a rollout goes on."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "x.work"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("name", EACH)
def test_places_that_cannot_be_written_to(wm, folder, name):
    out = COMMANDS[name][2]
    places = [
        f"{folder}{out}" for folder in ("rows.jsonl/no/", "rows.jsonl/", "/proc/", "/dev/full/", "x" * 252, "x\0")
    ]
    Path(f"there{Path(out).suffix}").mkdir()
    os.symlink("/dev/full", f"full{Path(out).suffix}")
    places += [f"there{Path(out).suffix}", f"full{Path(out).suffix}"]
    arguments = [command(name, place) for place in places]
    before = files(folder)
    for of_place in arguments:
        wm.error(*of_place)
    assert files(folder) == before
    assert not Path("/proc/x.work").exists()


@pytest.mark.parametrize("name", EACH)
def test_outputs_are_no_inputs(wm, folder, name):
    _, flag, out, inputs = COMMANDS[name]
    suffix = Path(out).suffix
    for number, source in enumerate([*inputs, *(["tok/tokenizer_config.json"] if name == "masks" else [])]):
        command(name, out)  # makes what it needs
        link, hard = f"link{number}{suffix}", f"hard{number}{suffix}"
        os.symlink(source, link)
        os.link(source, hard)
        before = files(folder)
        for other in [link, hard, *([source] if Path(source).suffix == suffix or flag == "--html" else [])]:
            assert "name another file" in wm.error(*command(name, other))
        assert files(folder) == before
        assert Path(link).is_symlink()


@contextmanager
def full_disk() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("name", EACH)
def test_a_full_disk(capsys, folder, name):
    arguments = command(name, COMMANDS[name][2])
    before = files(folder)
    with full_disk():
        code = main.main(arguments)
    assert (code, capsys.readouterr().err) == (1, "wm: File too large\n")
    assert files(folder) == before


class Interrupter:
    """Counts the lines of ours that a command runs, and interrupts it at one of them: the same in every run."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.lines, self.pid = at, 0, os.getpid()

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        return self.line if frame.f_globals.get("__name__", "").startswith("wm_plugin.") else None

    def line(self, frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        if event == "line" and os.getpid() == self.pid:
            self.lines += 1
            if self.lines == self.at:
                signal.raise_signal(signal.SIGINT)
        return self.line

    def run(self, arguments: list[str]) -> int:
        """The command's exit code. Counted is what runs where an interrupt is expected, not what answers to one."""

        def traced(argv: list[str]) -> int:
            before = sys.gettrace()
            sys.settrace(self)
            try:
                return inner(argv)
            finally:
                sys.settrace(before)

        inner, handler = main._run, signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(main, "_run", traced)
                return main.main(arguments)
        finally:
            signal.signal(signal.SIGINT, handler)


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_an_interrupt_at_any_moment(capsys, folder, name):
    out = Path(COMMANDS[name][2])
    arguments = command(name, out)
    assert main.main(arguments) == 0  # imports what it needs
    counted = Interrupter()
    assert counted.run(arguments) == 0
    before = files(folder)
    whole = out.read_bytes()
    capsys.readouterr()
    codes = []
    for step in range(STEPS):
        if step % 2:
            out.unlink()
        codes.append(Interrupter(1 + (counted.lines - 1) * step // (STEPS - 1)).run(arguments))
        assert (codes[-1], capsys.readouterr().err) in ((0, ""), (130, "wm: interrupted\n"))
        if out.exists():
            assert len(out.read_bytes()) == len(whole) or step % 2 == 0
        assert {name for name in files(folder) if not name.startswith(".wm-")} <= before.keys()
        out.write_bytes(whole)
    assert codes.count(130) > STEPS / 2  # a rollout goes on from its finished shards, and then runs fewer lines
    assert main.main(arguments) == 0
    assert files(folder).keys() == before.keys()


# what is started in the background of a shell has no interrupts unless it asks for them
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from wm_plugin.cli.main import main
print("ready", file=sys.stderr, flush=True)
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`wm data convert` of a file that takes longer than the test, in a session of its own, once it writes."""
    text = Path("rows.jsonl").read_text() + "\n"
    with open("rows.jsonl", "w") as file:
        for _ in range(12000):
            file.write(text)
    before = sorted(os.listdir())
    command = [sys.executable, "-c", PROGRAM, "data", "convert", "rows.jsonl", "--out", "x.jsonl", *words]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True)
    assert process.stderr.readline() == "ready\n"
    while sorted(os.listdir()) == before:  # until its unfinished file is there
        assert process.poll() is None
        time.sleep(0.01)
    yield process
    deadline = time.monotonic() + 20
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not members(process.pid)  # the workers end with it


def test_what_a_killed_run_left_is_removed(wm, folder):
    before = sorted(os.listdir())
    with started("--workers", "2") as process:
        time.sleep(0.5)  # until its processes are there
        process.kill()
        assert process.communicate(timeout=60) == ("", "")  # no warning of Python's tracker
    assert sorted(os.listdir()) != before
    Path("rows.jsonl").write_text(json.dumps(ROW))
    longest = f"{'é' * 124}.jsonl"  # 254 bytes: the names of unfinished files are no longer
    for out in (["x.jsonl"], [longest, "--rejects", "r.jsonl"]):
        wm.text("data", "convert", "rows.jsonl", "--out", *out)
    assert sorted(os.listdir()) == sorted([*before, "x.jsonl", longest])


@pytest.mark.parametrize(
    ("workers", "seconds"),
    [(1, 0.3), (2, 0), (2, 0.3), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 0), (2, 1)))],
)
def test_an_interrupt_of_a_terminal(folder, workers, seconds):
    """It goes to all processes of the group, while they start and while they write."""
    Path("x.jsonl").write_text("of an earlier run")
    before = sorted(os.listdir())
    with started("--workers", str(workers)) as process:
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "wm: interrupted\n")
    assert Path("x.jsonl").read_text() == "of an earlier run"
    assert sorted(os.listdir()) == before


TAKEN_AWAY = {
    "--version": ("closed",),
    "--help": ("left",),
    "env list": ("full",),
    "data convert rows.jsonl --out x.jsonl": ("full", "left"),
    "env play grid": ("closed",),
}  # in the fast tests; what is printed goes the same way in all


@pytest.mark.parametrize(
    ("stdout", "step"),
    [
        pytest.param(stdout, step, marks=() if stdout in fast else pytest.mark.slow)
        for stdout in ("closed", "full", "left")
        for step, fast in TAKEN_AWAY.items()
    ],
)
def test_standard_output_that_takes_nothing(folder, step, stdout):
    redirection = {"closed": ">&-", "full": ">/dev/full", "left": "| true"}[stdout]
    line = f'set -o pipefail; sleep 0.1; "$PYTHON" -c "$PROGRAM" {step} </dev/null {redirection}'
    environment = {**os.environ, "PYTHON": sys.executable, "PROGRAM": PROGRAM}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
    reasons = {"closed": "wm: standard output is closed\n", "full": "wm: No space left on device\n", "left": ""}
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"ready\n{reasons[stdout]}")
    assert Path("x.jsonl").exists() is ("convert" in step)


def test_standard_error_that_takes_nothing(folder):
    for redirection in (">&-", ">/dev/full"):
        line = f'"$PYTHON" -m wm_plugin data convert rows.jsonl --out rows.jsonl/x.jsonl 2{redirection}'
        environment = {**os.environ, "PYTHON": sys.executable}
        done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("data convert rows.jsonl --out x.jsonl --rejects rows.jsonl", "name another file"),
        ("data convert rows.jsonl --out x.jsonl --rejects x.jsonl --workers 2", "name another file"),
        ("data convert rows.jsonl --out x.jsonl --rejects .", "a folder"),
        ("data convert . --out rows.jsonl", "--out: rows.jsonl is the source rows.jsonl"),
        ("data inspect rows.jsonl --html /dev/stdout", "names of devices"),
        ("data inspect rows.jsonl --html /proc/self/fd/1", "names of devices"),
        ('BEST --judge-args {"prompt":"./rows.jsonl"} --out rows.jsonl', "name another file"),
        ('BEST --compare-args {"a":["rows.jsonl"]} --out rows.jsonl', "name another file"),
    ],
)
def test_other_outputs_that_are_no_places_for_one(wm, folder, words, said):
    best = (
        "lab best x.jsonl --judge exact --compare reference --prompts mcp --threshold 1 --server http://localhost:1/v1"
    )
    before = files(folder)
    assert said in wm.error(*words.replace("BEST", f"{best} --server-model m").split())
    assert files(folder) == before


@pytest.mark.host  # the schemas of tools
def test_a_folder_of_ones_own_beside_a_rollout_stays(wm, folder):
    arguments = ["env", "rollout", "grid", "--policy", "random", "--count", "1", "--out"]
    for name in ("notes.txt", "episodes-00000.jsonl"):
        mine = Path(f"{name}.d")
        mine.mkdir()
        (mine / name).write_text("mine")
        Path("x.work").symlink_to(mine)
        assert "x.work: a link to another folder" in wm.error(*arguments, "x.jsonl")
        Path("x.work").unlink()
        for work in ([], ["--work", "x.work"]):
            mine.rename("x.work")
            line = wm.error(*arguments, "x.jsonl", *work)
            assert "x.work: there are files in it, but no manifest.json of ours" in line
            assert [path.read_text() for path in Path("x.work").iterdir()] == ["mine"]
            Path("x.work").rename(mine)
    assert not Path("x.jsonl").exists()
    Path("y.work").mkdir()  # as a run leaves it that was killed at once
    Path("y.work/.wm-0-x.unfinished").touch()
    wm.text(*arguments, "y.jsonl")
    assert os.listdir("y.work") == [".wm-0-x.unfinished"]


@pytest.mark.host
def test_a_rollout_removes_its_own_shards_only(tmp_path):
    for name in ("episodes-00000", "episodes-00001", "episodes-00002", "episodes-2024"):
        (tmp_path / f"{name}.jsonl").touch()
        (tmp_path / f"{name}.rejects.jsonl").touch()
    (tmp_path / "manifest.json").touch()
    remove_shards(tmp_path, rows=9, shard_size=8)
    kept = [path.name.partition(".")[0] for path in tmp_path.glob("*.jsonl")]
    assert sorted(kept) == ["episodes-00002", "episodes-00002", "episodes-2024", "episodes-2024"]
    assert not (tmp_path / "manifest.json").exists()
