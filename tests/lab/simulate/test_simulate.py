"""`wm lab simulate`: lines to a world model behind a real server, alone and beside the real world."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from support.openai_server import OpenAIServer
from support.world_models import RealWorld
from wm_plugin.cli.main import main
from wm_plugin.data import samples
from wm_plugin.data.prompts import dialogue
from wm_plugin.data.prompts import load as load_prompts
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.real import RealEpisode
from wm_plugin.lab.simulate.beside import aligned
from wm_plugin.worlds.agents import rollout
from wm_plugin.worlds.worlds import load

pytestmark = pytest.mark.host
ROOT = Path(__file__).parents[3]
GRID, WORDLE = load("grid"), load("wordle")
ROW = ("grid", "--row", "2")  # six moves


def served(world, **settings):
    """A server whose world model is the real world itself, or what `lie` makes of it."""
    model = RealWorld(world, world.rows(3, 0, False, None, None), **settings)
    return OpenAIServer(reply=lambda body: model.answer(body["messages"]).text)


def simulate(monkeypatch, capsys, server, lines, *argv):
    """The exit code, what was printed, and the JSON object that stands last."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    named = ["--server", server.base_url, "--server-model", "m"]
    code = main(["lab", "simulate", *map(str, argv), *named, "--json"])
    printed = capsys.readouterr()
    lines = printed.out.strip().splitlines()
    return code, printed.out + printed.err, json.loads(lines[-1]) if code != 2 else None


def expert_lines(world, row=2, seed=0):
    """The moves of the world's expert."""
    environment, choose = world.make(), world.expert()
    environment.reset(**{k: v for k, v in world.rows(row + 1, seed, False, None, None)[row].items() if k != "prompt"})
    lines = []
    while (call := choose(environment)) is not None and not environment.over:
        getattr(environment, call[0])(**call[1])
        lines.append(json.dumps(call[1]))
    return lines


def test_a_perfect_world_model_agrees_to_the_end(monkeypatch, capsys):
    with served(GRID) as server:
        code, text, result = simulate(monkeypatch, capsys, server, expert_lines(GRID), *ROW, "--beside")
    assert code == 0
    assert (result["success"], result["over"], result["real_success"]) == (True, True, True)
    assert result["agreement"] == 1.0
    assert result["compared"] == result["turns"] == len(expert_lines(GRID))
    assert result["parted"] is None
    assert text.count("(The same.)") == result["turns"]
    assert "The world model says that the task is done." in text
    assert "the task is done]" in text  # on both sides, or it would not be the same


def test_a_lie_is_marked_and_counted_from_its_turn(monkeypatch, capsys):
    def lie(text, turn, row):
        return text.replace("#", "~") if turn == 2 else text

    with served(GRID, lie=lie) as server:
        _, text, result = simulate(monkeypatch, capsys, server, expert_lines(GRID)[:3], *ROW, "--beside")
    assert (result["turns"], result["compared"], result["parted"]) == (3, 3, 2)
    assert result["agreement"] == pytest.approx(2 / 3)
    marked = [line for line in text.splitlines() if line[:2] in ("+ ", "- ")]
    assert marked
    assert {line[0] for line in marked if "~" in line} == {"+"}
    assert {line[0] for line in marked if "#" in line} == {"-"}


def test_a_session_alone_compares_only_when_it_is_asked(monkeypatch, capsys):
    first, second, *_ = expert_lines(GRID)
    with served(GRID) as server:
        _, text, result = simulate(monkeypatch, capsys, server, ["real", first, "real", second], *ROW)
    assert "There is no turn yet" in text
    assert (result["turns"], result["compared"], result["agreement"]) == (2, 1, 1.0)


