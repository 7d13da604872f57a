import json

import pytest

from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import (
    Evaluation,
    Key,
    Measure,
    Sums,
    differences,
    open_folder,
    read_result,
    read_rows,
    write_result,
    write_rows,
)

EVALUATION = Evaluation(
    "one-step",
    "model",
    "data.jsonl",
    {"seed": 0},
    [Measure("exact", 0.5, "share", 4, low=0.1, high=0.9), Measure("exact", None, "share", 0, "tool", "search")],
    {"timeout": 1},
    ["A remark."],
)


def test_round_trip(tmp_path):
    write_result(EVALUATION, tmp_path)
    assert read_result(tmp_path) == EVALUATION == read_result(tmp_path / "result.json")
    assert EVALUATION.measure("exact", "tool", "search").count == 0
    with pytest.raises(KeyError):
        EVALUATION.measure("exact", "tool", "other")


def test_numbers_that_are_not_finite_are_null(tmp_path):
    settings = {"a": [float("nan"), 1], "b": {"c": float("inf")}}
    write_result(Evaluation("bench", "m", "d", settings, [Measure("a", float("nan"), "share", 1)]), tmp_path)
    assert read_result(tmp_path).measures[0].value is None
    assert read_result(tmp_path).settings == {"a": [None, 1], "b": {"c": None}}
    write_rows([{"scores": {"nll": float("nan"), "exact": 1.0}, "all": [float("inf"), 2]}], tmp_path)
    text = (tmp_path / "rows.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"scores": {"nll": None, "exact": 1.0}, "all": [None, 2]}


def test_rows_with_any_text(tmp_path):
    rows = [{"real": "\ud83d half", "predicted": "line\u2028end\n", "scores": {"exact": 1.0}}, {"failure": "timeout"}]
    write_rows(rows, tmp_path)
    assert list(read_rows(tmp_path)) == rows


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "no result of wm eval") for text in ("[]", "{", '{"format": "other"}')),
        *(
            (json.dumps({**EVALUATION.as_dict(), **change}), "damaged")
            for change in (
                {"name": 1},
                {"notes": "text"},
                {"settings": None},
                {"failures": {"cut": "x"}},
                {"measures": [{"name": "a"}]},
            )
        ),
    ],
)
def test_other_files_are_one_line(tmp_path, text, said):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UserError, match=rf"result\.json: {said}"):
        read_result(tmp_path)


def test_a_folder_is_only_ours(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="name another folder"):
        open_folder(tmp_path, "bench", "m", "d")
    folder = open_folder(tmp_path / "new" / "lab", "bench", "m", "d")
    write_result(EVALUATION, folder)
    assert open_folder(folder, "bench", "m", "d") == folder
    with pytest.raises(UserError, match="other settings"):
        open_folder(folder, "bench", "another", "d")
    assert json.loads((folder / "evaluation.json").read_text())["subject"] == "m"


SHARE, COUNT = Key("right"), Key("corrections", "count", "kind", "factual")


def sums(*rows):
    made = Sums()
    for row in rows:
        made.add(*row)
    return made


def test_the_ratio_of_sums_and_both_readings():
    made = sums((SHARE, "a", 1.0), (SHARE, "a", 0.0), (SHARE, "b", 1.0), (SHARE, "b", 0.0, 0.0, 1.0), (COUNT, "a", 6.0))
    right, corrections = made.measures()
    assert (right.value, right.count, right.failed, right.with_failed) == (2 / 3, 3, 1, 2 / 4)
    assert (right.low, right.high) == (0.5, 1.0)  # task a alone, and b alone
    assert (corrections.value, corrections.unit, corrections.by, corrections.group) == (6.0, "count", "kind", "factual")
    (named,) = made.measures(by="data", group="before")
    assert (named.name, named.by, named.group, named.value) == ("right", "data", "before", 2 / 3)


def test_a_measure_of_nothing():
    (measure,) = sums((SHARE, "a", 0.0, 0.0, 1.0)).measures()
    assert (measure.value, measure.count, measure.failed, measure.with_failed) == (None, 0, 1, 0.0)


def test_differences_are_over_the_same_tasks():
    after = sums((SHARE, "a", 1.0), (SHARE, "b", 1.0), (SHARE, "only after", 0.0), (COUNT, "a", 1.0))
    before = sums((SHARE, "b", 0.0), (SHARE, "a", 0.0), (SHARE, "only before", 1.0))
    (measure,) = differences(after, before)
    assert (measure.name, measure.value, measure.low, measure.high, measure.count) == (
        "right_difference",
        1.0,
        1.0,
        1.0,
        2,
    )
    assert "on the same 2 tasks, 99% interval: higher" in measure.note
    assert differences(after, sums((SHARE, "a", 1.0))) == []
    assert differences(after, sums((SHARE, "a", 0.0, 0.0), (SHARE, "b", 0.0, 0.0))) == []  # none that counts


def test_equal_sets_do_not_differ():
    made = sums(*((SHARE, str(task), float(task % 2)) for task in range(20)))
    (measure,) = differences(made, made)
    assert (measure.value, measure.low, measure.high) == (0.0, 0.0, 0.0)
    assert measure.note.endswith("no difference at this sample size")


def test_draws_without_a_count_leave_no_interval():
    after = sums((SHARE, "a", 1.0), (SHARE, "b", 0.0, 0.0), (SHARE, "c", 0.0, 0.0))
    before = sums((SHARE, "a", 0.0), (SHARE, "b", 1.0), (SHARE, "c", 0.0, 0.0))
    (measure,) = differences(after, before)
    assert (measure.value, measure.low, measure.high, measure.count) == (
        pytest.approx(0.5),
        None,
        None,
        2,
    )  # nothing of c
