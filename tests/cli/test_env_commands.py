"""`wm env` from the command line: what a person types, and what they get for a mistake."""

import io
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from support.openai_server import OpenAIServer
from wm_plugin.data import read
from wm_plugin.errors import UserError, install
from wm_plugin.worlds import ENVIRONMENTS
from wm_plugin.worlds.agents.typed import parse

pytest.importorskip("transformers")

pytestmark = pytest.mark.host
ROLLOUT = "rollout grid --policy random --count 1 --out x.jsonl"
CONTROLS = Path(__file__).parents[1] / "support" / "controls"
AGENTS = Path(__file__).parents[1] / "worlds" / "agents"  # where own_world is


@pytest.fixture(autouse=True)
def own_worlds(monkeypatch):
    monkeypatch.syspath_prepend(str(AGENTS))


@pytest.fixture
def play(wm, monkeypatch):
    def play(lines, *words):
        """What is printed of a game with these lines, and its JSON if it is asked for."""
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
        code, out, err = wm("env", "play", *words)
        assert code == 0, err
        return out + err, json.loads(out.splitlines()[-1]) if "--json" in words else None

    return play


def test_the_list_has_every_world_with_its_tools_and_what_is_missing(wm, monkeypatch):
    listing = {row["name"]: row for row in wm.json("env", "list")["environments"]}
    assert set(listing) == set(ENVIRONMENTS)
    assert all(row["summary"] and row["tools"] for row in listing.values())
    assert listing["sql"]["irreversible"] == ["submit_answer"]
    assert listing["maze"]["levels"] == ["standard", "hard-1"]
    assert listing["sokoban"]["extra"] == "sokoban"
    monkeypatch.setattr("wm_plugin.worlds.specs._exists", lambda module: module != "mazelib")
    text = wm.text("env", "list")
    assert "submit_answer!" in text
    assert f"missing: mazelib ({install('maze')})" in text
    assert wm.error("env", "check", "maze") == f"wm: maze needs mazelib ({install('maze')})\n"
    wm.text("env", "check", "grid", "--seeds", "2")


def test_a_person_plays_with_an_expert_at_hand(play):
    lines = ["help", "move up", "X", "expert", '{"direction": "U"}', *["expert"] * 6]
    text, result = play(lines, "grid", "--row", "3", "--seed", "5", "--json")
    assert result["success"]
    assert result["over"]
    assert result["metrics"]["actions"] == result["turns"]
    assert result["metrics"]["invalid"] == 2
    assert "expert takes the expert's next action" in text
    assert "> X\nInvalid: 1 of 1\n" in text
    first, shown = text.partition("\n\n")[0], "direction: One of U, D, L, R."
    summary, _, first = first.partition("\n")
    assert summary == "A 4x4 grid with walls (#): walk from the agent (A) to the goal (G)"
    assert first.startswith(
        f"You can write:\nmove direction  ({shown})\nThe direction alone will do.\nhelp shows this, expert takes"
    )
    assert text.count(f"(move takes {shown})") == 2  # after `move up` and `X`
    assert '(expert) move {"direction": ' in text


def test_several_tools_are_called_by_name(play):
    lines = [
        "list_tables",
        "describe_table orders",
        "drop everything",
        "submit_answer",
        "run_query SELECT 'a b' x",
        'submit_answer {"answer": "none"}',
    ]
    text, _ = play(lines, "sql")
    assert "salary_log" in text
    assert "CREATE TABLE orders" in text
    assert "There is no tool 'drop'; there is describe_table, list_tables, run_query, submit_answer" in text
    assert "submit_answer takes answer, not ''; write submit_answer ANSWER" in text
    assert "or all of them as JSON: tool {" in text
    assert "\nx\na b\n" in text
    assert text.endswith("no success: reward 0, 4 turns (4 actions, 4 effective, 0 invalid)\n")