def test_undo_asks_what_would_have_been_asked_without_the_turn(monkeypatch, capsys):
    first, second, *_ = expert_lines(GRID)
    with served(GRID) as server:
        simulate(monkeypatch, capsys, server, [first, second], *ROW)
        straight = [body["messages"] for body in server.bodies]
    with served(GRID) as server:
        lines = ["undo", first, "U", "undo", second, "real"]
        _, text, result = simulate(monkeypatch, capsys, server, lines, *ROW)
        detour = [body["messages"] for body in server.bodies]
    assert "There is no turn to take back." in text
    assert "Back after turn 1." in text
    assert [detour[0], detour[-1]] == straight
    assert (result["turns"], result["agreement"]) == (2, 1.0)  # the real world goes the same way back


def trained(path):
    """The row that `wm data build --as word2world` makes of a file's trajectory, in each variant.

    A simulation draws the variant by the task, and training by the file and the row.
    """
    (saved,) = read(path)
    prompts = load_prompts("word2world")
    made = [dialogue(saved, prompts, variant=name, world_context=True).messages for name in prompts.variants]
    (row,) = samples(path, "word2world")
    assert row.messages in made
    return made


def test_what_is_asked_are_the_rows_that_the_model_is_trained_on(monkeypatch, capsys, tmp_path):
    """The saved trajectory, made into training rows, gives the requests byte for byte."""
    out = tmp_path / "x.jsonl"
    with served(WORDLE) as server:
        lines = ["crane", "slate", f"save {out}"]
        _, _, result = simulate(monkeypatch, capsys, server, lines, "wordle", "--seed", "0")
        bodies = [json.loads(raw)["messages"] for raw in server.received]
    assert result["saved"] == str(out)
    assert bodies in [[row[:2], row[:4]] for row in trained(out)]
    (saved,) = read(out)
    assert all(one.data["simulated"] is True for _, _, one in saved.observed())
    assert saved.metadata["simulated"] == {"model": "m", "prompts": "word2world"}


def test_nothing_is_written_over(monkeypatch, capsys, tmp_path):
    there, link = tmp_path / "x.jsonl", tmp_path / "link.jsonl"
    there.write_text("mine")
    link.symlink_to(tmp_path / "nowhere.jsonl")
    with served(GRID) as server:
        lines = [expert_lines(GRID)[0], f"save {there}", f"save {link}", "save", "save x.txt"]
        code, text, result = simulate(monkeypatch, capsys, server, lines, *ROW)
    assert (code, result["saved"], there.read_text()) == (0, None, "mine")
    assert text.count("is there already; name a new file") == 2
    assert not (tmp_path / "nowhere.jsonl").exists()
    assert "save needs a name" in text
    assert "write a name that ends in .jsonl or .parquet" in text


HIDDEN = "The hidden word is"


@pytest.mark.parametrize(
    ("flags", "shown"), [((), True), (("--hidden", "none"), False), (("--no-world-context",), False)]
)
def test_the_state_is_visible_and_what_the_model_is_shown_of_it(monkeypatch, capsys, flags, shown):
    with served(WORDLE) as server:
        lines = ["state", "context"] if flags[:1] == ("--hidden",) else ["state", "context", "crane"]
        _, text, _ = simulate(monkeypatch, capsys, server, lines, "wordle", *flags)
        asked = [body["messages"][0]["content"] for body in server.bodies]
    state, context = text.split("> state")[1].split("> context")
    assert HIDDEN in state
    assert ("the world model is not shown it" in state) is not shown
    assert (HIDDEN in context) is shown
    for system in asked:
        assert system in context  # as it was sent


def test_an_instruction_holds_from_the_next_turn(monkeypatch, capsys):
    first, second, *_ = expert_lines(GRID)
    with served(GRID) as server:
        lines = ["instruction", first, "instruction Be brief.", second]
        _, text, _ = simulate(monkeypatch, capsys, server, lines, *ROW, "--instruction", "Every move is slow.")
        systems = [body["messages"][0]["content"] for body in server.bodies]
    assert "The simulation is told: Every move is slow." in text
    assert "# Simulation instruction\nEvery move is slow." in systems[0]
    assert "# Simulation instruction\nBe brief." in systems[1]
    assert "slow" not in systems[1]


