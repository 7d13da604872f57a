import json
import re

import pytest

from wm_plugin.cli import main

ROW = {
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "42"},
        {"role": "assistant", "content": "It is 42."},
        {"role": "user", "content": "Thanks."},
    ],
    "id": 7,
}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(ROW) + "\nnot json\n" + json.dumps({**ROW, "id": 8}) + "\n")
    return path


def run(capsys, *arguments):
    code = main.main(["data", *map(str, arguments)])
    return code, capsys.readouterr()


def test_convert_counts_what_was_read_and_what_was_not(capsys, source, tmp_path):
    code, printed = run(capsys, "convert", source, "--out", tmp_path / "out.jsonl", "--json")
    assert code == 0
    assert json.loads(printed.out.splitlines()[-1]) == {
        "trajectories": 2,
        "turns": 4,
        "transitions": 4,
        "observations": {"tool": 2, "user": 2, "environment": 0},
        "rejected": 1,
        "rejected_by_reason": {"not JSON": 1},
        "files": 1,
        "out": str(tmp_path / "out.jsonl"),
        "rejects": str(tmp_path / "out.rejects.jsonl"),
        "ok": True,
    }
    (reject,) = map(json.loads, (tmp_path / "out.rejects.jsonl").read_text().splitlines())
    assert (reject["file"], reject["row"], reject["raw"]) == ("rollouts.jsonl", 1, "not json")
    assert "not JSON" in reject["reason"]


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ({"tools": []}, "context.tools: there is no such field; there is task, action_space, initial_state, "),
        ({"action_space": "x"}, "context.action_space: Input should be a valid tuple"),
    ],
)
def test_a_field_that_does_not_fit_is_named(capsys, tmp_path, context, reason):
    (tmp_path / "x.jsonl").write_text(json.dumps({"turns": [], "context": context, "version": 1}) + "\n")
    run(capsys, "convert", tmp_path / "x.jsonl", "--out", tmp_path / "y.jsonl")
    said = json.loads((tmp_path / "y.rejects.jsonl").read_text())["reason"]
    assert said.startswith(reason)
    assert "pydantic" not in said
    assert "\n" not in said


def test_a_folder_and_the_summary_for_people(capsys, source, tmp_path):
    code, printed = run(capsys, "convert", source.parent, "--out", tmp_path / "out.jsonl")
    assert code == 0
    assert "2 trajectories from 1 file, 4 turns of the agent, 4 transitions (2 tool, 2 user)" in printed.out
    assert f"1 rows rejected (1 not JSON): see {tmp_path / 'out.rejects.jsonl'}\n" in printed.out
    other = tmp_path / "why.jsonl"
    code, printed = run(capsys, "convert", source, "--out", tmp_path / "out.jsonl", "--rejects", other)
    assert f": see {other}\n" in printed.out


def test_strict_stops_and_writes_nothing(capsys, source, tmp_path):
    code, printed = run(capsys, "convert", source, "--out", tmp_path / "out.jsonl", "--strict")
    assert code == 2
    assert printed.err.startswith("wm: rollouts.jsonl, row 1: not JSON")
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.jsonl"]


def test_expand_with_a_split_by_task(capsys, source, tmp_path):
    run(capsys, "convert", source, "--out", tmp_path / "out.jsonl")
    arguments = ("expand", tmp_path / "out.jsonl", "--out", tmp_path / "t.jsonl", "--validation-share", "0.5")
    code, printed = run(capsys, *arguments, "--json")
    result = json.loads(printed.out.splitlines()[-1])
    assert code == 0
    assert result["transitions"] + result["validation"] == 4
    sides = [
        {json.loads(line)["task_id"] for line in (tmp_path / name).read_text().splitlines()}
        for name in ("t.jsonl", "t.validation.jsonl")
    ]
    assert sides[0] | sides[1] == {"7", "8"}
    assert not sides[0] & sides[1]


