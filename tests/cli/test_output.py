"""How results are printed for people."""

import pytest

from wm_plugin.cli import measures, output


def measure(name, value, **other):
    own = {"unit": "share", "by": "", "group": "", "low": None, "high": None, "count": 8, "failed": 0}
    return {**own, "name": name, "value": value, "with_failed": value, "note": "", **other}


def printed(capsys, *found, **other):
    own = {"subject": "m", "data": "d", "settings": {}, "notes": [], "failures": {}}
    measures.show({**own, "measures": found, **other})
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_measures_of_all_rows_are_a_table_and_those_of_groups_one_each(capsys):
    lines = printed(
        capsys,
        measure("exact", 0.75, low=0.5, high=1.0, failed=2, with_failed=0.6),
        measure("nll", None, unit="nats", note="no probabilities"),
        measure("exact", 0.5, by="tool", group="move", low=0.25, high=0.75),
        measure("exact", 1 / 3000, by="tool", group="look", note="few"),
        measure("nll", None, by="tool", group="look", unit="nats", note="no probabilities"),  # said of all rows above
        settings={"before": "base"},
        failures={"timeout": 2},
        notes=["a note"],
    )
    assert lines == [
        "m on d, before: base",
        "measure value 95% of no answer counted as 0 note",
        "exact 75% (50% to 100%) 8 2 60%",
        "nll - 8 no probabilities",
        "",
        "tool exact of nll",
        "move 50% (25% to 75%) 8 -",
        "look 0.0333% 8 -",
        "tool: few: look exact",
        "failed or left out: 2 (timeout)",
        "a note",
    ]


def test_of_many_groups_the_first_are_shown_and_wide_tables_have_no_intervals(capsys):
    found = [measure(str(n), 0.5, by="turn", group=str(g), low=0.1, high=0.9) for g in range(14) for n in range(6)]
    lines = printed(capsys, *found)
    assert lines[3:5] == ["0 50% 50% 50% 50% 50% 50% 8", "1 50% 50% 50% 50% 50% 50% 8"]
    assert (len(lines), lines[-1]) == (16, "and 2 more; --json has all")


def test_nothing_measured_is_said(capsys):
    assert "nothing was measured" in printed(capsys, measure("exact", None, count=0))


def test_a_name_of_others_writes_no_line_of_its_own(capsys):
    one = measure("accuracy", 0.1, by="tool", group="search\n  accuracy: 100%", note="a\nb")
    assert len(printed(capsys, one, notes=["c\nd"], failures={"e\nf": 1})) == 7


def test_a_result_without_a_printer_of_its_own(capsys):
    output.show({"out": "x", "ok": True, "none": None, "left_out": {"too long": 2}, "rows": [{"a": 1, "b": "[x]"}]})
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["out: x", "left out:", "  too long: 2", "rows:", "a  b", "1  [x]"]


@pytest.mark.parametrize(
    ("value", "shown"), [(0.123456, "0.1235"), (["a", 1], "a, 1"), ({"a": 1.0}, "a 1"), (None, "-")]
)
def test_values_are_one_text(value, shown):
    assert output.text(value) == shown
