"""`wm report`: from files on disk to pages, tables and data."""

import csv
import json

import pytest

pytest.importorskip("jinja2")

from support.pages import Page
from support.predictions import grid_trajectories
from support.trainer_logs import write_state, write_verl
from wm_plugin.data.write import write
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, write_result


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        steps = {step: step / 10 + seed for step in range(1, 4)}
        write_state(tmp_path / "runs" / f"echo_seed{seed}", {"reward": steps, "echo/nll": steps}, checkpoint=3)
    write_state(tmp_path / "runs" / "grpo_seed0", {"reward": {1: 0.5, 3: 0.75}})
    write_verl(tmp_path / "runs" / "verl.jsonl", {"critic/score/mean": {1: 0.5}})
    (tmp_path / "eval").mkdir()
    write_result(Evaluation("one-step", "m", "=d", {}, [Measure("exact", 0.5, "share", 4, "tool", "=1+1")]), "eval")
    write(grid_trajectories(3), "played.jsonl")


def play(folder, won):
    folder.mkdir(parents=True)
    rollouts = [one.model_copy(update={"success": place < won}) for place, one in enumerate(grid_trajectories(4))]
    write(rollouts, folder / "seen.jsonl")


def test_a_table_without_out(wm):
    out = wm.text("report", "runs", "eval", "played.jsonl")
    for words in ("0.8", "echo", "grpo", "one-step of m", "3 rollouts: played", "--out report.html"):
        assert words in out  # 0.8 is the mean of 0.3 and 1.3


def test_every_form_of_output(wm, tmp_path):
    outs = [flag for form in ("html", "csv", "json") for flag in ("--out", f"r.{form}")]
    result = wm.json("report", "runs", "eval", "played.jsonl", "--title", "Mine", *outs)
    assert result["out"] == ["r.html", "r.csv", "r.json"]
    assert [(arm["arm"], len(arm["runs"])) for arm in result["arms"]] == [("echo", 2), ("grpo", 1), ("verl", 1)]
    assert result["arms"][0]["last"]["reward"] == {"value": 0.8, "interval": [0.3, 1.3], "runs": 2}
    ends = "reward ends at 0.8 for echo (0.3 to 1.3, 2 seeds), 0.75 for grpo, 0.5 for verl."
    assert ends in Page((tmp_path / "r.html").read_text(), "Mine").text
    rows = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert {(row["arm"], row["run"], row["step"], row["value"]) for row in rows if row["name"] == "reward"} >= {
        ("echo", "echo_seed1", "3", "1.3"),
        ("grpo", "grpo_seed0", "1", "0.5"),
    }
    assert [row["group"] for row in rows if row["kind"] == "one-step"] == ["'=1+1"]  # no formula
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["arms"][0]["runs"][0]["metrics"]["reward"]["steps"] == [1, 2, 3]
    assert data["evaluations"][0]["measures"][0]["value"] == 0.5
    assert data["rollouts"][0]["trajectories"] == 3


def test_arms_by_pattern(wm, tmp_path):
    """They need no path, and choose among those that are named."""
    result = wm.json("report", "--arm", "ours=runs/echo_*", "--arm", "plain=runs/grpo*")
    assert [(arm["arm"], len(arm["runs"])) for arm in result["arms"]] == [("ours", 2), ("plain", 1)]
    play(tmp_path / "mine" / "rl_s0", 1)
    play(tmp_path / "others" / "rl_s1", 2)  # of another experiment, which the pattern means, too
    (tmp_path / "mine" / "echo_s9").mkdir()  # a model, of which there is nothing to report
    result = wm.json("report", "mine/rl_s0", "--arm", "rl=*/rl_s*")
    assert [one["files"] for one in result["rollouts"]] == [["mine/rl_s0/seen.jsonl"]]
    assert len(wm.json("report", "mine/rl_s0", "--arm", "others=others/rl_s*")["rollouts"]) == 2