def test_the_filters_of_a_method(capsys, tmp_path):
    step = {"kind": "environment", "text": "Nothing happens."}
    turns = [{"action": {"text": word}, "observations": [step]} for word in ("jump", "fly")]
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"turns": turns, "context": {}, "version": 1}) + "\n")
    for flags, method, left in (((), "rwml", 0), (("--for", "word2world"), "word2world", 2)):
        assert main.main(["data", "filter", str(source), "--out", str(tmp_path / "f.jsonl"), *flags, "--json"]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (result["method"], result["transitions"]) == (method, left)
    assert main.main(["data", "filter", str(source), "--out", str(tmp_path / "f.jsonl"), "--for", "x"]) == 2


def test_pools_are_all_of_what_is_left_each_task_in_one(capsys, tmp_path):
    source, out = tmp_path / "rows.jsonl", tmp_path / "kept.jsonl"
    source.write_text("".join(json.dumps({**ROW, "task_id": f"task {number}"}) + "\n" for number in range(200)))
    pools = {tmp_path / "sft.jsonl": 0.75, tmp_path / "rl.jsonl": 0.25}
    flags = [word for pool, share in pools.items() for word in ("--pool", f"{pool}={share}")]
    code, printed = run(capsys, "filter", source, "--out", out, "--for", "word2world", *flags, "--json")
    assert code == 0
    found = [{json.loads(line)["task_id"] for line in pool.read_text().splitlines()} for pool in pools]
    assert json.loads(printed.out.splitlines()[-1])["pools"] == {
        str(pool): len(tasks) for pool, tasks in zip(pools, found, strict=True)
    }
    assert not found[0] & found[1]
    assert found[0] | found[1] == {json.loads(line)["task_id"] for line in out.read_text().splitlines()}
    assert len(found[0]) == pytest.approx(150, abs=25)


def test_filter_says_what_each_filter_took(capsys, source, tmp_path):
    run(capsys, "convert", source, "--out", tmp_path / "out.jsonl")
    arguments = ("filter", tmp_path / "out.jsonl", "--out", tmp_path / "f.jsonl", "--filters", "too_short,duplicates")
    code, printed = run(capsys, *arguments, "--json")
    result = json.loads(printed.out.splitlines()[-1])
    assert code == 0
    assert result["taken"] == {"too_short": 0, "duplicates": 1}  # two rows that differ in their ids alone
    assert (result["trajectories"], result["transitions"]) == (1, 2)
    code, printed = run(capsys, *arguments)
    assert re.search(r"^  duplicates +1 trajectories that are there already$", printed.out, re.M)
    assert "too_short                  0 trajectories with fewer than two turns that were observed" in printed.out


def test_every_filter_has_words():
    from wm_plugin.cli.data.filter import TAKES
    from wm_plugin.data.filter import NAMES

    assert sorted(TAKES) == sorted(NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "wm: name a step: wm data convert, inspect, "),
        (("convert", "nowhere.jsonl", "--out", "x.jsonl"), "wm: nowhere.jsonl: No such file or directory"),
        (("convert", "{source}", "--out", "x.csv"), "wm: x.csv: write a name that ends in .jsonl or .parquet"),
        (("convert", "{source}", "--out", "{source}/x.jsonl"), "wm: {source}/x.jsonl: {source} is no folder"),
        (("convert", "{source}", "--out", "{source}/a/b/x.jsonl"), "wm: {source}/a/b/x.jsonl: {source} is no folder"),
        (
            ("convert", "{source}", "--out", "x.jsonl", "--format", "tau"),
            "wm: there is no format 'tau'; did you mean 'tau2'?",
        ),
        (("expand", "{source}", "--out", "x.jsonl", "--turns", "some"), "wm: turns is 'some'"),
        (
            ("filter", "{source}", "--out", "x.jsonl", "--pool", "sft.jsonl"),
            "wm: --pool 'sft.jsonl': write FILE=SHARE",
        ),
        (
            ("filter", "{source}", "--out", "x.jsonl", "--pool", "a.jsonl=0.6", "--pool", "b.jsonl=0.5"),
            "wm: the shares of --pool are 1.1 in all",
        ),
        (
            ("filter", "{source}", "--out", "x.jsonl", "--filters", "retry"),
            "wm: there is no filter 'retry'; did you mean 'retries'?",
        ),
        (("filter", "{source}", "--out", "x.jsonl", "--failure", "("), "wm: '(' is no regular expression"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(capsys, source, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, printed = run(capsys, *(argument.format(source=source) for argument in arguments))
    assert code == 2
    assert printed.err.startswith(message.replace("{source}", str(source)))
    assert printed.err.count("\n") == 1