def test_quitting_and_running_out_of_lines_end_a_game(wm, play, monkeypatch):
    for lines in (["quit"], []):
        assert "not played to its end: reward 0, 0 turns" in play(lines, "wordle")[0]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe up\nquit\n"), encoding="utf-8"))
    assert "> \ufffd\ufffd up\n" in wm("env", "play", "grid")[1]


def test_arguments_are_typed_as_the_tool_says():
    def paint(colour: str, count: int, wet: bool) -> str: ...
    def look() -> str: ...

    tools = {"paint": paint, "look": look}
    assert parse("paint 'dark red' 3 true", tools) == ("paint", {"colour": "dark red", "count": 3, "wet": True})
    assert parse("paint 7 x true", tools) == ("paint", {"colour": "7", "count": "x", "wet": True})
    assert parse("look", tools) == ("look", {})
    for line, message in (
        ("paint red", "paint takes colour, count, wet"),
        ("paint 'red", "No closing quotation"),
        ('paint {"colour"', "no JSON"),
        ("fly", "no tool 'fly'"),
        ("look there", "look takes nothing"),
    ):
        with pytest.raises(UserError, match=message):
            parse(line, tools)


def test_a_user_plays_their_own_class(play):
    lines = ["50", "expert", "abc", '{"nubmer": 3}']
    text, result = play(lines, "own_world:GuessEnvironment", "--json")
    assert "You can write:\nguess number  (number: From 1 to 100.)\nThe number alone will do.\n" in text
    assert "unexpected keyword argument 'nubmer'\n(guess takes number: From 1 to 100.)" in text
    assert "This world has no expert." in text
    assert "help shows this, quit ends." in text
    assert "expert takes" not in text
    assert "That is no number." in text
    assert result["turns"] == 2


ROLLOUTS = ("env", "rollout", "grid", "--policy", "expert", "--count")


def test_rollouts_and_their_summary(wm, tmp_path):
    out = tmp_path / "x.jsonl"
    arguments = (*ROLLOUTS, 5, "--out", out, "--held-out", "--host", "verl")
    result = wm.json(*arguments)
    assert result["episodes"] == 5
    assert result["success"] == result["effective_share"] == 1.0
    assert result["failed"] == result["lost"] == 0
    assert {trajectory.metadata["host"] for trajectory in read(out)} == {"verl"}
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]  # nothing is left of the work
    assert wm.text(*arguments, "--work", tmp_path / "kept") == (
        f"{out}: 5 episodes of grid; success 100.0%, {result['turns']:.1f} turns, {result['actions']:.1f} actions "
        "(100.0% effective, 0.0% invalid)\n"
    )
    assert (tmp_path / "kept" / "manifest.json").exists()


@pytest.mark.slow
def test_rollouts_under_control_say_what_was_done(wm, tmp_path):
    config = tmp_path / "control.yaml"
    config.write_text("perturbations: [{name: error, rate: 0.4}, {name: style, form: fenced, rate: 0.5}]\nseed: 1\n")
    out = tmp_path / "x.jsonl"
    arguments = (*ROLLOUTS, 6, "--out", out)
    result = wm.json(*arguments, "--control", config)
    assert result["success"] == 1.0  # the expert tries again what failed
    controlled, counts = list(read(out)), result["control"]
    assert counts["calls"] == sum(len(one.turns) for one in controlled)
    data = [one.data.get("control", {}) for each in controlled for turn in each.turns for one in turn.observations]
    for name in ("error", "style"):
        assert counts[name] == sum(name in each.get("names", ()) for each in data) > 0
    told = "Some calls fail, about 40% of them"
    assert all(one.context.simulation_instruction.startswith(told) for one in controlled)
    assert controlled[0].metadata["control"]["seed"] == 1
    before = out.read_bytes()
    kept = (*arguments, "--control", config, "--work", tmp_path / "kept")
    text = wm.text(*kept, "--workers", 2)
    assert out.read_bytes() == before  # whoever plays it
    assert f"under control: {counts['calls']} calls, of which {counts['error']} error, {counts['style']} style" in text
    config.write_text("perturbations: [{name: error, rate: 0.1}]\n")
    wm.error(*kept)  # half of the episodes would be of another control
    assert "control" not in wm.json(*arguments)
    assert {one.source.id for one in read(out)}.isdisjoint(one.source.id for one in controlled)


