"""Summaries of datasets as one self-contained HTML page: figures, tools, categories and sample transitions.

Every share is shown with what it is a share of. Needs the extra `report`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import check_out, write_text
from wm_plugin.data.summary import Summary
from wm_plugin.objectives.information import KEEP, MEANING
from wm_plugin.runtime import page

_MOST_TOOLS = 50  # of one dataset


def rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of `Summary.as_dict` as lines of a table."""
    observed = ", ".join(f"{count:,} {kind}" for kind, count in figures["observations"].items() if count)
    transitions = figures["transitions"]
    lines = [
        ("trajectories", number(figures["trajectories"])),
        ("tasks", number(figures["tasks"])),
        ("transitions", f"{transitions:,}" + (f" ({observed})" if observed else "")),
        ("success, where it is known", share(figures["success_share"], figures["judged"])),
        (
            "mean reward",
            number(figures["mean_reward"]) + (f" (of {figures['rewarded']:,})" if figures["rewarded"] else ""),
        ),
        ("turns a trajectory", lengths(figures["turns"])),
        (f"action, {figures['unit']}", lengths(figures["action_length"])),
        (f"observation, {figures['unit']}", lengths(figures["observation_length"])),
        ("errors (flagged by the source)", share(figures["error_share"], transitions)),
        ("empty observations", share(figures["empty_share"], transitions)),
        ("kept by turn information", share(figures["kept_by_information"])),
    ]
    if "easy_share" in figures:
        lines.append(("easy", share(figures["easy_share"], figures["easy_of"])))
    return lines


def number(value: float | None) -> str:
    """Write a number for people; "-" for None."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def share(value: float | None, whole: int | None = None) -> str:
    """Write a share in percent, and in brackets the counts if it is a share of `whole` things; "-" for None."""
    if value is None:
        return "-"
    return f"{value:.1%}" + ("" if whole is None else f" ({round(value * whole):,} of {whole:,})")


def lengths(spread: Mapping[str, float] | None) -> str:
    """Write a `spread` as text: the median, and in brackets the smallest and largest value."""
    if spread is None:
        return "-"
    return f"{spread['median']:,.0f} ({spread['min']:,.0f} to {spread['max']:,.0f}, 95% up to {spread['p95']:,.0f})"


def write_page(summaries: Mapping[str, tuple[Summary, Mapping[str, Any]]], path: str | Path) -> Path:
    """Write a page that compares datasets: by name, their summary and its figures."""
    tables = {name: dict(rows(figures)) for name, (_, figures) in summaries.items()}
    labels = dict.fromkeys(label for table in tables.values() for label in table)
    names = list(summaries)
    text = page.render(
        "wm_plugin.data",
        "summary_page.html",
        title=f"What {' and '.join(map(page.short, names))} {'holds' if len(names) == 1 else 'hold'}",
        leads=[_lead(name if len(names) > 1 else "", figures) for name, (_, figures) in summaries.items()],
        columns=("", *(names if len(names) > 1 else [""])),
        rows=[(label, *(tables[name].get(label, "-") for name in names)) for label in labels],
        datasets={
            name: _dataset(figures) | {"samples": summary.samples} for name, (summary, figures) in summaries.items()
        },
    )
    path = Path(path)
    check_out(path)
    write_text(path, text)
    return path


def _lead(name: str, figures: Mapping[str, Any]) -> str:
    """Write one sentence about a dataset."""
    trajectories, transitions = figures["trajectories"], figures["transitions"]
    subject = f"{trajectories:,} trajector{'y' if trajectories == 1 else 'ies'} with " if trajectories else ""
    sentence = f"{subject}{transitions:,} transition{'' if transitions == 1 else 's'}"
    if transitions:
        sentence += f"; {share(figures['error_share'], transitions)} are errors"
        sentence += f", {share(figures['empty_share'], transitions)} are empty"
    if figures["judged"]:
        sentence += f". Success, where it is known: {share(figures['success_share'], figures['judged'])}"
    return f"{page.short(name)}: {sentence}." if name else f"{sentence}."


def _dataset(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of one dataset."""
    transitions = figures["transitions"]
    tools = list(figures["tools"].items())
    return {
        "tool_columns": (
            "tool, or (kind)", "observations", "errors, flagged by the source", "empty", f"length, {figures['unit']}",
        ),
        "tools": [
            (
                page.short(tool),
                share(values["observations"] / transitions, transitions),
                share(values["error_share"], values["observations"]),
                share(values["empty_share"], values["observations"]),
                lengths(values["length"]),
            )
            for tool, values in tools[:_MOST_TOOLS]
        ],
        "more_tools": len(tools) - _MOST_TOOLS,
        "category_columns": ("category", "the observation is", "transitions", "how much it counts"),
        "categories": [
            (name, MEANING[name], share(value, transitions), f"{KEEP[name]:.0%}")
            for name, value in figures["categories"].items()
        ],
    }  # fmt: skip
