"""A rollout's tokens, coloured by author, as HTML for a report and as rich text for the terminal.

Texts come from environments and models and are not trusted: markup is escaped and control characters are written out, so that
neither a browser nor a terminal interprets them.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Literal, get_args

from rich.text import Text

Kind = Literal["prompt", "policy", "content", "scaffold"]

LEGEND: dict[Kind, str] = {
    "prompt": "prompt",
    "policy": "policy (sampled)",
    "content": "environment content",
    "scaffold": "environment scaffold (chat template)",
}
_TERMINAL: dict[Kind, str] = {
    "prompt": "dim",
    "policy": "bold black on bright_yellow",
    "content": "black on bright_cyan",
    "scaffold": "black on bright_magenta",
}
# For light and dark. Environment tokens that count are underlined too, so that the view does not depend on colour alone.
STYLE = """.wm-tokens{font:13px/1.65 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;
overflow-wrap:anywhere;--wm-ink:#1f2933;--wm-prompt:#616e7c;--wm-policy:#ffe08a;--wm-content:#b9e3f5;--wm-scaffold:#e3d5f5;--wm-count:#17709a;
color:var(--wm-ink)}
@media (prefers-color-scheme:dark){.wm-tokens{--wm-ink:#e4e7eb;--wm-prompt:#9aa5b1;--wm-policy:#6b5200;--wm-content:#124a66;
--wm-scaffold:#45316b;--wm-count:#6cc5f0}}
.wm-tokens span{border-radius:3px;padding:1px 0}
.wm-tokens .wm-key{padding:1px 6px}
.wm-prompt{color:var(--wm-prompt)}
.wm-policy{background:var(--wm-policy);font-weight:600}
.wm-content{background:var(--wm-content)}
.wm-scaffold{background:var(--wm-scaffold)}
.wm-counts{box-shadow:inset 0 -2px 0 var(--wm-count)}
.wm-off{opacity:.7}
"""
_MAX_NAME = 80  # characters of a tool's name in a tooltip


@dataclass(frozen=True)
class Token:
    """One token of a rollout.

    Attributes:
        text: the decoded token.
        kind: its author: "prompt", "policy" (sampled), "content" (the environment) or "scaffold" (the chat template around the
            content).
        tool: the tool that answered, if one did.
        weight: the factor of its negative log-likelihood in the world-model loss; 0 if it does not count, None if unknown.

    Raises:
        ValueError: the kind does not exist.
    """

    text: str
    kind: Kind
    tool: str | None = None
    weight: float | None = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {self.kind!r}; use one of {', '.join(get_args(Kind))}")


def to_html(tokens: Iterable[Token], *, style: bool = True, limit: int | None = None) -> str:
    """Render an HTML fragment: one span per token, with its kind, tool and weight as the tooltip; text is escaped.

    Args:
        style: whether the fragment carries `STYLE`; a page with several fragments needs it once.
        limit: show this many tokens, the first three quarters and the last quarter, and mark the cut; None shows all.
    """
    tokens = list(tokens)
    first, last = len(tokens), len(tokens)
    if limit is not None and len(tokens) > limit:
        first, last = limit - limit // 4, len(tokens) - limit // 4
    spans = [_span(position, token) for position, token in enumerate(tokens[:first])]
    if last > first:
        spans.append(f'<span class="wm-cut">… {last - first:,} of {len(tokens):,} tokens are not shown …</span>')
    spans += [_span(position, token) for position, token in enumerate(tokens[last:], last)]
    return f'<div class="wm-tokens">{f"<style>{STYLE}</style>" if style else ""}{"".join(spans)}</div>'


def to_text(tokens: Iterable[Token]) -> Text:
    """Render rich text for a terminal: environment tokens that count are underlined, those that do not are dim."""
    text = Text()
    for token in tokens:
        style = _TERMINAL[token.kind]
        if _is_environment(token) and token.weight is not None:
            style += " underline" if token.weight else " dim"
        text.append(_shown(token.text), style=style)
    return text


def visible(text: str) -> str:
    r"""Write out control, format and surrogate characters (`\x1b`, `\u202e`); line ends and tabs stay."""
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in {"Cc", "Cf", "Cs"} and character not in "\n\t\u200d"
        else character
        for character in text
    )


def _span(position: int, token: Token) -> str:
    label = [f"#{position} {LEGEND[token.kind]}"]
    if token.tool is not None:
        label.append(f"tool {visible(token.tool[:_MAX_NAME])}{'…' * (len(token.tool) > _MAX_NAME)}")
    style = f"wm-{token.kind}"
    if _is_environment(token) and token.weight is not None:
        label.append(f"weight {token.weight:g}")
        style += " wm-counts" if token.weight else " wm-off"
    return f'<span class="{style}" title="{escape(" · ".join(label))}">{escape(_shown(token.text))}</span>'


def _shown(text: str) -> str:
    return visible(text).replace("\n", "↵\n")


def _is_environment(token: Token) -> bool:
    return token.kind in ("content", "scaffold")