@pytest.mark.slow
def test_several_rollouts_of_a_task_have_its_id_and_draws_of_their_own(wm, tmp_path):
    def rollouts(name, *options):
        out = tmp_path / name
        flags = ("--policy", "random", "--count", 3, "--per-task", 2, "--out", out, "--seed", 5, *options)
        text = wm.text("env", "rollout", "grid", *flags, "--shard-size", 2)
        assert not out.with_name(f"{out.stem}.work").exists()
        assert text.startswith(f"{out}: 6 episodes of grid (3 tasks); success ")
        return list(read(out))

    first = rollouts("a.jsonl")
    tasks = [trajectory.task_id for trajectory in first]
    assert tasks[::2] == tasks[1::2]
    assert len(set(tasks)) == 3
    assert first[0].context == first[1].context
    assert any(one.turns != two.turns for one, two in zip(first[::2], first[1::2], strict=True))
    assert [trajectory.source.row for trajectory in first] == list(range(6))
    assert rollouts("b.jsonl", "--sampling-seed", 5) == first
    other = rollouts("c.jsonl", "--sampling-seed", 6)
    assert [trajectory.task_id for trajectory in other] == tasks
    assert [trajectory.turns for trajectory in other] != [trajectory.turns for trajectory in first]


@pytest.mark.slow
def test_a_column_for_every_row_leaves_the_task_what_it_is(wm, tmp_path):
    ids, out = [], tmp_path / "x.jsonl"
    for model, columns in ((None, []), ("a=b", ["--column", "user_model=a=b"])):
        wm.json("env", "rollout", "dialogue", "--policy", "expert", "--count", 2, "--out", out, *columns)
        ids.append([trajectory.task_id for trajectory in read(out)])
        assert {trajectory.metadata["reset"].get("user_model") for trajectory in read(out)} == {model}
    assert ids[0] == ids[1]
    assert wm.json(*ROLLOUTS, 2, "--out", out, "--column", "max_turns=1", code=None)["turns"] == 1.0


def test_rollouts_of_servers(wm, tmp_path):
    """Those of one that is down are named, and the exit code is 1; one gets no seeds where it shall not."""
    flags = ("env", "rollout", "grid", "--model", "m", "--count", 2, "--out", tmp_path / "x.jsonl", "--policy")
    with OpenAIServer(lambda _: "", faults=lambda _: "503") as served:
        text = wm.text(*flags, served.base_url, "--retries", 0, code=1)
    assert f"2 episodes have no trajectory (2 server error): see {tmp_path / 'x.rejects.jsonl'}\n" in text
    assert len((tmp_path / "x.rejects.jsonl").read_text().splitlines()) == 2
    with OpenAIServer(lambda _: "done") as served:
        for more in ([], ["--no-seed"]):
            wm.text(*flags, served.base_url, *more, "--count", 1)
    assert ["seed" in body for body in served.bodies] == [True, False]


@pytest.mark.slow
def test_irreversible_actions_are_checked_and_counted(wm, tmp_path):
    """The expert would buy at once, and the world model predicts a failure of every purchase."""
    pytest.importorskip("bm25s")
    out, config = tmp_path / "x.jsonl", tmp_path / "verify.yaml"
    with OpenAIServer(lambda _: "It is not quite what was wanted.") as served:
        block = {"verify": {"budget": 2, "world_model": {"url": served.base_url, "model": "w"}}}
        config.write_text(json.dumps(block))
        arguments = ("env", "rollout", "shop", "--policy", "expert", "--count", 3, "--out", out)
        checked = (*arguments, "--verify", config)
        result = wm.json(*checked)
        assert result["verify"] == {"checks": 6, "questions": 6, "refused": 6, "spent": 3, "unanswered": 0}
        assert result["success"] == 1.0
        assert result["calls"]["buy"] == 9
        first = out.read_bytes()
        text = wm.text(*checked, "--workers", 2)
        assert "6 checks of irreversible actions, 0 without an answer; 6 actions were refused" in text
        assert out.read_bytes() == first
        block["verify"]["budget"] = 0
        config.write_text(json.dumps(block))
        plain = wm.json(*checked)
        assert "verify" not in plain
        assert wm.json(*arguments) == plain
    assert not list(tmp_path.glob("*.work"))


