import html
import re

import pytest

from wm_plugin.tokens.view import Token, to_html, to_text, visible

TOKENS = [
    Token("ask", "prompt"),
    Token("U", "policy"),
    Token("<tool_response>", "scaffold", "move", 0.0),
    Token("A.\n", "content", "move", 1.0),
    Token("#", "content", "move", 0.0),
]


def spans(fragment: str) -> list[tuple[str, str, str]]:
    return re.findall(r'<span class="([^"]*)" title="([^"]*)">(.*?)</span>', fragment, flags=re.DOTALL)


def test_html_has_one_span_a_token_with_kind_tool_and_weight() -> None:
    found = spans(to_html(TOKENS))
    assert [style for style, _, _ in found] == [
        "wm-prompt",
        "wm-policy",
        "wm-scaffold wm-off",
        "wm-content wm-counts",
        "wm-content wm-off",
    ]
    assert found[3][1] == "#3 environment content · tool move · weight 1"
    assert "weight" not in found[1][1]
    assert html.unescape(found[2][2]) == "<tool_response>"
    assert found[3][2] == "A.↵\n"


def test_a_limit_keeps_both_ends_and_marks_the_cut() -> None:
    tokens = [Token(str(number), "policy") for number in range(100)]
    whole, part = to_html(tokens), to_html(tokens, style=False, limit=8)
    assert [text for _, _, text in spans(whole)] == [str(number) for number in range(100)]
    assert [text for _, _, text in spans(part)] == ["0", "1", "2", "3", "4", "5", "98", "99"]
    assert spans(part)[-1][1].startswith("#99 ")
    assert "92 of 100 tokens are not shown" in part
    assert ("<style>" in whole, "<style>" in part) == (True, False)
    assert "prefers-color-scheme:dark" in whole


def test_a_long_name_of_a_tool_is_cut_in_every_tooltip() -> None:
    fragment = to_html([Token("a", "content", "t" * 10_000)] * 50, style=False)
    assert len(fragment) < 50 * 300
    assert "…" in fragment


@pytest.mark.parametrize("field", ["text", "tool"])
def test_html_escapes_untrusted_text(field: str) -> None:
    attack = "\"><script>alert('x')</script>&"
    token = Token(attack, "content") if field == "text" else Token("ok", "content", attack)
    fragment = to_html([token])
    assert "<script" not in fragment
    ((_, title, text),) = spans(fragment)
    assert attack in html.unescape(title if field == "tool" else text)


def test_text_underlines_what_counts_and_keeps_the_order() -> None:
    text = to_text(TOKENS)
    assert text.plain == "askU<tool_response>A.↵\n#"
    styles = [str(span.style) for span in text.spans]
    assert ["underline" in style for style in styles] == [False, False, False, True, False]
    assert "dim" in styles[2]
    assert "dim" in styles[4]
    assert "dim" not in styles[3]
    assert len({style.replace(" underline", "").replace(" dim", "") for style in styles}) == 4


def test_rich_markup_in_a_token_is_text() -> None:
    assert to_text([Token("[red]x[/red]", "policy")]).plain == "[red]x[/red]"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\x9bb", "a\\x9bb"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
        ("é\n\t😀", "é\n\t😀"),
    ],
)
def test_control_characters_are_spelt_out(raw: str, shown: str) -> None:
    assert visible(raw) == shown
    assert to_text([Token(raw, "content")]).plain == shown.replace("\n", "↵\n")
    to_html([Token(raw, "content")]).encode()


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt, policy, content, scaffold"):
        Token("x", "reward")  # type: ignore[arg-type]


def test_unknown_weights_are_not_shown() -> None:
    token = Token("A", "content", "move", None)
    assert spans(to_html([token])) == [("wm-content", "#0 environment content · tool move", "A")]
    (span,) = to_text([token]).spans
    assert str(span.style) == "black on bright_cyan"