def test_a_control_is_told_to_the_world_model_and_saved(monkeypatch, capsys, tmp_path):
    config, out = tmp_path / "control.yaml", tmp_path / "x.jsonl"
    config.write_text("perturbations:\n  - {name: error, turns: [2]}\n")
    with OpenAIServer(reply=lambda body: "Green.") as server:
        lines = ["crane", "slate", "undo", "slate", f"save {out}"]
        code, text, _ = simulate(
            monkeypatch, capsys, server, lines, "wordle", "--control", config, "--instruction", "Be brief."
        )
        first, second = [body["messages"] for body in server.bodies]  # the draw is the turn's: `slate` is asked once
    assert code == 0
    assert "all others are answered as usual.\n\nBe brief." in first[0]["content"]
    assert "# Simulation instruction for this turn" not in first[-1]["content"]
    assert "# Simulation instruction for this turn" in second[-1]["content"]
    rows = trained(out)
    assert [first, second] in [[row[:2], row[:4]] for row in rows]
    assert "for this turn" not in text  # the player is the agent


def test_a_context_by_hand(monkeypatch, capsys, tmp_path):
    row = WORDLE.rows(1, 0, False, None, None)[0]
    file = tmp_path / "contexts.yaml"
    file.write_text(f"{rollout.task_of(row)}:\n  summary: The word is long.\n  final_state: The word was said.\n")
    with served(WORDLE) as server:
        _, text, result = simulate(monkeypatch, capsys, server, ["crane"], "wordle", "--context-file", file)
        (system,) = [body["messages"][0]["content"] for body in server.bodies]
    assert result["task_id"] == rollout.task_of(row)
    assert "The word is long." in system
    assert "# Final state that success requires (the agent does not see it)\nThe word was said." in system
    assert HIDDEN not in system  # the file takes its place
    assert "The word is long." not in text  # the player is the agent
    file.write_text("another: {summary: x}\n")
    with served(WORDLE) as server:
        code, text, _ = simulate(monkeypatch, capsys, server, [], "wordle", "--context-file", file)
    assert code == 2
    assert "no task has one of its 1 keys (the first is 'another')" in text


def test_a_dead_server_says_so_and_may_be_tried_again(monkeypatch, capsys):
    first = expert_lines(GRID)[0]
    with served(GRID) as server:
        server.faults = lambda number: "400" if number == 0 else None
        code, text, result = simulate(monkeypatch, capsys, server, ["again", first, "again", "again"], *ROW)
    assert (code, result["turns"], result["failures"]) == (0, 1, 1)
    assert "The world model did not answer (refused); nothing has happened." in text
    assert text.count("There is no action without an answer.") == 2
    with served(GRID) as server:
        server.faults = lambda number: "400"
        code, _, result = simulate(monkeypatch, capsys, server, [first], *ROW)
    assert (code, result["turns"], result["ok"]) == (1, 0, False)


@pytest.mark.parametrize(
    ("reply", "said"), [("", "empty"), (("A wall", "length"), "cut"), ("\x1b[2J\x1b]0;owned\x07 gone\r", "\\x1b[2J")]
)
def test_what_a_server_says_is_shown_and_never_obeyed(monkeypatch, capsys, reply, said):
    with OpenAIServer(reply=lambda body: reply) as server:
        _, text, result = simulate(monkeypatch, capsys, server, ["U", "real"], *ROW, "--beside")
    assert result["turns"] == 1
    assert said in text
    assert "\x1b" not in text
    assert "\r" not in text
    assert "\x07" not in text


def test_mistakes_of_the_player_are_lines(monkeypatch, capsys):
    with served(load("sql")) as server:
        lines = ["help", "drop everything", "run_query", "expert", "quit", "list_tables"]
        code, text, result = simulate(monkeypatch, capsys, server, lines, "sql")
    assert (code, result["turns"]) == (0, 1)  # quit ends it, and the expert acted once
    assert "There is no tool 'drop'; there is describe_table, list_tables, run_query, submit_answer" in text
    assert "write run_query QUERY" in text
    assert "undo              take the last turn back" in text
    assert "(expert) " in text


