"""Summaries of datasets as one self-contained HTML page: figures, tools, categories and sample transitions.

Nothing is loaded from anywhere, and all text is escaped: it comes from environments and models. Needs the extra `report`.
"""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError
from wm_plugin.tokens.view import visible
from wm_plugin.trajectories.outputs import check_out, write_text
from wm_plugin.trajectories.summary import Summary

LONGEST = 4000  # characters of a text on the page


def rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures of `Summary.as_dict` as lines of a table."""
    observed = ", ".join(f"{count:,} {kind}" for kind, count in figures["observations"].items() if count)
    lines = [
        ("trajectories", number(figures["trajectories"])),
        ("tasks", number(figures["tasks"])),
        ("transitions", f"{figures['transitions']:,}" + (f" ({observed})" if observed else "")),
        ("success", share(figures["success_share"])),
        ("mean reward", number(figures["mean_reward"])),
        ("turns a trajectory", lengths(figures["turns"])),
        (f"action, {figures['unit']}", lengths(figures["action_length"])),
        (f"observation, {figures['unit']}", lengths(figures["observation_length"])),
        ("errors (flagged by the source)", share(figures["error_share"])),
        ("empty observations", share(figures["empty_share"])),
        ("kept by turn information", share(figures["kept_by_information"])),
    ]
    if "easy_share" in figures:
        lines.append(("easy", share(figures["easy_share"])))
    return lines


def number(value: float | None) -> str:
    """A number for people; "-" for None."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def share(value: float | None) -> str:
    """A share in percent; "-" for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def lengths(spread: Mapping[str, float] | None) -> str:
    """A `spread` as text: the median, and in brackets the smallest and largest value."""
    if spread is None:
        return "-"
    return f"{spread['median']:,.0f} ({spread['min']:,.0f} to {spread['max']:,.0f}, 95 % up to {spread['p95']:,.0f})"


def write_page(summaries: Mapping[str, tuple[Summary, Mapping[str, Any]]], path: str | Path) -> Path:
    """Write a page that compares datasets: by name, their summary and its figures.

    Raises:
        MissingExtraError: jinja2 is not installed.
        UserError: the file cannot be written.
    """
    try:
        import jinja2
    except ModuleNotFoundError:
        raise MissingExtraError("the page", "jinja2", "report") from None
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        resources.files("wm_plugin.trajectories").joinpath("summary_page.html").read_text(encoding="utf-8")
    )
    tables = {name: dict(rows(figures)) for name, (_, figures) in summaries.items()}
    text = template.render(
        names=list(summaries),
        labels=list(dict.fromkeys(label for table in tables.values() for label in table)),
        tables=tables,
        datasets={name: figures for name, (_, figures) in summaries.items()},
        samples={name: summary.samples for name, (summary, _) in summaries.items()},
        visible=lambda text: visible(
            text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text):,} characters)"
        ),
        share=share,
        lengths=lengths,
    )
    path = Path(path)
    check_out(path)
    write_text(path, text)
    return path