def test_rollouts_of_a_saved_model(wm, tmp_path):
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    make_model(tokenizer, 0).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    arguments = ("--policy", tmp_path / "model", "--count", 6, "--out", tmp_path / "x.jsonl", "--max-new-tokens", 1)
    result = wm.json("env", "rollout", "grid", *arguments)
    assert result["episodes"] == 6
    assert set(result["calls"]) <= {"move"}


def test_worlds_that_keep_the_protocol_pass(wm):
    (report,) = wm.json("env", "check", "wordle", "--seeds", "3")["checked"]
    assert (report["ok"], report["expert_success"]) == (True, 1.0)
    assert min(report["steps_per_second"], report["resets_per_second"]) > 100
    assert 0 < report["bytes_an_instance"] < 100_000
    assert {finding["state"] for finding in report["findings"]} == {"ok"}
    text = wm.text("env", "check", "own_world:GuessEnvironment", "--seeds", "3")
    for line in (
        "own_world:GuessEnvironment: ok",
        "ok    observer: environment (guess)",
        "ok    other process: the same texts, byte for byte",
        "--    metrics: none: effective and invalid shares of actions are not reported",
        "--    expert: none beside the class",
        "ok    training: ready",
        "ok    verifier: ready",
    ):
        assert line in text


@pytest.mark.slow
def test_a_class_that_leaves_the_reward_to_the_trainer_is_legal_and_no_figure_of_it_is_invented(wm, play, tmp_path):
    name, out = "own_world:BareEnvironment", tmp_path / "x.jsonl"
    (report,) = wm.json("env", "check", name, "--seeds", "3")["checked"]
    notes = {f["name"]: f["detail"] for f in report["findings"] if f["state"] == "note"}
    add = {use["name"]: [what.partition(" ")[0].strip(",(") for what in use["add"]] for use in report["uses"]}
    assert add == {
        "training": ["dataset_rows(count", "get_reward(self)"],
        "held-out evaluation": ["dataset_rows(count", "success"],
        "verifier": ["irreversible"],
        "consistency": ["dataset_rows(count", "success", "over"],
    }
    assert notes["reward"].startswith("no get_reward: training needs a reward of the trainer's")
    assert notes["observer"].startswith("none declared: all that is observed counts as tools' results")
    assert set(notes) == {"observer", "metrics", "end", "reward", "figures", "expert"}
    arguments = ("env", "rollout", name, "--policy", "random", "--count", 4, "--out", out, "--max-turns", 3)
    result = wm.json(*arguments)
    assert (result["episodes"], result["turns"]) == (4, 3.0)
    absent = ("success", "reward", "actions", "effective_share", "invalid_share")
    assert [result[figure] for figure in absent] == [None] * 5
    assert {(trajectory.reward, trajectory.success) for trajectory in read(out)} == {(None, None)}
    assert wm.text(*arguments) == f"{out}: 4 episodes of {name}; no success (the class has none), 3.0 turns\n"
    text, _ = play(["7", "quit"], name)
    assert "> quit\n" in text
    assert "It stays shut." in text
    assert "not played to its end: no reward of its own\n" in text