class Fragile(type(GRID.make())):
    """A grid without what its second move needs."""

    def move(self, direction: str) -> str:
        """Move.

        Args:
            direction: U, D, L or R.
        """
        return super().move(direction)

    @property
    def over(self):
        if self.turns > 1:
            raise UserError("the second move needs a package")
        return super().over


def test_a_real_world_that_cannot_go_on_is_a_line_each_time(monkeypatch):
    monkeypatch.setattr(type(GRID), "environment", Fragile)
    real = RealEpisode(GRID.make(), GRID.rows(3, 0, False, None, None)[2])
    moves = [Action(calls=(Call(name="move", arguments={"direction": "U"}),))] * 3
    with pytest.raises(UserError, match="needs a package"):
        real.after(moves)
    assert real.over
    assert real.trouble == "the second move needs a package"
    assert len(real.after(moves).turns) == 1


def test_after_the_end_there_is_only_the_way_back(monkeypatch, capsys):
    lines = [*expert_lines(GRID), "U", "undo", "state"]
    with served(GRID) as server:
        _, text, result = simulate(monkeypatch, capsys, server, lines, *ROW)
    assert "The episode is over: undo takes its last turn back" in text
    assert (result["over"], result["success"], result["turns"]) == (False, False, len(expert_lines(GRID)) - 1)
    with served(GRID) as server:
        _, text, result = simulate(monkeypatch, capsys, server, ["U", "U"], *ROW, "--max-turns", "1")
    assert "The turns are used up." in text
    assert (result["turns"], result["over"]) == (1, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--hidden", "sumary"), "there is no part 'sumary' of the state; did you mean 'summary'?"),
        (("--hidden", "all", "--world-context"), "--hidden and --world-context say the same"),
        (("--max-turns", "0"), "--max-turns is 0; write a number >= 1"),
        (("--row", "-1"), "--row is -1; write a number >= 0"),
        (("--prompts", "rwml"), "rwml has no success mark"),
        (("--context-file", "nowhere.yaml"), "nowhere.yaml: cannot be read (No such file or directory)"),
    ],
)
def test_mistakes_in_flags(monkeypatch, capsys, flags, message):
    with served(GRID) as server:
        code, text, _ = simulate(monkeypatch, capsys, server, [], *ROW, *flags)
    assert code == 2
    assert message in text


def test_lines_are_aligned():
    pairs = aligned("a\nb\nc\nd", "a\nc\nx\nd")
    assert [(one.predicted, one.real) for one in pairs if not one.same] == [("b", None), (None, "x")]
    assert [one.real for one in pairs if one.same] == ["a", "c", "d"]
    long = aligned("a\n" * 5000, "b\n" * 4000)
    assert len(long) == 5000  # place by place, and quick


def _child(server, *argv, **pipes):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "COLUMNS": "100", "TERM": "xterm-256color"}
    flags = ["lab", "simulate", "grid", "--server", server.base_url, "--server-model", "m", *argv]
    return subprocess.Popen([sys.executable, "-m", "wm_plugin", *flags], env=environment, **pipes)


def test_on_a_terminal_with_colours_and_an_interrupt():
    """Two columns and colours on a terminal; what the server says cannot move the cursor; Ctrl-C ends it with 130."""
    ours, theirs = pty.openpty()

    def lie(text, turn, row):
        return f"\x1b[31;2J{text.replace('#', '~')}"

    with served(GRID, lie=lie) as server:
        child = _child(server, "--beside", stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        os.write(ours, b"U\n")
        seen = b""
        deadline = time.monotonic() + 300  # of a busy machine
        while "≠".encode() not in seen and time.monotonic() < deadline:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536)
        child.send_signal(signal.SIGINT)
        try:
            while True:
                seen += os.read(ours, 65536)
        except OSError:  # the child is gone
            pass
        assert child.wait(120) == 130
    assert b"\\x1b[31;2J" in seen
    assert b"\x1b[31;2J" not in seen
    assert b"real world" in seen
    assert b"\x1b[1;32m" in seen or b"\x1b[1;31m" in seen
    assert b"Traceback" not in seen
    os.close(ours)
