"""How results are printed for people."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wm_plugin.tokens.view import visible

_PIPE_WIDTH = 300  # columns of a table in a pipe
Verb = TypeVar("Verb", bound=Callable[..., dict[str, Any] | Iterator[dict[str, Any]]])


def prints(show: Callable[[Any], None]) -> Callable[[Verb], Verb]:
    """Say how a verb's result is printed without `--json`."""

    def attach(verb: Verb) -> Verb:
        verb.show = show  # type: ignore[attr-defined]
        return verb

    return attach


def show(result: Mapping[str, Any], indent: str = "") -> None:
    """Print a result as lines of `name: value`, with mappings below their names and lists of mappings as tables."""
    for name, value in result.items():
        if name == "ok" or value in (None, {}, []):
            continue
        label = f"{indent}{name.replace('_', ' ')}"
        if name == "notes":
            for note in value:
                print(f"{indent}note: {note}")
            continue
        if isinstance(value, Mapping):
            print(f"{label}:")
            show(value, f"{indent}  ")
        elif isinstance(value, list) and all(isinstance(row, Mapping) for row in value):
            print(f"{label}:")
            table(value)
        else:
            print(f"{label}: {text(value)}")


def table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print rows as a table whose columns are the keys for which any of them has a value."""
    columns = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in columns if any(row.get(name) not in (None, "") for row in rows)]
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in names:
        numbers = all(isinstance(row.get(name), int | float | None) for row in rows)
        made.add_column(name, justify="right" if numbers else "left")
    for row in rows:
        made.add_row(*(Text(text(row.get(name))) for name in names))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(made)


def text(value: Any) -> str:
    """A value in a cell or after its name."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text(item)}" for name, item in value.items())
    return str(value)


def readable(value: Any) -> Any:
    """A result whose texts no terminal acts on: names in it come from models, files and servers."""
    if isinstance(value, str):
        return value if value.isprintable() else visible(value)
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    return [readable(item) for item in value] if isinstance(value, list) else value
