"""How an answer, which is a table, is read and compared with the right one.

The figures are WideSearch's (Wong et al. 2025), which Qwen-AgentWorld reports; key and normalisation are fixed here.

* The *key* of a row is its first column, the entity's name. No two right rows have the same key.
* An *item* is (key, column, cell) of any column, the key's own included; an empty cell is no item. With h right items in the
  answer, p items in the answer and t in the right table: item F1 = 2h / (p + t).
* A row is right if its key and all of its cells are: row F1 = 2r / (rows of the answer + right rows).
* Of several rows with one key the first counts; the others are wrong, and so are their cells.
* Cells are compared in lower case with single spaces, without quotes, backticks, asterisks and dots at their ends; numbers
  without their unit, commas between digits and zeros behind a point, so `1,250.0 m` is `1250`. Columns that the question does
  not name are ignored, and a missing column has empty cells.

The reward is the mean of the two, and an episode succeeds where both are 1. That mean is ours: the paper reports both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_TABLE = 20_000  # characters of an answer
MAX_ROWS, MAX_COLUMNS = 200, 30
_ENDS = "`*'\" ."


@dataclass(frozen=True)
class Column:
    """A column of the right table: its title, and the unit of its numbers."""

    title: str
    unit: str = ""
    is_number: bool = False


@dataclass(frozen=True)
class Table:
    """The right table. The first column is the key."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Score:
    """F1 of items and of rows."""

    item_f1: float
    row_f1: float

    @property
    def reward(self) -> float:
        return (self.item_f1 + self.row_f1) / 2

    @property
    def success(self) -> bool:
        return self.item_f1 == 1.0 == self.row_f1


class NoTableError(ValueError):
    """An answer that is no table. The message says what is missing."""


def read(text: str, columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Read the rows of a Markdown table, normalised, with the cells of `columns` in their order.

    Lines without `|` are ignored, the first line with one is the header, and lines of dashes separate. Any text is accepted, in
    time linear in its length.

    Raises:
        NoTableError: it is too long, has no header with the key's title, or too many rows or columns.
    """
    if len(text) > MAX_TABLE:
        raise NoTableError(f"the table has {len(text)} characters; {MAX_TABLE} are the most")
    lines = [line.strip().removeprefix("|").removesuffix("|") for line in text.splitlines() if "|" in line]
    lines = [line for line in lines if line.strip("|-: \t")]
    if not lines:
        raise NoTableError("write a table: lines of cells between | with a header first")
    if len(lines) > MAX_ROWS + 1 or lines[0].count("|") >= MAX_COLUMNS:
        raise NoTableError(f"the table has too many rows or columns; {MAX_ROWS} and {MAX_COLUMNS} are the most")
    header = [normalised(cell) for cell in lines[0].split("|")]
    places = [_place(header, column) for column in columns]
    if places[0] is None:
        raise NoTableError(f"the header has no column {columns[0].title!r}")
    rows = []
    for line in lines[1:]:
        cells = line.split("|", MAX_COLUMNS)
        rows.append(
            tuple(
                normalised(cells[place], column) if place is not None and place < len(cells) else ""
                for place, column in zip(places, columns, strict=True)
            )
        )
    return rows


def _place(header: Sequence[str], column: Column) -> int | None:
    """Find the place of a column by its title, with the unit in brackets or without."""
    title = normalised(column.title)
    for name in (title, f"{title} ({normalised(column.unit)})"):
        if name in header:
            return header.index(name)
    return None


def normalised(cell: str, column: Column | None = None) -> str:
    """Return a cell as it is compared."""
    text = " ".join(cell.split()).strip(_ENDS).casefold()
    if column is None or not column.is_number:
        return text
    digits = text.removesuffix(column.unit.casefold()).strip().replace(",", "")
    whole, _, rest = digits.partition(".")
    if whole.isascii() and whole.removeprefix("-").isdigit() and not rest.strip("0"):
        sign = "-" if whole.startswith("-") else ""
        return sign + (whole.removeprefix("-").lstrip("0") or "0")
    return text


def score(answer: Sequence[tuple[str, ...]], table: Table) -> Score:
    """Compare the rows that `read` gives with the right table."""
    rows = [
        tuple(normalised(cell, column) for cell, column in zip(row, table.columns, strict=True)) for row in table.rows
    ]
    right = {row[0]: row for row in rows}
    total = sum(1 for cells in right.values() for cell in cells if cell)
    items = hits = good = 0
    seen: set[str] = set()
    for row in answer:
        items += sum(1 for cell in row if cell)
        expected = right.get(row[0])
        if row[0] in seen or expected is None:
            continue
        seen.add(row[0])
        same = sum(1 for cell, wanted in zip(row, expected, strict=True) if cell and cell == wanted)
        hits += same
        good += same == len(expected)
    item_f1 = 2 * hits / (items + total) if items + total else 0.0
    return Score(item_f1, 2 * good / (len(answer) + len(right)) if answer or right else 0.0)


def written(table: Table) -> str:
    """Write the right table as an answer."""
    lines = [" | ".join(column.title for column in table.columns), " | ".join("---" for _ in table.columns)]
    lines += [" | ".join(row) for row in table.rows]
    return "\n".join(f"| {line} |" for line in lines)
