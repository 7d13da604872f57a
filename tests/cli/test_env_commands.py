"""`wm env` from the command line: what a person types, and what they get for a mistake."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from support.openai_server import OpenAIServer
from wm_plugin.cli.main import main
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


def run(capsys, *argv):
    """The exit code, what the command printed, and the JSON object that stands last, if one does."""
    code = main(["env", *map(str, argv)])
    printed = capsys.readouterr()
    lines = printed.out.strip().splitlines()
    result = json.loads(lines[-1]) if "--json" in argv and code != 2 else None
    return code, printed.out + printed.err, result


def play(monkeypatch, capsys, lines, *argv):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
    return run(capsys, "play", *argv)


def test_the_list_has_every_world_with_its_tools(capsys):
    code, _, result = run(capsys, "list", "--json")
    assert code == 0
    listing = {row["name"]: row for row in result["environments"]}
    assert set(listing) == set(ENVIRONMENTS)
    assert all(row["summary"] and row["tools"] for row in listing.values())
    assert listing["sql"]["irreversible"] == ["submit_answer"]
    assert listing["maze"]["levels"] == ["standard", "hard-1"]
    assert listing["sokoban"]["extra"] == "sokoban"
    code, text, _ = run(capsys, "list")
    assert "submit_answer!" in text


def test_the_list_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("wm_plugin.worlds.specs._exists", lambda module: module != "mazelib")
    code, text, _ = run(capsys, "list")
    assert code == 0
    assert f"missing: mazelib ({install('maze')})" in text
    assert run(capsys, "check", "maze")[:2] == (2, f"wm: maze needs mazelib ({install('maze')})\n")
    assert run(capsys, "check", "grid", "--seeds", "2")[0] == 0


def test_a_person_plays_with_an_expert_at_hand(monkeypatch, capsys):
    lines = ["help", "move up", "X", "expert", '{"direction": "U"}', *["expert"] * 6]
    code, text, result = play(monkeypatch, capsys, lines, "grid", "--row", "3", "--seed", "5", "--json")
    assert code == 0
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


def test_several_tools_are_called_by_name(monkeypatch, capsys):
    lines = [
        "list_tables",
        "describe_table orders",
        "drop everything",
        "submit_answer",
        "run_query SELECT 'a b' x",
        'submit_answer {"answer": "none"}',
    ]
    code, text, _ = play(monkeypatch, capsys, lines, "sql")
    assert code == 0
    assert "salary_log" in text
    assert "CREATE TABLE orders" in text
    assert "There is no tool 'drop'; there is describe_table, list_tables, run_query, submit_answer" in text
    assert "submit_answer takes answer, not ''; write submit_answer ANSWER" in text
    assert "or all of them as JSON: tool {" in text
    assert "\nx\na b\n" in text
    assert text.endswith("no success: reward 0, 4 turns (4 actions, 4 effective, 0 invalid)\n")


def test_quitting_and_running_out_of_lines_end_a_game(monkeypatch, capsys):
    for lines in (["quit"], []):
        code, text, _ = play(monkeypatch, capsys, lines, "wordle")
        assert code == 0
        assert "not played to its end: reward 0, 0 turns" in text


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


def test_lines_that_are_not_utf_8_are_played(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe up\nquit\n"), encoding="utf-8"))
    code, text, _ = run(capsys, "play", "grid")
    assert code == 0
    assert "> \ufffd\ufffd up\n" in text
    assert "not played to its end" in text


def test_a_user_plays_their_own_class(monkeypatch, capsys):
    lines = ["50", "expert", "abc", '{"nubmer": 3}']
    code, text, result = play(monkeypatch, capsys, lines, "own_world:GuessEnvironment", "--json")
    assert code == 0
    assert "You can write:\nguess number  (number: From 1 to 100.)\nThe number alone will do.\n" in text
    assert "unexpected keyword argument 'nubmer'\n(guess takes number: From 1 to 100.)" in text
    assert "This world has no expert." in text
    assert "That is no number." in text
    assert result["turns"] == 2


def test_rollouts_and_their_summary(tmp_path, capsys):
    out = tmp_path / "x.jsonl"
    arguments = ("--policy", "expert", "--count", 5, "--out", out, "--held-out", "--host", "verl")
    code, text, result = run(capsys, "rollout", "grid", *arguments, "--json")
    assert code == 0
    assert result["episodes"] == 5
    assert result["success"] == result["effective_share"] == 1.0
    assert result["failed"] == result["lost"] == 0
    assert {trajectory.metadata["host"] for trajectory in read(out)} == {"verl"}
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]  # nothing is left of the work
    assert "\r" not in text  # no progress bar in a pipe
    code, text, _ = run(capsys, "rollout", "grid", *arguments, "--work", tmp_path / "kept")
    assert text == (
        f"{out}: 5 episodes of grid; success 100.0%, {result['turns']:.1f} turns, {result['actions']:.1f} actions "
        "(100.0% effective, 0.0% invalid)\n"
    )
    assert (tmp_path / "kept" / "manifest.json").exists()


@pytest.mark.slow
def test_rollouts_under_control_say_what_was_done(tmp_path, capsys):
    config = tmp_path / "control.yaml"
    config.write_text("perturbations: [{name: error, rate: 0.4}, {name: style, form: fenced, rate: 0.5}]\nseed: 1\n")
    out = tmp_path / "x.jsonl"
    arguments = ("--policy", "expert", "--count", 6, "--out", out, "--control", config)
    code, text, result = run(capsys, "rollout", "grid", *arguments, "--json")
    assert code == 0
    assert result["success"] == 1.0  # the expert tries again what failed
    controlled = list(read(out))
    counts = result["control"]
    assert counts["calls"] == sum(len(one.turns) for one in controlled)
    for name in ("error", "style"):
        data = [seen.data.get("control", {}) for one in controlled for turn in one.turns for seen in turn.observations]
        assert counts[name] == sum(name in each.get("names", ()) for each in data) > 0
    assert all(
        one.context.simulation_instruction.startswith("Some calls fail, about 40% of them") for one in controlled
    )
    assert controlled[0].metadata["control"]["seed"] == 1
    before = out.read_bytes()
    code, text, _ = run(capsys, "rollout", "grid", *arguments, "--workers", 2, "--work", tmp_path / "kept")
    assert out.read_bytes() == before  # whoever plays it
    assert f"under control: {counts['calls']} calls, of which {counts['error']} error, {counts['style']} style" in text
    config.write_text("perturbations: [{name: error, rate: 0.1}]\n")
    code, text, _ = run(capsys, "rollout", "grid", *arguments, "--work", tmp_path / "kept")
    assert code == 2  # half of the episodes would be of another control
    code, _, plain = run(capsys, "rollout", "grid", *arguments[:-2], "--json")
    assert "control" not in plain
    assert {one.source.id for one in read(out)}.isdisjoint(one.source.id for one in controlled)


@pytest.mark.slow
def test_several_rollouts_of_a_task_have_its_id_and_draws_of_their_own(tmp_path, capsys):
    def rollouts(name, *options):
        out = tmp_path / name
        flags = ("--policy", "random", "--count", 3, "--per-task", 2, "--out", out, "--seed", 5, *options)
        code, text, _ = run(capsys, "rollout", "grid", *flags, "--shard-size", 2)
        assert code == 0
        assert not out.with_name(f"{out.stem}.work").exists()
        assert text.startswith(f"{out}: 6 episodes of grid (3 tasks); success ")
        return list(read(out))

    first, same, other = (
        rollouts("a.jsonl"),
        rollouts("b.jsonl", "--sampling-seed", 5),
        rollouts("c.jsonl", "--sampling-seed", 6),
    )
    tasks = [trajectory.task_id for trajectory in first]
    assert tasks[::2] == tasks[1::2]
    assert len(set(tasks)) == 3
    assert first[0].context == first[1].context
    assert any(one.turns != two.turns for one, two in zip(first[::2], first[1::2], strict=True))
    assert [trajectory.source.row for trajectory in first] == list(range(6))
    assert same == first
    assert [trajectory.task_id for trajectory in other] == tasks
    assert [trajectory.turns for trajectory in other] != [trajectory.turns for trajectory in first]


@pytest.mark.slow
def test_a_column_for_every_row_leaves_the_task_what_it_is(tmp_path, capsys):
    ids = []
    for number, columns in enumerate(([], ["--column", "user_model=a=b"])):
        out = tmp_path / f"{number}.jsonl"
        arguments = ("--policy", "expert", "--count", 2, "--out", out, *columns)
        code, _, _ = run(capsys, "rollout", "dialogue", *arguments)
        assert code == 0
        ids.append([trajectory.task_id for trajectory in read(out)])
        (model,) = {trajectory.metadata["reset"].get("user_model") for trajectory in read(out)}
        assert model == (None, "a=b")[number]
    assert ids[0] == ids[1]
    arguments = ("--policy", "random", "--count", 2, "--out", out, "--column", "max_turns=1")
    code, _, result = run(capsys, "rollout", "grid", *arguments, "--json")
    assert (code, result["turns"]) == (0, 1.0)


def test_rollouts_of_a_server_that_is_down_are_named_and_the_exit_code_is_1(tmp_path, capsys):
    with OpenAIServer(lambda _: "", faults=lambda _: "503") as served:
        arguments = ["--policy", served.base_url, "--model", "m", "--count", 2, "--out", tmp_path / "x.jsonl"]
        code, text, _ = run(capsys, "rollout", "grid", *arguments, "--retries", 0)
    assert code == 1
    assert f"2 episodes have no trajectory (2 server error): see {tmp_path / 'x.rejects.jsonl'}\n" in text
    assert len((tmp_path / "x.rejects.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_irreversible_actions_are_checked_and_counted(tmp_path, capsys):
    """The expert would buy at once, and the world model predicts a failure of every purchase."""
    pytest.importorskip("bm25s")
    out, config = tmp_path / "x.jsonl", tmp_path / "verify.yaml"
    with OpenAIServer(lambda _: "It is not quite what was wanted.") as served:
        block = {"verify": {"budget": 2, "world_model": {"url": served.base_url, "model": "w"}}}
        config.write_text(json.dumps(block))
        arguments = ["--policy", "expert", "--count", 3, "--out", out, "--verify", config]
        code, _, result = run(capsys, "rollout", "shop", *arguments, "--json")
        assert code == 0
        assert result["verify"] == {"checks": 6, "questions": 6, "refused": 6, "spent": 3, "unanswered": 0}
        assert result["success"] == 1.0
        assert result["calls"]["buy"] == 9
        first = out.read_bytes()
        assert (
            "6 checks of irreversible actions, 0 without an answer; 6 actions were refused"
            in run(capsys, "rollout", "shop", *arguments, "--workers", 2)[1]
        )
        assert out.read_bytes() == first
        block["verify"]["budget"] = 0
        config.write_text(json.dumps(block))
        plain = run(capsys, "rollout", "shop", *arguments, "--json")[2]
        assert "verify" not in plain
        without = run(capsys, "rollout", "shop", *arguments[:-2], "--json")[2]
        assert without == plain
    assert not list(tmp_path.glob("*.work"))


def test_a_server_gets_no_seeds_where_it_shall_not(tmp_path, capsys):
    with OpenAIServer(lambda _: "done") as served:
        arguments = ["--policy", served.base_url, "--model", "m", "--count", 1]
        for name, flags in (("a", []), ("b", ["--no-seed"])):
            assert run(capsys, "rollout", "grid", *arguments, "--out", tmp_path / f"{name}.jsonl", *flags)[0] == 0
    assert ["seed" in body for body in served.bodies] == [True, False]


def test_rollouts_of_a_saved_model(tmp_path, capsys):
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    make_model(tokenizer, 0).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    arguments = ("--policy", tmp_path / "model", "--count", 6, "--out", tmp_path / "x.jsonl", "--max-new-tokens", 1)
    code, _, result = run(capsys, "rollout", "grid", *arguments, "--json")
    assert code == 0
    assert result["episodes"] == 6
    assert set(result["calls"]) <= {"move"}


def test_a_world_that_keeps_the_protocol_passes(capsys):
    code, _, result = run(capsys, "check", "wordle", "--seeds", "3", "--json")
    assert code == 0
    (report,) = result["checked"]
    assert report["ok"]
    assert report["expert_success"] == 1.0
    assert report["steps_per_second"] > 100
    assert report["resets_per_second"] > 100
    assert 0 < report["bytes_an_instance"] < 100_000
    assert {finding["state"] for finding in report["findings"]} == {"ok"}


def test_a_users_own_class_passes(capsys):
    code, text, _ = run(capsys, "check", "own_world:GuessEnvironment", "--seeds", "3")
    assert code == 0
    assert "own_world:GuessEnvironment: ok" in text
    assert "ok    observer: environment (guess)" in text
    assert "ok    other process: the same texts, byte for byte" in text
    assert "--    metrics: none: effective and invalid shares of actions are not reported" in text
    assert "--    expert: none beside the class" in text


@pytest.mark.slow
def test_a_class_that_leaves_the_reward_to_the_trainer_is_legal_and_no_figure_of_it_is_invented(
    monkeypatch, tmp_path, capsys
):
    name, out = "own_world:BareEnvironment", tmp_path / "x.jsonl"
    code, text, result = run(capsys, "check", name, "--seeds", "3", "--json")
    assert code == 0
    notes = {f["name"]: f["detail"] for f in result["checked"][0]["findings"] if f["state"] == "note"}
    assert notes["reward"].startswith("no get_reward: training needs a reward of the trainer's")
    assert notes["observer"].startswith("none declared: all that is observed counts as tools' results")
    assert set(notes) == {"observer", "metrics", "end", "reward", "figures", "expert"}
    arguments = ("--policy", "random", "--count", 4, "--out", out, "--max-turns", 3)
    code, _, result = run(capsys, "rollout", name, *arguments, "--json")
    assert (code, result["episodes"], result["turns"]) == (0, 4, 3.0)
    absent = ("success", "reward", "actions", "effective_share", "invalid_share")
    assert [result[figure] for figure in absent] == [None] * 5
    assert {(trajectory.reward, trajectory.success) for trajectory in read(out)} == {(None, None)}
    code, text, _ = run(capsys, "rollout", name, *arguments)
    assert text == f"{out}: 4 episodes of {name}; no success (the class has none), 3.0 turns\n"
    code, text, result = play(monkeypatch, capsys, ["7", "quit"], name)
    assert code == 0
    assert text.endswith("It stays shut.\n> quit\nnot played to its end: no reward of its own\n")


def test_a_class_that_does_not_fails_with_a_line_for_each_reason(capsys):
    code, text, result = run(capsys, "check", "own_world:SloppyEnvironment", "--seeds", "3", "--json")
    assert code == 1
    failed = {f["name"]: f["detail"] for f in result["checked"][0]["findings"] if f["state"] == "fail"}
    assert failed["reset"] == "2 of 3 rows show other texts with an instance that was used before"
    assert failed["end"] == "a call after it is answered; raise ValueError"
    assert failed["any input"].startswith("guess('') raises TypeError; answer in words")
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("check", "name one world, or write --all"),
        ("check grid --all", "name one world, or write --all"),
        ("check gird", "environment: there is no 'gird'; did you mean 'grid'?"),
        ("check grid --level hard", "--level: grid has no level 'hard'; there is 'standard'"),
        ("check grid --seeds 0", "--seeds is 0; write a number >= 1"),
        ("check no_such_module:X", "there is no module 'no_such_module'"),
        ("check own_world:Guess", "own_world has no 'Guess'; there is"),
        ("check json:dumps", "environment 'json:dumps' is no class with a method reset"),
        ("play grid --row -1", "--row is -1; write a number >= 0"),
        (f"play grid --row {'9' * 20}", "<= 999,999"),
        ("play taxi --held-out --row 80", "60 held-out start states"),
        ("play maze --held-out --split seen", "--held-out and --split say the same"),
        (f"{ROLLOUT} --policy expret", "did you mean 'expert'?"),
        (f"{ROLLOUT} --policy http://x/v1", "name its model with"),
        (f"{ROLLOUT} --count 0", "--count is 0"),
        (f"{ROLLOUT} --count {'9' * 20}", "up to 1,000,000"),
        (f"{ROLLOUT} --per-task 0", "--per-task is 0"),
        (
            f"{ROLLOUT} --count 9999 --per-task 9999",
            "--count times --per-task is 99980001; write a number up to 1,000,000",
        ),
        (f"{ROLLOUT} --out x.txt", "ends in .jsonl or .parquet"),
        (f"{ROLLOUT} --out /dev/null/x.jsonl", "/dev/null is no folder"),
        (f"{ROLLOUT} --column max_turns", "--column is 'max_turns'; write NAME=VALUE"),
        (f"{ROLLOUT} --timeout 1e308", "<= 10000000"),
        (f"{ROLLOUT} --timeout 0", "--timeout is 0"),
        (f"{ROLLOUT} --workers 0", "--workers is 0"),
        (f"{ROLLOUT} --control no.yaml", "--control: 'no.yaml' cannot be read"),
        (f"{ROLLOUT} --control {CONTROLS}/worlds.yaml", "control.worlds leaves out grid; add its name"),
        (f"{ROLLOUT} --control {CONTROLS}/column.yaml", "a row of grid has no column 'answr'"),
        (f"{ROLLOUT} --verify no.yaml", "--verify: 'no.yaml' cannot be read"),
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
