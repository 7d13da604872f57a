"""`wm report`: from files on disk to pages, tables and data."""

import csv
import json

import pytest

pytest.importorskip("jinja2")

from support.pages import Page
from support.predictions import grid_trajectories
from support.trainer_logs import write_state, write_verl
from wm_plugin.cli import main
from wm_plugin.data.write import write
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, write_result


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        steps = {step: step / 10 + seed for step in range(1, 4)}
        write_state(tmp_path / "runs" / f"echo_seed{seed}", {"reward": steps, "echo/nll": steps}, checkpoint=3)
    write_state(tmp_path / "runs" / "grpo_seed0", {"reward": {1: 0.5, 3: 0.75}})
    write_verl(tmp_path / "runs" / "verl.jsonl", {"critic/rewards/mean": {1: 0.5}})
    (tmp_path / "eval").mkdir()
    write_result(Evaluation("one-step", "m", "=d", {}, [Measure("exact", 0.5, "share", 4, "tool", "=1+1")]), "eval")
    write(grid_trajectories(3), "played.jsonl")


def wm(capsys, *arguments):
    code = main.main(["report", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_table_without_out(capsys):
    code, out, _ = wm(capsys, "runs", "eval", "played.jsonl")
    assert code == 0
    assert "0.8" in out  # the mean of 0.3 and 1.3
    for words in ("echo", "grpo", "one-step of m", "3 rollouts: played", "--out report.html"):
        assert words in out


def test_every_form_of_output(capsys, tmp_path):
    outs = [flag for form in ("html", "csv", "json") for flag in ("--out", f"r.{form}")]
    code, out, _ = wm(capsys, "runs", "eval", "played.jsonl", "--title", "Mine", *outs, "--json")
    assert code == 0
    result = json.loads(out)
    assert result["out"] == ["r.html", "r.csv", "r.json"]
    assert [(arm["arm"], len(arm["runs"])) for arm in result["arms"]] == [("echo", 2), ("grpo", 1), ("verl", 1)]
    assert result["arms"][0]["last"]["reward"] == {"value": 0.8, "interval": [0.3, 1.3], "runs": 2}
    text = Page((tmp_path / "r.html").read_text(), "Mine").text
    assert (
        "reward ends at 0.8 for echo (0.3 to 1.3, 2 seeds), 0.75 for grpo; critic/rewards/mean ends at 0.5 for verl."
        in text
    )
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


def test_arms_by_pattern_need_no_path(capsys):
    code, out, _ = wm(capsys, "--arm", "ours=runs/echo_*", "--arm", "plain=runs/grpo*", "--json")
    assert code == 0
    assert [(arm["arm"], len(arm["runs"])) for arm in json.loads(out)["arms"]] == [("ours", 2), ("plain", 1)]


def test_a_pattern_chooses_among_the_paths_that_are_named(capsys, tmp_path):
    play(tmp_path / "mine" / "rl_s0", 1)
    play(tmp_path / "others" / "rl_s1", 2)  # of another experiment, which the pattern means, too
    (tmp_path / "mine" / "echo_s9").mkdir()  # a model, of which there is nothing to report
    code, out, _ = wm(capsys, "mine/rl_s0", "--arm", "rl=*/rl_s*", "--json")
    assert code == 0
    assert [one["files"] for one in json.loads(out)["rollouts"]] == [["mine/rl_s0/seen.jsonl"]]
    code, out, _ = wm(capsys, "mine/rl_s0", "--arm", "others=others/rl_s*", "--json")
    assert (code, len(json.loads(out)["rollouts"])) == (0, 2)


def test_a_folder_of_verls_checkpoints_has_its_log_beside_it(capsys, tmp_path):
    (tmp_path / "arms").mkdir()
    (tmp_path / "arms" / "latest_checkpointed_iteration.txt").write_text("2")
    code, _, err = wm(capsys, "arms")
    assert (code, err) == (
        2,
        "wm: arms: checkpoints of verl, and no log; name the file of VERL_FILE_LOGGER_PATH, too\n",
    )
    assert wm(capsys, "arms", "eval")[0] == 0


def play(folder, won):
    folder.mkdir(parents=True)
    rollouts = [one.model_copy(update={"success": place < won}) for place, one in enumerate(grid_trajectories(4))]
    write(rollouts, folder / "seen.jsonl")


def test_arms_are_printed_beside_the_first_or_another(capsys, tmp_path):
    for arm, more in (("rl", 0), ("echo", 1)):
        for seed in range(3):
            play(tmp_path / "seen" / f"{arm}_s{seed}", 1 + more)
    patterns = ("--arm", "rl=seen/rl_s*", "--arm", "echo=seen/echo_s*")
    code, out, _ = wm(capsys, *patterns, "eval")
    assert code == 0
    assert out.splitlines()[:4] == [
        "                 runs  mean                  difference to rl",
        "rollouts, seen",
        "  success  rl    3     0.250 [0.250, 0.250]  –",
        "           echo  3     0.500 [0.500, 0.500]  +0.250 [+0.250, +0.250]",
    ]
    assert "one-step of m: eval" in out  # which one arm alone has
    assert "rollouts: " not in out
    code, out, _ = wm(capsys, *patterns, "--against", "echo", "--json")
    found = json.loads(out)
    assert found["compared"]["against"] == "echo"
    assert found["compared"]["rows"][0]["difference"] == {"seeds": 3, "value": -0.25, "interval": [-0.25, -0.25]}
    assert [(one["of"], one["evaluation"], len(one["files"])) for one in found["rollouts"]] == [
        ("rl, seen", "rollouts, seen", 3),
        ("echo, seen", "rollouts, seen", 3),
    ]


def test_samples_are_of_one_file_of_an_arm_and_split(capsys, tmp_path):
    for seed in range(3):
        play(tmp_path / "seen" / f"rl_s{seed}", 1)
    assert wm(capsys, "seen", "--out", "x.html")[0] == 0
    page = (tmp_path / "x.html").read_text()
    assert [page.count(f"rl, seen, rollout {number}") for number in (1, 2, 3)] == [1, 1, 0]


def test_a_folder_is_written_again_but_not_over_other_files(capsys, tmp_path):
    for _ in range(2):
        assert wm(capsys, "runs", "--out", "made")[0] == 0
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["report.csv", "report.html", "report.json"]
    (tmp_path / "made" / "mine.txt").write_text("x")
    code, _, err = wm(capsys, "runs", "--out", "made")
    assert (code, err.count("\n")) == (2, 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.html").write_text("mine")
    assert wm(capsys, "runs", "--out", "other")[0] == 2
    assert (tmp_path / "other" / "report.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "wm report --help"),
        (["nothing"], "nothing: there is no such file or folder"),
        (["runs", "--out", "x.pdf"], "ends in .html, .csv, .json"),
        (["runs", "--out", "/dev/null/x.html"], "/dev/null is no folder"),
        (["runs", "--out", "x.csv", "--out", "x.csv"], "twice"),
        (["runs", "--arm", "echo"], "NAME=PATTERN"),
        (["runs", "--arm", "a=none_*"], "--arm a=none_*: no run"),
        (["--arm", "a=none_*"], "name runs"),
        (["runs", "--config", "c.yaml"], "add --tokenizer"),
        (
            ["runs", "eval", "--against", "mm"],
            "--against mm: no evaluation and no rollouts are of an arm of this name; did",
        ),
        (["runs", "--against", "echo"], "; there is none"),
        (["eval", "--out", "eval/result.json"], "name another file"),
        (["runs", "--out", "runs/echo_seed0/checkpoint-3/trainer_state.json"], "name another file"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, said):
    code, out, err = wm(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.host
def test_masks_of_rollouts_with_a_tokenizer(capsys, tmp_path):
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
    code, _, err = wm(capsys, "dump.jsonl", "--tokenizer", "tok", "--out", "x.html")
    assert (code, err) == (0, "")
    assert "wm-counts" in (tmp_path / "x.html").read_text().partition("<body>")[2].partition("Rollouts</h2>")[2]
