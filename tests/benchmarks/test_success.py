"""docs/echo.md has the table of every comparison, and the README counts it."""

import re

import pytest

import success


def test_the_page_has_the_table_of_the_committed_results():
    page = success.PAGE.read_text()
    assert success.written(page) == page


def test_the_readme_counts_the_table():
    counted = success.counted()
    text = " ".join((success.ROOT / "README.md").read_text().split())
    said = re.search(r"\[(\d+) of (\d+) comparisons\].*?; in (\d+) of them RL alone is shown to raise it", text)
    assert said is not None
    assert [int(one) for one in said.groups()] == [counted["null"], counted["all"], counted["rl_learns"]]
    (other,) = (one for one in success.comparisons() if abs(one.added[0]) > one.added[1])
    assert "on verl, it is higher by .{:03.0f} ± .{:03.0f}".format(*(1000 * part for part in other.added)) in text


def test_differences_are_paired_by_seed():
    one = success.Comparison("", "", [0.1, 0.2, 0.3], [0.2, 0.2, 0.5], [0.5, 0.4, 0.6])
    assert one.gained == (pytest.approx(0.1), pytest.approx(4.303 * 0.1 / 3**0.5))
    assert one.added == (pytest.approx(0.2), pytest.approx(4.303 * 0.1 / 3**0.5))
