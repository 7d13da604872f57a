"""Sums by task, by hand."""

import pytest

from wm_plugin.lab.evaluation.measures import Key, Sums, differences

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
