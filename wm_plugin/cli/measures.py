"""How `wm eval` prints an evaluation for people, and how it keeps one in a folder."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from wm_plugin.cli.output import table, text

if TYPE_CHECKING:
    from wm_plugin.lab.evaluation.measures import Evaluation

ANSWERS = "answers.jsonl"  # in the folder of --out
Out = Annotated[
    str | None, Parameter(help="Folder that keeps answers, rows and measures; the same command continues from it.")
]
_MAX_GROUPS = 12  # rows of a table in the terminal; --json has all
_MAX_INTERVALS = 4  # columns up to which a table of groups shows intervals


def open_folder(out: str | None, name: str, subject: str, data: str) -> Path | None:
    """The folder of `--out`, if it is given."""
    from wm_plugin.lab.evaluation import measures  # imports torch

    return measures.open_folder(out, name, subject, data) if out else None


def kept(
    result: "Evaluation", rows: Iterable[Mapping[str, Any]], folder: Path | None, *, ok: bool = True, **more: Any
) -> dict[str, Any]:
    """Write an evaluation and its rows into the folder, if there is one; return what the verb prints."""
    from wm_plugin.lab.evaluation.measures import write_result, write_rows

    if folder:
        write_rows(rows, folder)
        write_result(result, folder)
    return {**result.as_dict(), **more, "ok": ok}


def show(result: Mapping[str, Any]) -> None:
    """Print the measures: those of all rows as a table, those of groups as a table for each kind of group."""
    before = f", before: {result['settings']['before']}" if result["settings"].get("before") else ""
    on = f" on {result['data']}" if result["data"] not in ("", result["subject"]) else ""
    print(f"{result['subject']}{on}{before}")
    measures = result["measures"]
    if not any(one["count"] + one["failed"] for one in measures):
        print("nothing was measured")
    if whole := [_row(one) for one in measures if not one["by"]]:
        table(whole)
    for by in dict.fromkeys(one["by"] for one in measures if one["by"]):
        _show_groups(by, [one for one in measures if one["by"] == by])
    said = {(one["name"], one["note"]) for one in measures if not one["by"]}  # in the table of all rows
    noted: dict[tuple[str, str], list[str]] = {}
    for one in measures:
        if one["note"] and one["by"] and (one["name"], one["note"]) not in said:
            noted.setdefault((one["by"], one["note"]), []).append(f"{one['group']} {one['name']}")
    for (by, note), those in noted.items():
        print(_one_line(f"{by}: {note}: {', '.join(those)}"))
    for reason, count in result["failures"].items():
        print(f"failed or left out: {count:,} ({_one_line(reason)})")
    for note in result["notes"]:
        print(_one_line(note))


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "measure": one["name"],
        "value": _value(one),
        "95%": _interval(one),
        "of": f"{one['count']:,}",
        "no answer": f"{one['failed']:,}" if one["failed"] else "",
        "counted as 0": _value(one, "with_failed") if one["failed"] else "",
        "note": _one_line(one["note"]),
    }


def _show_groups(by: str, measures: list[Mapping[str, Any]]) -> None:
    groups: dict[str, dict[str, Any]] = {}
    wide = len({one["name"] for one in measures}) > _MAX_INTERVALS
    for one in measures:
        cells = groups.setdefault(one["group"], {by: _one_line(one["group"])})
        cells[one["name"]] = _value(one) if wide else f"{_value(one)} {_interval(one)}".strip()
        cells["of"] = max(cells.pop("of", 0), one["count"] + one["failed"])
    print()
    table(list(groups.values())[:_MAX_GROUPS])
    if len(groups) > _MAX_GROUPS:
        print(f"and {len(groups) - _MAX_GROUPS} more; --json has all")


def _value(one: Mapping[str, Any], key: str = "value") -> str:
    if one[key] is None:
        return "-"
    return f"{100 * one[key]:.3g}%" if one["unit"] == "share" else text(float(one[key]))


def _interval(one: Mapping[str, Any]) -> str:
    if one["low"] is None:
        return ""
    return f"({_value(one, 'low')} to {_value(one, 'high')})"


def _one_line(value: str) -> str:
    """A text of others, which could else write a line of its own."""
    return " ".join(value.split())
