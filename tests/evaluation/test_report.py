import html
import importlib
import re
import sys
from html.parser import HTMLParser

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from wm_plugin import evaluation
from wm_plugin.errors import MissingExtraError
from wm_plugin.evaluation.report import Comparison, Curve, Report, Sample, Series, difference, render, write
from wm_plugin.tokens.view import Token

ATTACK = "\"'><script>alert(1)</script><img src=http://evil.example/x>"


def report(text: str = "ok") -> Report:
    return Report(
        title=f"title {text}",
        subtitle=f"subtitle {text}",
        summary=[f"sentence {text}"],
        arms=[
            {"arm": f"a {text}", f"score {text}": 0.123456, "tokens": 12345, "note": text},
            {"arm": f"b {text}", f"score {text}": 1234.5, "tokens": 7, "note": text},
        ],
        curves=[
            Curve(
                f"curve {text}",
                [Series(f"a {text}", [0, 1, 2], [0.1, 0.2, 0.3]), Series(f"b {text}", range(50), range(50))],
                unit=text,
                x_label=text,
            )
        ],
        comparisons=[Comparison(f"context {text}", f"real {text}", {f"a {text}": text, f"b {text}": f"real {text}"})],
        samples=[Sample(f"sample {text}", [Token(text, "policy"), Token(text, "content", text, 1.0)])],
        notes=[f"note {text}"],
    )


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [
            value or ""
            for name, value in attributes
            if name in ("src", "href", "xlink:href", "srcset", "data", "action")
        ]

    def handle_data(self, data):
        self.text += data


def parse(document: str) -> Collector:
    collector = Collector()
    collector.feed(document)
    return collector


@pytest.mark.parametrize("text", ["ok", ATTACK, "$x$ \\frac _a {{ 7*7 }} {% raw %}", "\x1b[31m\u202e"])
def test_self_contained_and_escaped(text: str) -> None:
    document = render(report(text))
    page = parse(document)
    assert not {"script", "img", "iframe", "link", "object", "embed", "base"} & set(page.tags)
    assert all(target.startswith("#") for target in page.loads)  # a figure's own definitions
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", document)
    assert "\x1b" not in document
    assert "\u202e" not in document
    shown = text if text.isprintable() else text.encode("unicode_escape").decode()
    for part in ("title", "subtitle", "sentence", "score", "curve", "context", "sample", "note"):
        assert f"{part} {shown}" in page.text, part


def test_numbers_of_the_table() -> None:
    cells = re.findall(r"<td>(.*?)</td>", render(report()))
    assert cells == ["a ok", "0.123", "12,345", "ok", "b ok", "1,234", "7", "ok"]


def test_an_arm_has_one_colour_in_legend_and_curves() -> None:
    document = render(
        Report(
            "t",
            curves=[Curve("1", [Series("a", [0], [1])]), Curve("2", [Series("b", [0], [1]), Series("a", [0], [1])])],
        )
    )
    legend = dict(re.findall(r'style="background:(#\w+)"></span>(\w)</span>', document))
    figures = re.findall(r"<figure.*?</figure>", document, flags=re.DOTALL)
    colours = {arm: colour for colour, arm in legend.items()}
    assert colours["a"] in figures[0]
    assert colours["b"] not in figures[0]
    assert colours["a"] in figures[1]
    assert colours["b"] in figures[1]


def test_a_curve_keeps_to_its_limits_and_steps_are_whole() -> None:
    def ticks(limits: tuple[float, float] | None) -> list[str]:
        document = render(Report("t", curves=[Curve("c", [Series("a", [2, 3], [0.4, 0.41])], limits=limits)]))
        return re.findall(r"<text[^>]*>([-\d.]+)</text>", document)

    assert ticks((0, 1)) == ["2", "3", "0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert ticks(None)[:3] == ["2", "3", "0.400"]


def test_parts_without_content_are_left_out_and_rendering_is_reproducible() -> None:
    page = parse(render(Report("only a title")))
    assert "only a title" in page.text
    assert not {"table", "svg", "h2", "section"} & set(page.tags)
    assert render(report()) == render(report())


def test_predictions_mark_what_is_wrong() -> None:
    assert difference("A.#", "A.#") == [("A.#", False)]
    assert difference("AB#\n", "A.#.") == [("A", False), ("B", True), ("#", False), ("↵", True)]
    assert difference("xhello", "hello") == [("x", True), ("hello", False)]
    assert difference("", "hello") == []
    document = render(Report("t", comparisons=[Comparison("c", "A.\n#", {"good": "A.\n#", "bad": "A<\n#"})]))
    assert re.findall(r"<mark>(.*?)</mark>", document) == ["marked", "&lt;"]
    assert re.findall(r'class="verdict">(\w+)', document) == ["exact", "wrong"]
    pieces = re.findall(r"<h3>(?:real|good)</h3><pre>(.*?)</pre>", document, flags=re.DOTALL)
    assert [html.unescape(piece) for piece in pieces] == ["A.\n#", "A.\n#"]


def test_arms_must_have_the_same_columns() -> None:
    with pytest.raises(ValueError, match="columns"):
        render(Report("t", arms=[{"a": 1}, {"b": 1}]))


def test_written_as_utf8_even_with_a_lone_surrogate(tmp_path) -> None:
    path = write(report("é \ud800"), tmp_path / "report.html")
    assert "title é \\ud800" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_the_extra_the_module_imports_and_says_what_to_install(missing: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "wm_plugin.evaluation.report")
    monkeypatch.setattr(
        evaluation, "report", evaluation.report
    )  # the import below sets it; this puts it back afterwards
    module = importlib.import_module("wm_plugin.evaluation.report")
    with pytest.raises(MissingExtraError, match=rf"the report needs {missing}: pip install .*\[report\]'"):
        module.render(module.Report("t"))
