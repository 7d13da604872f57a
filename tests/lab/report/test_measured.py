import csv
import io

import pytest

pytest.importorskip("jinja2")

from wm_plugin.lab.evaluation.measures import Evaluation, Measure
from wm_plugin.lab.report import measured
from wm_plugin.lab.report.chart import Curve, Heat, Intervals
from wm_plugin.lab.report.compared import Compared
from wm_plugin.lab.report.export import to_csv
from wm_plugin.lab.report.sources import Measured


def of(*measures, name="a"):
    return Measured(name, "folder", Evaluation("step", "model", "data", measures=measures))


def figures(*evaluations):
    return measured.sections("step", evaluations)[0].figures


def test_measures_of_all_rows_are_a_figure_a_unit():
    shares, nats = figures(
        of(Measure("exact", 0.5, "share", 4, low=0.4, high=0.6), Measure("nll", 2.0, "nats", 4)),
        of(Measure("exact", 0.7, "share", 4), Measure("other", None, "share", 0), name="b"),
    )
    assert (shares.unit, shares.percent, nats.unit, nats.percent) == ("share", True, "nats a token", False)
    ((name, values),) = shares.rows  # what has no value has no mark
    assert name == "exact"
    assert [(one.arm, one.value, one.interval) for one in values] == [("a", 0.5, (0.4, 0.6)), ("b", 0.7, None)]


def test_numbers_are_a_line_in_their_order_and_names_are_marks():
    turns = [Measure("exact", turn / 10, "share", 4, "turn", str(turn)) for turn in (10, 9, 1)]
    tools = [Measure("exact", 0.5, "share", count, "tool", f"t{count}") for count in range(1, 20)]
    line, marks = figures(of(*turns, *tools))
    assert isinstance(line, Curve)
    assert (list(line.series[0].x), list(line.series[0].y)) == ([1, 9, 10], [0.1, 0.9, 1.0])
    assert isinstance(marks, Intervals)
    assert [name for name, _ in marks.rows] == [f"t{count}" for count in range(8, 20)]  # the largest


def test_pairs_are_a_heat_map_with_holes():
    cells = [("0", "q.a", 0.1), ("10", "q.a", 0.3), ("2", "mlp", 0.2)]
    (pairs,) = figures(
        of(*(Measure("changed", value, "share", 1, "layer/module", f"{x}/{y}") for x, y, value in cells))
    )
    assert isinstance(pairs, Heat)
    assert (pairs.columns, pairs.rows, pairs.percent) == (["0", "2", "10"], ["q.a", "mlp"], True)
    assert pairs.values == [[0.1, None, 0.3], [None, 0.2, None]]


def test_heat_maps_of_several_arms_have_one_scale():
    one, other = (
        of(Measure("changed", value, "share", 1, "layer/module", "0/q"), name=str(value)) for value in (0.25, 0.5)
    )
    small, large = figures(one, other)
    assert small.largest == large.largest == 0.5
    assert ['fill-opacity="0.500"' in figure.draw({}) for figure in (small, large)] == [True, False]


def test_tables_have_both_readings_and_arms_side_by_side():
    one = [Measure("exact", 0.5, "share", 4, failed=2, with_failed=0.25, note="why"), Measure("nll", None, "nats", 0)]
    ((table,),) = [measured.sections("step", [of(*one), of(*one, name="b")])[0].tables]
    assert [list(row) for row in table.rows] == [
        ["exact", "a", "50.0%", "4", "2", "25.0%", "why"],
        ["exact", "b", "50.0%", "4", "2", "25.0%", "why"],
        ["nll", "a", "–", "0", "0", "–", ""],
        ["nll", "b", "–", "0", "0", "–", ""],
    ]


def test_evaluations_of_an_arm_are_one_with_an_interval_over_its_runs():
    def one(value, arm):
        measures = [Measure("exact", value, "share", 4, failed=1, with_failed=value), Measure("nll", None, "nats", 0)]
        return Measured(
            f"{arm} {value}", "folder", Evaluation("s", "m", "d", measures=measures, failures={"cut": 1}), arm
        )

    pooled = measured.pooled([one(0.2, "a"), one(0.5, "b"), one(0.4, "a")])
    assert [each.name for each in pooled] == ["a", "b"]
    exact, nll = pooled[0].evaluation.measures
    assert (exact.value, exact.low, exact.high, exact.with_failed) == pytest.approx((0.3, 0.2, 0.4, 0.3))
    assert (exact.count, exact.failed, nll.value, pooled[0].evaluation.failures) == (8, 2, None, {"cut": 2})
    assert pooled[1].evaluation.measures[0].low is None


def test_a_file_of_others_makes_no_square_of_itself(monkeypatch):
    cells = [Measure("changed", 0.5, "share", 1, "layer/module", f"{n}/m{n}") for n in range(500)]
    (pairs,) = figures(of(*cells))
    assert (len(pairs.rows), len(pairs.columns), len(pairs.values)) == (160, 160, 160)
    tried = []
    monkeypatch.setattr(measured, "_by", lambda *args: tried.append(args))
    groups = [Measure("exact", 0.5, "share", 1, f"by{n}", "x") for n in range(500)]
    empty = [Measure("exact", None, "share", 0, f"none{n}", "x") for n in range(500)]
    assert figures(of(*empty, *groups)) == []
    assert len(tried) == 100


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "＝", "\n=", "\t="])
def test_no_text_of_a_table_is_a_formula(sign):
    (_, row) = csv.reader(
        io.StringIO(to_csv([], [of(Measure("a", 0.5, "share", 1, "tool", f"{sign}1"))], Compared("", [])))
    )
    assert f"'{sign}1" in row
