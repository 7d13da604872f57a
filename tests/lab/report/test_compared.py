"""Arms beside one of them, from evaluations and files of rollouts; the figures are by hand."""

import csv
import io
import json

import pytest

pytest.importorskip("jinja2")

from support.pages import Page
from support.predictions import grid_trajectories
from support.trainer_logs import write_state
from wm_plugin.data.write import write
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, write_result
from wm_plugin.lab.report import compared, export, overview, render, sources
from wm_plugin.lab.report.arms import parse, seed_of
from wm_plugin.lab.report.sources import Measured

T2 = 4.303  # Student's t at 0.975, two degrees of freedom
ATTACK = "<script>alert(1)</script>\n\x1b[31m"


def of(arm, seed, value, *, name="boards", measure="success", unit="share", **fields):
    one = Measure(measure, value, unit, 8, **fields)
    return Measured(arm, f"evals/{arm}_s{seed}", Evaluation(name, f"{arm}_s{seed}", "d", measures=[one]), arm)


def rows(*evaluations, **options):
    return {(row.measure, row.arm): row for row in compared.compared(evaluations, **options).rows}


def play(path, outcomes, rewards=None, turns=3):
    """A file of rollouts, each of a task of its own, with these outcomes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    played = grid_trajectories(len(outcomes), turns=turns)
    ends = zip(played, outcomes, rewards or [None] * len(outcomes), strict=True)
    write([one.model_copy(update={"success": won, "reward": reward}) for one, won, reward in ends], path)


def view(*paths, arms=(), against=""):
    patterns = parse(arms)
    return overview.overview(sources.collect([*map(str, paths), *sources.expand(patterns)]), patterns, against)


@pytest.mark.parametrize(
    ("path", "seed"),
    [
        ("runs/echo_s3", 3),
        ("seed0/echo_s1/seen.jsonl", 1),
        ("echo_s1_seed2", 2),
        ("echo_s007.jsonl", 7),
        ("Seed=12/x", 12),
        ("steps100/run2", None),
        ("", None),
        ("a" * 400 + "_s1", None),
    ],
)
def test_the_seed_of_a_path(path, seed):
    assert seed_of(path) == seed


def test_means_intervals_and_paired_differences_by_hand():
    found = rows(
        *(of("plain", seed, value) for seed, value in enumerate((0.4, 0.5, 0.6))),
        *(of("echo", seed, value) for seed, value in enumerate((0.5, 0.5, 0.8))),
    )
    plain, echo = found["success", "plain"], found["success", "echo"]
    half = T2 * 0.1 / 3**0.5
    assert (plain.mean.value, plain.mean.count, plain.difference) == (pytest.approx(0.5), 3, None)
    assert plain.mean.interval == pytest.approx((0.5 - half, 0.5 + half))
    # 0.1, 0, 0.2: that of each seed, and not of the means, whose interval would be wider
    assert (echo.difference.value, echo.difference.count) == (pytest.approx(0.1), 3)
    assert echo.difference.interval == pytest.approx((0.1 - half, 0.1 + half))


def test_the_order_of_seeds_does_not_matter_but_their_numbers_do():
    found = rows(of("a", 0, 0.1), of("a", 7, 0.9), of("b", 7, 0.8), of("b", 0, 0.3))
    assert found["success", "b"].difference.value == pytest.approx(0.05)
    assert found["success", "b"].difference.interval == pytest.approx((-0.1, 0.2))  # both


def test_a_seed_that_an_arm_lacks_is_in_its_mean_alone():
    found = rows(of("a", 0, 0.1), of("a", 1, 0.2), of("a", 2, 0.9), of("b", 0, 0.3), of("b", 1, 0.6))
    assert found["success", "a"].mean.value == pytest.approx(0.4)
    difference = found["success", "b"].difference
    assert (difference.value, difference.count) == (pytest.approx(0.3), 2)


def test_without_a_common_seed_there_is_no_difference():
    found = rows(of("a", 0, 0.1), of("b", 1, 0.3), of("c", "x", 0.5), of("a", "y", 0.2))
    assert [row.difference for row in found.values()] == [None] * 3
    assert found["success", "b"].mean.interval is None


def test_the_seed_may_be_in_the_name_of_the_model_alone():
    def one(arm, model, value):
        measures = [Measure("exact", value, "share", 8)]
        return Measured(arm, f"evals/{arm}", Evaluation("s", model, "d", measures=measures), arm)

    found = rows(one("a", "runs/a_seed1/checkpoint-3", 0.25), one("b", "runs/b_s1", 0.5))
    assert found["exact", "b"].difference.value == 0.25


def test_runs_of_one_seed_count_by_their_mean_where_seeds_are_paired():
    found = rows(of("a", 0, 0.1), of("a", 0, 0.3), of("a", 1, 0.5), of("b", 0, 0.3), of("b", 1, 0.5))
    assert found["success", "a"].mean.count == 3
    assert found["success", "b"].difference.value == pytest.approx(0.05)


def test_what_one_arm_alone_measures_and_groups_are_left_out():
    found = rows(
        of("a", 0, 0.1),
        of("a", 0, 0.1, measure="turns", unit="count"),
        of("a", 0, None, measure="exact"),
        of("a", 0, 0.1, measure="exact", by="tool", group="x"),
        of("b", 0, 0.1),
        of("b", 0, 0.1, measure="exact"),
        of("b", 0, 0.1, measure="exact", by="tool", group="x"),
    )
    assert list(found) == [("success", "a"), ("success", "b")]
    assert compared.compared([of("a", 0, 0.1), of("a", 1, 0.1)]).rows == []
    assert compared.compared([]).rows == []


def test_the_first_arm_is_that_of_the_command_line_or_the_one_asked_for():
    evaluations = [of("a", 0, 0.1), of("b", 0, 0.3)]
    assert compared.compared(evaluations).against == "a"
    found = compared.compared(evaluations, ["none", "b", "a"])
    assert (found.against, [row.arm for row in found.rows]) == ("b", ["b", "a"])
    assert rows(*evaluations, against="b")["success", "a"].difference.value == pytest.approx(-0.2)
    with pytest.raises(UserError, match="--against bb: .*; did you mean 'b'"):
        compared.compared(evaluations, against="bb")


def test_numbers_beyond_a_float_have_no_difference():
    found = rows(of("a", 0, 1e308), of("b", 0, -1e308))
    assert found["success", "b"].difference is None


def test_a_table_for_a_terminal_is_narrow_and_has_what_matters():
    names = {"success": "share", "turns": "count", "env_nll": "nats", "exact": "share"}
    evaluations = [
        of(arm, seed, value + place / 10, measure=name, unit=unit)
        for place, arm in enumerate(("rl", "warm_rl_echo"))
        for seed, value in enumerate((0.4, 0.5, 0.6))
        for name, unit in names.items()
    ]
    lines = compared.lines(json.loads(json.dumps(compared.as_dict(compared.compared(evaluations)))))
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == ["runs", "mean", "difference", "to", "rl"]
    assert lines[1:4] == [
        "boards",
        "  success  rl            3     0.500 [0.252, 0.748]  –",
        "           warm_rl_echo  3     0.600 [0.352, 0.848]  +0.100 [+0.100, +0.100]",
    ]
    assert not [line for line in lines if "turns" in line]
    assert lines[-1] == "1 more measure on the page and in the JSON"


def test_a_terminal_says_over_how_many_seeds_if_not_all():
    evaluations = [of("a", 0, 0.1), of("b", 0, 0.3), of("b", 1, 0.5)]
    lines = compared.lines(compared.as_dict(compared.compared(evaluations)))
    assert lines[3].endswith("0.400 [0.300, 0.500]  +0.200 (1 seed)")
    assert compared.lines(compared.as_dict(compared.compared([]))) == []


@pytest.mark.parametrize(
    ("value", "signed", "text"),
    [
        (0.5, True, "+0.500"),
        (-12.345, True, "-12.35"),
        (1234.5, False, "1,234.5"),
        (1e-5, False, "1.00e-05"),
        (0.0, True, "+0.000"),
    ],
)
def test_numbers(value, signed, text):
    assert compared.number(value, signed) == text


def test_rollouts_of_arms_are_measured_over_seeds_by_split(tmp_path):
    for arm, more in (("rl", 0), ("rwml_rl", 2)):
        for seed in range(3):
            for split, won in (("seen", 4 + seed + more), ("unseen", 2 + more)):
                outcomes = [number < won for number in range(10)]
                play(tmp_path / f"played/{arm}_s{seed}/{split}.jsonl", outcomes, [2.0 * one for one in outcomes])
    shown = view(tmp_path, arms=["rl=*/rl_s*", "rwml_rl=*/rwml_rl_s*"])
    assert [(one.arm, one.split, one.summary.trajectories, len(one.places)) for one in shown.rollouts] == [
        ("rl", "seen", 30, 3), ("rl", "unseen", 30, 3), ("rwml_rl", "seen", 30, 3), ("rwml_rl", "unseen", 30, 3),
    ]  # fmt: skip
    found = {(row.evaluation, row.measure, row.arm): row for row in shown.compared.rows}
    assert shown.compared.against == "rl"
    seen = found["rollouts, seen", "success", "rl"]
    half = T2 * 0.1 / 3**0.5
    assert seen.mean.interval == pytest.approx((0.5 - half, 0.5 + half))  # over seeds: 0.4, 0.5, 0.6
    assert found["rollouts, seen", "success", "rwml_rl"].difference.interval == pytest.approx((0.2, 0.2))
    assert found["rollouts, unseen", "reward", "rwml_rl"].mean.value == pytest.approx(0.8)
    assert found["rollouts, unseen", "turns", "rwml_rl"].difference.value == 0
    document = Page(render(overview.report(shown)), "Report").text
    for words in (
        "12 files of rollouts", "Arms beside rl", "rollouts, seen: success", "+0.200+0.200 to +0.200", "50.0%25.2% to 74.8%",
        "Episodes that have ended: unseen", "On 10 rollouts of 10 tasks.",
    ):  # fmt: skip
        assert words in document.replace("\n", ""), words


def test_a_file_alone_has_intervals_over_its_tasks(tmp_path):
    play(tmp_path / "a.jsonl", [True, False, True, None], [0.5, 1.0, None, None])
    (one,) = view(tmp_path / "a.jsonl").outcomes
    success, reward, turns = one.evaluation.measures
    assert (one.evaluation.name, one.arm, turns.value, turns.count) == ("rollouts", "a", 3.0, 4)
    # what is not known is no failure
    assert (success.value, success.count, success.failed, success.with_failed) == (2 / 3, 3, 0, 2 / 3)
    assert success.low < success.value < success.high
    assert (reward.value, reward.count) == (0.75, 2)
    assert one.evaluation.failures == {"success is not known": 1}


def test_rollouts_of_a_task_are_drawn_together(tmp_path):
    rollouts = grid_trajectories(16)
    same = [
        one.model_copy(update={"task_id": f"t{place // 8}", "success": place < 8}) for place, one in enumerate(rollouts)
    ]
    write(same, tmp_path / "a.jsonl")
    success = view(tmp_path / "a.jsonl").outcomes[0].evaluation.measure("success")
    assert (success.value, success.low, success.high) == (0.5, 0.0, 1.0)  # of two tasks, not of sixteen rollouts


def test_rewards_beyond_a_float_are_no_number(tmp_path):
    play(tmp_path / "a.jsonl", [None] * 3, [1.7e308, 1.7e308, float("inf")])
    shown = view(tmp_path)
    reward = shown.outcomes[0].evaluation.measure("reward")
    assert (reward.value, reward.low, reward.high, reward.count) == (None, None, None, 2)
    Page(render(overview.report(shown)), "Report")


@pytest.mark.parametrize(
    ("files", "arms", "found"),
    [
        # by a pattern: the split is what lies below the arm's folder
        (["p/a_s0/x.jsonl", "p/a_s1/x.jsonl"], ["a=p/a_s*"], [("a", "x")] * 2),
        (["p/a/s0/x.jsonl", "p/a/s1/d/x.jsonl"], ["a=p/a"], [("a", "x"), ("a", "d/x")]),
        (["p/a_s0.jsonl", "p/a_s1.jsonl"], ["a=p/a_*"], [("a", "")] * 2),
        (["p/a/s0.jsonl", "p/a/s1.jsonl"], ["a=p/a"], [("a", "")] * 2),
        (["p/a/x.jsonl", "p/a/y.jsonl"], ["a=p/a"], [("a", "x"), ("a", "y")]),
        (["p/a/x.jsonl", "p/a/y.jsonl"], ["a=p/a/*"], [("a", "")] * 2),
        (["p/a/d/x.jsonl", "p/a/e/x.jsonl"], ["a=p/a*"], [("a", "d/x"), ("a", "e/x")]),
        # or what several folders have
        (["p/a/x.jsonl", "p/b/x.jsonl"], ["a=p/a/*", "b=p/b/*"], [("a", "x"), ("b", "x")]),
        # by their names alone
        (["p/a_s0/x.jsonl", "p/a_s1/x.jsonl"], [], [("a", "x")] * 2),
        (["p/a_s0.jsonl", "p/a_s1.jsonl", "p/b.jsonl"], [], [("a", ""), ("a", ""), ("b", "")]),
        (["p/a/x.jsonl", "p/b/x.jsonl"], [], [("a", "x"), ("b", "x")]),
        (["p/a/s0.jsonl", "p/a/s1.jsonl"], [], [("a", "")] * 2),
        (["p/a/x_s0.jsonl", "p/b/x_s1.jsonl"], [], [("a", "x"), ("b", "x")]),
    ],
)
def test_the_arm_and_the_split_of_a_file(tmp_path, monkeypatch, files, arms, found):
    monkeypatch.chdir(tmp_path)
    for file in files:
        play(tmp_path / file, [True])
    assert [(one.arm, one.split) for one in view("p", arms=arms).files] == found


def test_rollouts_in_the_folder_of_a_run_are_of_its_arm(tmp_path):
    for seed in range(2):
        write_state(tmp_path / f"echo_s{seed}", {"reward": {1: 0.1, 2: 0.2}}, checkpoint=2)
        play(tmp_path / f"echo_s{seed}/played/seen.jsonl", [True])
    shown = view(tmp_path)
    assert [(one.arm, one.split) for one in shown.files] == [("echo", "played/seen")] * 2
    assert list(overview.report(shown).details) == ["echo"]


def test_evaluations_whose_models_differ_in_their_seeds_alone_are_an_arm(tmp_path):
    for name, value in (("a_s0", 0.25), ("a_s1", 0.75), ("b_s0", 0.5)):
        (tmp_path / name).mkdir()
        measures = [Measure("exact", value, "share", 4)]
        write_result(Evaluation("one-step", f"models/{name}", "d", {}, measures), tmp_path / name)
    shown = view(tmp_path)
    assert [one.arm for one in shown.evaluations] == ["a", "a", "b"]
    assert shown.compared.rows[1].difference.value == 0.25


def test_the_csv_and_the_json_have_the_rows():
    found = compared.compared([of("a", 0, 0.25), of("b", 0, 0.5), of("b", 1, 1.0)])
    *_, mean, difference = csv.DictReader(io.StringIO(export.to_csv([], [], found)))
    same = {"arm": "b", "name": "success", "by": "evaluation", "group": "boards", "unit": "share"}
    assert mean.items() >= {"kind": "mean", "value": "0.75", "low": "0.5", "high": "1.0", "count": "2", **same}.items()
    assert difference.items() >= {"kind": "difference to a", "value": "0.25", "low": "", "count": "1", **same}.items()
    contents = json.loads(export.to_json(export.as_dict([], [], [], found)))["compared"]
    assert contents["against"] == "a"
    assert contents["rows"][1] == {
        "evaluation": "boards", "measure": "success", "unit": "share", "arm": "b", "runs": 2, "value": 0.75,
        "interval": [0.5, 1.0], "difference": {"seeds": 1, "value": 0.25, "interval": None},
    }  # fmt: skip


def test_hostile_names_are_text(tmp_path):
    evaluations = [of(f"{arm}{ATTACK}", seed, 0.5, name=ATTACK, measure=ATTACK) for arm in "ab" for seed in range(3)]
    found = compared.compared(evaluations)
    lines = compared.lines(compared.as_dict(found))
    assert len(lines) == 5
    assert not any("\x1b" in line or "\n" in line for line in lines)
    play(tmp_path / "a<b>_s0" / "<img src=x>.jsonl", [True])
    play(tmp_path / "=b_s0" / "<img src=x>.jsonl", [False])
    shown = view(tmp_path)
    document = render(overview.report(shown))
    assert "<img" not in document
    assert "&lt;img src=x&gt;" in document
    assert "'=b" in export.to_csv([], shown.measured, shown.compared)


def test_many_measures_are_bounded_on_the_page():
    evaluations = [of(arm, 0, 0.5, measure=f"m{number}") for number in range(300) for arm in "ab"]
    (section,) = compared.sections(compared.compared(evaluations))
    assert len(section.tables[0].rows) == 201
    assert section.tables[0].rows[-1][0] == "… 400 more rows are not shown …"