def test_a_class_that_does_not_fails_with_a_line_for_each_reason(wm):
    result = wm.json("env", "check", "own_world:SloppyEnvironment", "--seeds", "3", code=1)
    failed = {f["name"]: f["detail"] for f in result["checked"][0]["findings"] if f["state"] == "fail"}
    assert all(use["add"] == ["what fails: reset, end, any input"] for use in result["checked"][0]["uses"])
    assert failed["reset"] == "2 of 3 rows show other texts with an instance that was used before"
    assert failed["end"] == "a call after it is answered; raise ValueError"
    assert failed["any input"].startswith("guess('') raises TypeError; answer in words")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("check", "name one world, or write --all"),
        ("check gird", "environment: there is no 'gird'; did you mean 'grid'?"),
        ("check grid --level hard", "--level: grid has no level 'hard'; there is 'standard'"),
        ("check no_such_module:X", "there is no module 'no_such_module'"),
        ("check own_world", "environment: 'own_world' is a module; name its class, own_world:CLASS"),
        ("check own_world:GuessEnvironment --level hard", "has no level 'hard'; leave --level out, it has no levels"),
        ("check http://localhost:8000", "'http://localhost:8000' is no world; write openenv:http://host:port"),
        ("check own_world:Guess", "own_world has no 'Guess'; there is"),
        ("check json:dumps", "environment 'json:dumps' is no class with a method reset"),
        ("play grid --row -1", "--row is -1; write a number >= 0"),
        (f"play grid --row {'9' * 20}", "<= 999,999"),
        ("play taxi --held-out --row 80", "60 held-out start states"),
        ("play maze --held-out --split seen", "--held-out and --split say the same"),
        (f"{ROLLOUT} --policy expret", "did you mean 'expert'?"),
        (f"{ROLLOUT} --policy http://x/v1", "name its model with"),
        (f"{ROLLOUT} --count {'9' * 20}", "up to 1,000,000"),
        (
            f"{ROLLOUT} --count 9999 --per-task 9999",
            "--count times --per-task is 99980001; write a number up to 1,000,000",
        ),
        (f"{ROLLOUT} --out x.txt", "ends in .jsonl or .parquet"),
        (f"{ROLLOUT} --column max_turns", "--column is 'max_turns'; write NAME=VALUE"),
        (f"{ROLLOUT} --timeout 1e308", "<= 10000000"),
        (f"{ROLLOUT} --control no.yaml", "--control: 'no.yaml' cannot be read"),
        (f"{ROLLOUT} --control {CONTROLS}/worlds.yaml", "control.worlds leaves out grid; add its name"),
        (f"{ROLLOUT} --control {CONTROLS}/column.yaml", "a row of grid has no column 'answr'"),
        (
            f"{ROLLOUT.replace('grid', 'sql')} --control {CONTROLS}/tools.yaml",
            "no tool 'run_qury'; did you mean 'run_query'?",
        ),
        (
            f"{ROLLOUT.replace('grid', 'dialogue')} --column user_modl=a",
            "no column 'user_modl'; did you mean 'user_model'?",
        ),
        (f"{ROLLOUT.replace('grid', 'own_world:GuessEnvironment')} --policy expert", "no expert"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_2(words, message, wm, tmp_path, monkeypatch):
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    assert message in wm.error("env", *words.split())
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_served(wm, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        says = f"wm: --host 127.0.0.1 --port {port}: Address already in use; choose another\n"
        assert wm.error("env", "serve", "grid", "--port", port) == says
    for name in {"openenv", *(one for one in sys.modules if one.startswith("openenv."))}:  # of earlier tests, too
        monkeypatch.setitem(sys.modules, name, None)
    assert wm.error("env", "serve", "grid", "--port", 0) == f"wm: wm env serve needs openenv: {install('openenv')}\n"
    for words, says in [
        (["gird"], "gird"),
        (["grid", "--level", "x"], "--level: grid has no level 'x'"),
        (["grid", "--port", "70000"], "--port is 70000; write a number >= 0 and <= 65,535"),
        (["grid", "--sessions", "0"], "--sessions is 0; write a number >= 1"),
        (["grid", "--simulation", "http://localhost:1/v1"], "name its model with --simulation-model"),
        (["grid", "--simulation-model", "m"], "--simulation-model goes with --simulation URL"),
        (["grid", "--control", "none.yaml"], "none.yaml"),
    ]:
        assert says in wm.error("env", "serve", *words)
