import math
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jinja2")

from support.examples import examples
from wm_plugin.lab.report.chart import Change, Changes, Curve, Series

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def draw(figure, styles):
    return figure.draw(styles)


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def curve(*ys: float, **fields) -> str:
    return draw(Curve("c", [Series("a", range(len(ys)), ys)], **fields), {"a": 1})


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((0.40, 0.41), ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]),  # noise stays small
        ((4.86, 4.81), ["0", "1", "2", "3", "4", "5"]),
        ((-1.0, 3.0), ["-1", "0", "1", "2", "3"]),
        ((0.0, 0.0), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ((12_000.0, 30_000.0), ["0", "10,000", "20,000", "30,000"]),
    ],
)
def test_vertical_axes_begin_at_zero(values: tuple[float, ...], ticks: list[str]) -> None:
    assert texts(curve(*values))[: len(ticks)] == ticks


def test_shares_have_the_whole_axis_and_steps_are_whole() -> None:
    figure = draw(Curve("c", [Series("a", [0, 10, 60], [0.4, 0.41, 0.413])], percent=True), {"a": 1})
    assert texts(figure) == ["0%", "20%", "40%", "60%", "80%", "100%", "0", "20", "40", "60", "41%"]
    assert texts(curve(0.1, 0.2, 0.3))[-4:] == ["0", "1", "2", "0.3"]


def test_a_band_is_part_of_the_axis_and_points_without_numbers_are_left_out() -> None:
    band = [(0.1, 0.9), (0.2, 1.4), (math.nan, 1.0)]
    figure = draw(
        Curve("c", [Series("a", [0, 1, 2], [0.5, 0.6, 0.7], band), Series("b", [0], [math.nan])], ""), {"a": 1}
    )
    assert figure.count('class="band"') == 1
    assert figure.count("<circle") == 2
    assert "1.5" in texts(figure)


def test_labels_of_lines_that_end_alike_do_not_cover_each_other() -> None:
    series = [Series(str(number), [0, 1], [0.5, 0.0]) for number in range(4)]
    figure = draw(Curve("c", series), {str(number): number + 1 for number in range(4)})
    places = [float(y) for y in re.findall(r'class="value[^>]* y="([\d.]+)"', figure)]
    assert all(after - before >= 14 for before, after in pairwise(places))
    assert max(places) <= 210


def test_labels_stand_at_the_ends_of_their_lines() -> None:
    short, long = Series("short", [0, 1], [0.9, 0.1]), Series("long", [0, 2], [0.5, 0.1])
    near = Series("near", [0, 2], [0.5, 0.11])
    figure = draw(Curve("c", [short, long, near], percent=True), {"short": 1, "long": 2, "near": 3})
    found = dict(re.findall(r'class="value arm-(\d)" (x="[\d.]+" y="[\d.]+")', figure))
    place = {arm: [float(one) for one in re.findall(r"[\d.]+", text)] for arm, text in found.items()}
    assert place["1"][0] == 44 + (380 - 62 - 44) / 2 + 7  # half of the way across
    assert place["2"][0] == place["3"][0] == 380 - 62 + 7
    # 10% and 11% are moved by the same, up and down; the one far to the left is where it was
    middle = 12 + (184 - 12) * (1 - 0.105) + 4
    assert [place["3"][1], place["2"][1]] == pytest.approx([middle - 7, middle + 7], abs=0.1)
    assert place["1"][1] == pytest.approx(12 + (184 - 12) * 0.9 + 4, abs=0.1)


def test_a_long_line_is_thinned_out_and_keeps_its_end() -> None:
    figure = curve(*range(100_001))
    assert len(figure) < 20_000
    assert texts(figure)[-1] == "100,000"


def test_changes_show_both_values_and_the_interval() -> None:
    figure = draw(
        Changes("c", [Change("a <b>", 0.39, 0.58, (0.48, 0.68)), Change("b", 0.4, 0.29)]), {"a <b>": 1, "b": 0}
    )
    assert texts(figure)[5:] == ["a &lt;b&gt;", "39% → 58%", "b", "40% → 29%"]
    assert figure.count('class="range"') == 1
    assert figure.count('class="dot hollow"') == figure.count('class="dot"') == 2


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8), st.booleans())
def test_any_numbers_give_a_figure(points: list[tuple[float, float]], percent: bool) -> None:
    x, y = ([pair[place] for pair in points] for place in (0, 1))
    figure = draw(Curve("c", [Series("a", x, y)], percent=percent), {"a": 1})
    assert "nan" not in figure
    assert "inf" not in figure
    assert len(figure) < 20_000