def test_a_folder_of_verls_checkpoints_has_its_log_beside_it(wm, tmp_path):
    (tmp_path / "arms").mkdir()
    (tmp_path / "arms" / "latest_checkpointed_iteration.txt").write_text("2")
    line = wm.error("report", "arms")
    assert line == "wm: arms: checkpoints of verl, and no log; name the file of VERL_FILE_LOGGER_PATH, too\n"
    wm.text("report", "arms", "eval")


def test_arms_are_printed_beside_the_first_or_another(wm, tmp_path):
    for arm, more in (("rl", 0), ("echo", 1)):
        for seed in range(3):
            play(tmp_path / "seen" / f"{arm}_s{seed}", 1 + more)
    patterns = ("report", "--arm", "rl=seen/rl_s*", "--arm", "echo=seen/echo_s*")
    out = wm.text(*patterns, "eval")
    assert out.splitlines()[:4] == [
        "                 runs  mean                  difference to rl",
        "rollouts, seen",
        "  success  rl    3     0.250 [0.250, 0.250]  –",
        "           echo  3     0.500 [0.500, 0.500]  +0.250 [+0.250, +0.250]",
    ]
    assert "one-step of m: eval" in out  # which one arm alone has
    assert "rollouts: " not in out
    found = wm.json(*patterns, "--against", "echo")
    assert found["compared"]["against"] == "echo"
    assert found["compared"]["rows"][0]["difference"] == {"seeds": 3, "value": -0.25, "interval": [-0.25, -0.25]}
    assert [(one["of"], one["evaluation"], len(one["files"])) for one in found["rollouts"]] == [
        ("rl, seen", "rollouts, seen", 3),
        ("echo, seen", "rollouts, seen", 3),
    ]
    wm.text("report", "seen", "--out", "x.html")
    page = (tmp_path / "x.html").read_text()  # samples are of one file of an arm and split
    assert [page.count(f"rl, seen, rollout {number}") for number in (1, 2, 3)] == [1, 1, 0]


def test_a_folder_is_written_again_but_not_over_other_files(wm, tmp_path):
    for _ in range(2):
        wm.text("report", "runs", "--out", "made")
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["report.csv", "report.html", "report.json"]
    (tmp_path / "made" / "mine.txt").write_text("x")
    wm.error("report", "runs", "--out", "made")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.html").write_text("mine")
    wm.error("report", "runs", "--out", "other")
    assert (tmp_path / "other" / "report.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "wm report --help"),
        ("nothing", "nothing: there is no such file or folder"),
        ("runs --out x.pdf", "ends in .html, .csv, .json"),
        ("runs --out /dev/null/x.html", "/dev/null is no folder"),
        ("runs --out x.csv --out x.csv", "twice"),
        ("runs --arm echo", "NAME=PATTERN"),
        ("runs --arm a=none_*", "--arm a=none_*: no run"),
        ("--arm a=none_*", "name runs"),
        ("runs --config c.yaml", "add --tokenizer"),
        ("runs eval --against mm", "--against mm: no evaluation and no rollouts are of an arm of this name; did"),
        ("runs --against echo", "; there is none"),
        ("eval --out eval/result.json", "name another file"),
        ("runs --out runs/echo_seed0/checkpoint-3/trainer_state.json", "name another file"),
    ],
)
def test_mistakes_are_one_line(wm, arguments, said):
    assert said in wm.error("report", *arguments.split())


@pytest.mark.host
def test_masks_of_rollouts_with_a_tokenizer(wm, tmp_path):
    from wm_plugin.lab.tiny.policy import make_tokenizer

    make_tokenizer().save_pretrained("tok")
    call = {"type": "function", "function": {"name": "move", "arguments": {"direction": "U"}}}
    completion = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "move", "content": "#A"},
        {"role": "assistant", "content": ""},
    ]
    row = {"prompt": [{"role": "user", "content": "A#"}], "completion": completion}
    (tmp_path / "dump.jsonl").write_text(json.dumps(row) + "\n")
    wm.text("report", "dump.jsonl", "--tokenizer", "tok", "--out", "x.html")
    assert "wm-counts" in (tmp_path / "x.html").read_text().partition("<body>")[2].partition("Rollouts</h2>")[2]
