"""The tiny world of benchmarks/predictions.py, its control, and its table."""

import pytest

pytest.importorskip("trl", minversion="1.10")

import predictions as benchmark

pytestmark = pytest.mark.host


@pytest.mark.parametrize(
    ("place", "direction", "to"),
    [(0, "R", 3), (0, "U", 3), (3, "L", 0), (3, "R", 3), (0, "L", 0), (5, "D", 3), (7, "R", 7), (3, "U", 5)],
)
def test_moves_slide_on_ice_and_stop_at_walls(place, direction, to):
    assert benchmark.moved(".~~.#...", place, direction) == to


def test_rows_can_be_solved_and_layouts_are_held_out():
    rows, others = benchmark.make_rows(50, 1), benchmark.make_rows(50, 1, held_out=True)
    assert not {row["terrain"] for row in rows} & {row["terrain"] for row in others}
    for row in rows:
        assert 1 <= benchmark.distances(row["terrain"], row["goal"])[row["start"]] < benchmark.MAX_TURNS


def test_the_control_compares_with_another_turn():
    scores = benchmark.OtherTurn(0)(["a", "b", "c"], ["a", "b", "c"])
    assert scores == [0.0] * 3
    assert benchmark.OtherTurn(0)(["a"] * 4, ["a"] * 4) == [1.0] * 4


def test_the_table_says_what_is_null():
    def record(seed, turn):
        held_out = {name: {"success": 0.5, "exact": 0.1 * seed} for name in ("start", "none", "turn", "other")}
        held_out["turn"] = {"success": 0.5 + turn, "exact": 0.1 * seed + 0.2}
        return {"setting": "slow", "seed": seed, "held_out": held_out, "cpu_seconds": 1.0}

    text = benchmark.table([record(seed, turn) for seed, turn in enumerate((0.1, -0.1, 0.05, -0.05, 0.0))])
    (line,) = [line for line in text.splitlines() if line.startswith("| turn − none")]
    assert line == "| turn − none | +0.000 ± 0.098, null (the interval contains 0) | +0.200 ± 0.000, higher |"
