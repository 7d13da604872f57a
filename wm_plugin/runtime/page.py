"""The frame and the style of our pages: the report, `wm data inspect --html` and `wm masks --html`.

A page loads nothing from anywhere. All its text is escaped and control characters are written out, because texts come from
environments and models; what is too long for a page is cut, and the cut is marked. Needs the extra `report`.
"""

from importlib import resources
from typing import Any

from wm_plugin.errors import MissingExtraError
from wm_plugin.tokens.view import STYLE, visible

try:
    import jinja2
    from markupsafe import Markup
except ModuleNotFoundError as _error:
    if _error.name not in ("jinja2", "markupsafe"):
        raise
    _MISSING: str | None = _error.name
else:
    _MISSING = None

LONGEST_NAME = 80  # characters of a name or a heading
_LONGEST, _LINES = 1200, 30  # of a passage: characters and lines


def check_extra(needs: str = "the page", extra: str = "report") -> None:
    """Raise MissingExtraError, naming `extra`, where jinja2 is not installed."""
    if _MISSING:
        raise MissingExtraError(needs, _MISSING, extra)


def render(package: str, template: str, needs: str = "the page", **values: Any) -> str:
    """Render the HTML document of `template`, a file of `package` that extends `page.html`.

    Templates have `short` (a name) and `cut` (a passage), and what they print needs no escaping by hand.

    Args:
        values: what the template shows; `title` is the heading.
    """
    check_extra(needs)

    def load(name: str) -> str:
        folder = resources.files(package if name == template else "wm_plugin.runtime")
        return folder.joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(load),
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"short": short, "cut": cut, "token_style": Markup(STYLE)}
    return environment.get_template(template).render(values)


def markup(html: str) -> Any:
    """Mark HTML of our own, which a template prints as it is."""
    return Markup(html)


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """Shorten a name of more than `longest` characters to its ends."""
    return name if len(name) <= longest else f"{name[: longest // 2]}…{name[len(name) - longest // 2 + 1 :]}"


def cut(text: str, longest: int = _LONGEST, lines: int = _LINES) -> tuple[str, str, str]:
    """Cut a text for a page: (beginning, what is left out, end).

    A text that fits is all beginning. Of another one the beginning is three times as long as the end, and the part between them
    says how much of the text it stands for.
    """
    if len(text) <= longest and text.count("\n") < lines:
        return text, "", ""
    most, least = lines * 3 // 4, lines // 4
    beginning = "\n".join(text[: longest * 3 // 4].split("\n", most)[:most])
    end = "\n".join(text[len(text) - longest // 4 :].rsplit("\n", least)[-least:])
    hidden = len(text) - len(beginning) - len(end)
    return beginning, f"{hidden:,} of {len(text):,} characters are not shown", end


def _shown(value: Any) -> Any:
    """Write control characters out in a text that a template prints."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
