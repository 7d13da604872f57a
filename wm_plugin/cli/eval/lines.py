"""What steps of `wm eval` print for people: measures as lines, where a step has no tables of its own, and the end of all."""

from typing import Any


def print_rest(result: dict[str, Any], indent: str = "") -> None:
    """Print what failed and the notes, with which every step ends."""
    for reason, count in result["failures"].items():
        print(f"{indent}failed or left out: {count:,} ({_one_line(reason)})")
    for note in result["notes"]:
        print(f"{indent}{_one_line(note)}")


def print_lines(result: dict[str, Any]) -> None:
    """Print a line for each measure of an evaluation's JSON, with its note, then what failed and the notes."""
    before = f", before: {result['settings']['before']}" if result["settings"].get("before") else ""
    on = f" on {result['data']}" if result["data"] not in ("", result["subject"]) else ""
    print(f"{result['subject']}{on}{before}")
    for one in result["measures"]:
        one = {name: _one_line(text) for name, text in one.items()}
        number = "{:.1%}".format if one["unit"] == "share" else "{:.4g}".format
        value, low, high, both = (
            "" if one[key] is None else number(one[key]) for key in ("value", "low", "high", "with_failed")
        )
        limits = f" ({low} to {high})" if low and high else ""
        failed = f"; {one['failed']:,} failed: {both} with them" if one["failed"] else ""
        note = f"; {one['note']}" if one["note"] else ""
        group = f" [{one['group']}]" if one["group"] else ""
        print(f"  {one['name']}{group}: {value or '–'}{limits} of {one['count']:,}{failed}{note}")
    print_rest(result, "  ")


def _one_line(value: Any) -> Any:
    """A name of others', which could else write a line of its own."""
    return " ".join(value.split()) if isinstance(value, str) else value
