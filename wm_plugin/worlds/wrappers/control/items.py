"""The items of a result that is a list, and the result with other items: for perturbations that take some of them away.

A list is a JSON list, a JSON object with one list among its values, lines that begin with a bullet or a number, or, where that is
asked for, the lines of any text.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wm_plugin.untrusted import encodable, loads

LARGEST = 1 << 20  # characters of JSON that are parsed; a larger text has lines alone
_ITEM = re.compile(r"\s{0,8}(?:[-*•]|\[?\d{1,4}[.):\]])\s")


@dataclass(frozen=True)
class Items:
    """A text as a list.

    Attributes:
        items: of any type in JSON; else lines.
        write: the text with these items instead. JSON may have further fields: they stand beside the list.
        is_json: whether items are JSON values.
    """

    items: list[Any]
    write: Callable[[list[Any], dict[str, Any]], str]
    is_json: bool


def read_items(text: str, *, lines: bool = False) -> Items | None:
    """Return the items of a text; None if it is no list.

    Args:
        lines: take the lines of any text that has several.
    """
    value = read_json(text)
    if isinstance(value, list):
        return Items(value, lambda items, fields: dumps({"items": items, **fields} if fields else items), True)
    if isinstance(value, dict):
        return _of_object(value)
    rows = text.split("\n")
    chosen = [n for n, row in enumerate(rows) if row.strip() and (lines or _ITEM.match(row))]
    if len(chosen) < 2:
        return None
    first, last = chosen[0], chosen[-1]
    if not lines and len(chosen) * 2 < last - first + 1:  # a number at the beginning of a line here and there
        return None
    before, after = rows[:first], rows[last + 1 :]

    def write(items: list[Any], fields: dict[str, Any]) -> str:
        return "\n".join([*before, *map(str, items), *after, *(f"{name}: {value}" for name, value in fields.items())])

    return Items(_grouped(rows[first : last + 1], [n - first for n in chosen]), write, False)


def read_json(text: str) -> Any:
    """Return the JSON object or list that a text is; None if it is none, or too large."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "[") or stripped[-1:] not in ("}", "]") or len(stripped) > LARGEST:
        return None
    try:
        return loads(stripped, levels=100)
    except ValueError:
        return None


def map_texts(text: str, change: Callable[[str], str]) -> str:
    """Return the text with each of its texts changed: those in JSON, numbers and names of fields included, or its lines.

    JSON whose texts do not change stays as it is written.
    """
    value = read_json(text)
    if value is None:
        return "\n".join(map(change, text.split("\n")))
    changed = _mapped(value, change)
    return text if changed == value else dumps(changed)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _mapped(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        written = json.dumps(value)
        changed = change(written)
        return value if changed == written else changed
    return value


def _of_object(value: dict[str, Any]) -> Items | None:
    names = [name for name, item in value.items() if isinstance(item, list)]
    if len(names) != 1:
        return None
    (name,) = names
    return Items(value[name], lambda items, fields: dumps({**value, name: items, **fields}), True)


def _grouped(rows: list[str], starts: list[int]) -> list[str]:
    """Add the lines that follow an item's first one to it."""
    ends = [*starts[1:], len(rows)]
    return ["\n".join(rows[start:end]) for start, end in zip(starts, ends, strict=True)]


def dumps(value: Any) -> str:
    """Write JSON as results are written. Half a surrogate, which JSON may escape, is replaced: no tokenizer takes it."""
    written: str = encodable(json.dumps(value, ensure_ascii=False))
    return written
