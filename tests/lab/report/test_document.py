import html
import re

import pytest

pytest.importorskip("jinja2")

from support.pages import Page
from wm_plugin.lab.report import Comparison, Report, Sample, difference, render, write
from wm_plugin.lab.report.chart import Change, Changes, Curve, Series
from wm_plugin.lab.report.document import Section, Table
from wm_plugin.tokens.view import Token

ATTACK = "\"'><script>alert(1)</script><img src=http://evil.example/x>"


def report(text: str = "ok") -> Report:
    return Report(
        title=f"title {text}",
        headline=f"headline {text}",
        subtitle=f"subtitle {text}",
        picture=[
            Changes(
                f"picture {text}", [Change(f"a {text}", 0.2, 0.3, (0.1, 0.4)), Change(f"start {text}", 0.1, 0.1)], text
            ),
            Curve(f"second {text}", [Series(f"a {text}", [0], [1], [(0.5, 1.5)])]),
        ],
        reading=[f"reading {text}"],
        glyphs=[(text, f"glyph {text}")],
        summary=[f"sentence {text}"],
        measured=Table(["arm", f"score {text}", text], [[f"a {text}", "0.123", text]]),
        curves=[
            Curve(
                f"curve {text}",
                [Series(f"a {text}", [0, 1, 2], [0.1, 0.2, 0.3]), Series(f"b {text}", range(50), range(50))],
                unit=text,
                x_label=text,
            )
        ],
        comparisons=[
            Comparison(
                f"context {text}",
                f"real {text}",
                {f"a {text}": text, f"b {text}": f"real {text}"},
                f"card {text}",
                f"action {text}",
            )
        ],
        comparing=f"comparing {text}",
        samples=[Sample(f"sample {text}", [Token(text, "policy"), Token(text, "content", text, 1.0)])],
        notes=[f"note {text}"],
        details={f"a {text}": f"detail {text}"},
    )


@pytest.mark.parametrize("text", ["ok", ATTACK, "$x$ \\frac _a {{ 7*7 }} {% raw %}", "\x1b[31m\u202e"])
def test_self_contained_and_escaped(text: str) -> None:
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    page = Page(render(report(text)), f"title {shown}")
    for part in (
        "headline", "picture", "second", "subtitle", "sentence", "reading", "glyph", "detail", "score", "curve", "comparing",
        "card", "action", "context", "sample", "note",
    ):  # fmt: skip
        assert f"{part} {shown}" in page.text, part


def test_a_cell_has_small_print_and_a_label() -> None:
    page = Page(render(Report("t", measured=Table(["", "long"], [["x", "1\nsmall\nprint"]]))), "t")
    assert page.cells == ["x", "1small\nprint"]
    assert ("td", "data-label", "long") in page.attributes  # a phone shows cells as a list


def test_an_arm_has_one_colour_everywhere_and_the_start_none_of_its_own() -> None:
    document = render(
        Report(
            "t",
            picture=[Changes("p", [Change("start", 0.1, 0.2), Change("b", 0.3, 0.4)])],
            curves=[Curve("1", [Series("a", [0], [1])]), Curve("2", [Series("b", [0], [1]), Series("a", [0], [1])])],
        )
    )
    legend = re.findall(r'<svg class="swatch arm-(\d)".*?</svg>(\w+)', document)
    assert legend == [
        ("0", "start"),
        ("1", "a"),
        ("2", "b"),
        ("1", "a"),
        ("2", "b"),
    ]  # over the picture, over the curves
    figures = re.findall(r"<figure.*?</figure>", document, flags=re.DOTALL)
    assert [sorted(set(re.findall(r'g class="arm-(\d)', figure))) for figure in figures] == [
        ["0", "2"],
        ["1"],
        ["1", "2"],
    ]


def test_the_key_of_a_section_has_the_arms_of_its_figures() -> None:
    one = Curve("1", [Series("a", [0], [1])])
    sections = [Section("first", figures=[one]), Section("second", figures=[Curve("2", [Series("b", [0], [1])]), one])]
    document = render(Report("t", sections=sections))
    keys = re.findall(r'<p class="legend">.*?</p>', document, flags=re.DOTALL)
    assert [re.findall(r"</svg>(\w+)", key) for key in keys] == [["a"], ["a", "b"]]


def test_parts_without_content_are_left_out_and_rendering_is_reproducible() -> None:
    page = Page(render(Report("only a title")), "only a title")
    assert not {"table", "svg", "h2", "section"} & set(page.tags)
    assert render(report()) == render(report())


def test_predictions_mark_what_is_wrong() -> None:
    assert difference("A.#", "A.#") == [("A.#", False)]
    assert difference("AB#\n", "A.#.") == [("A", False), ("B", True), ("#", False), ("↵", True)]
    assert difference("xhello", "hello") == [("x", True), ("hello", False)]
    assert difference("", "hello") == []
    document = render(Report("t", comparisons=[Comparison("c", "A.\n#", {"good": "A.\n#", "bad": "A<\n#"})]))
    assert re.findall(r"<mark>(.*?)</mark>", document) == ["marked", "&lt;"]
    assert re.findall(r'verdict">([^<]+)', document) == ["exact", "wrong: 1 of 4"]
    pieces = re.findall(r"<h4>(?:what really followed|good)</h4>\s*<pre>(.*?)</pre>", document, flags=re.DOTALL)
    assert [html.unescape(piece) for piece in pieces] == ["A.\n#", "A.\n#"]


def test_long_texts_and_rollouts_are_cut_and_the_cut_is_marked() -> None:
    long = "x" * 100_000
    document = render(
        Report(
            "t",
            comparisons=[Comparison(long, long, {"a": long})],
            samples=[Sample("s", [Token("x", "policy")] * 100_000)],
        )
    )
    text = Page(document, "t").text
    assert len(document) < 1_000_000
    assert text.count("98,800 of 100,000 characters are not shown") == 3
    assert "96,000 of 100,000 tokens are not shown" in text


def test_written_as_utf8_even_with_a_lone_surrogate(tmp_path) -> None:
    path = write(report("é \ud800"), tmp_path / "report.html")
    assert "title é \\ud800" in path.read_text(encoding="utf-8")
