"""Hidden contexts that a person writes for a world model, by task: a file of YAML or JSON.

    task-17:
      summary: |
        Order 5 is of the customer Ana and was paid on Monday.
      permissions: {refund: managers only, cancel: everybody}    # or a text, or a list of texts
      availability: [the search answers nothing, the shop is open]
      final_state: Order 5 is cancelled.
    "*":                          # every other task
      availability: All services run.

A key is a task's id, a trajectory's `identity`, or `*`. A field of the file replaces the context's, also if it is empty; the
others stay. `simulation_instruction` may be given, too. What the agent sees, such as the initial state, is the world's to say.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from wm_plugin.data.hidden import PARTS
from wm_plugin.data.schema import Context, Trajectory, Transition
from wm_plugin.data.transitions import identity
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.runtime.texts import UniqueKeys, read_text
from wm_plugin.untrusted import loads

OTHERS = "*"
# A field of the file -> the context's.
FIELDS = {
    **{name.replace("-", "_"): field for name, field in PARTS.items() if field != "initial_state"},
    "simulation_instruction": "simulation_instruction",
}
_SUFFIXES = (".yaml", ".yml", ".json")
_BASE: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # every scalar is a text: `no` is "no" and `1.0` is "1.0"

Item = TypeVar("Item", bound=Trajectory | Transition)


class _Loader(UniqueKeys, _BASE):  # type: ignore[misc]
    """Reads nulls as None."""

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        return None if not node.style and value in ("", "~", "null") else value


class Contexts:
    """Fields of contexts by key; see the module's docstring for the keys. `source` names the file in errors."""

    def __init__(self, fields: Mapping[str, Mapping[str, str]], source: str = "") -> None:
        self.fields, self.source = fields, source
        self._met: set[str] = set()

    def fill(self, context: Context, *keys: str) -> Context:
        """Fill a context with the fields of the first of these keys that is there, or of `*`."""
        for key in (*keys, OTHERS):
            if key in self.fields:
                self._met.add(key)
                return context.model_copy(update=dict(self.fields[key]))
        return context

    def filled(self, item: Item) -> Item:
        """Fill the context of a trajectory or transition: by its identity, or else by its task."""
        name = item.trajectory if isinstance(item, Transition) else identity(item)
        return cast(Item, item.model_copy(update={"context": self.fill(item.context, name, item.task_id)}))

    def fill_all(self, items: Iterable[Item]) -> Iterator[Item]:
        """Fill each item, and raise a UserError at the end if none had one of the keys."""
        for item in items:
            yield self.filled(item)
        self.check_used()

    @property
    def digest(self) -> str:
        """Of all keys and fields, for the settings of a run that goes on later."""
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()[:16]

    def check_used(self) -> None:
        """Raise a UserError if no item had one of the keys: the file is then for other tasks."""
        if self.fields and not self._met:
            raise UserError(
                f"{self.source}: no task has one of its {len(self.fields)} keys (the first is {shown(next(iter(self.fields)))}); "
                "write the tasks' ids, or * for all of them"
            )


def load_contexts(path: str | Path) -> Contexts:
    """Read the contexts of a file; the module's docstring has its form."""
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise UserError(f"{path}: write a name that ends in {', '.join(_SUFFIXES)}")
    text = read_text(path)
    try:
        value = loads(text, strict=True) if path.suffix == ".json" else yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not {path.suffix[1:].upper()} ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(value, dict):
        raise UserError(
            f"{path}: holds {shown(value)}; write a mapping from tasks to fields, such as {', '.join(FIELDS)}"
        )
    return Contexts({key: _fields(f"{path}, {shown(key)}", fields) for key, fields in value.items()}, str(path))


def _fields(where: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: is {shown(value)}; write a mapping with some of {', '.join(FIELDS)}")
    fields: dict[str, str] = {}
    for name, given in value.items():
        known = name.replace("-", "_")
        if known not in FIELDS:
            raise UserError(f"{where}: there is no field {shown(name)}{nearest(known, FIELDS)}")
        if FIELDS[known] in fields:
            raise UserError(f"{where}: the field {known} appears twice")
        fields[FIELDS[known]] = _text(given)
    return fields


def _text(value: Any) -> str:
    """Write what a file says in a field as text for a prompt: lists and mappings become lines, what is deeper JSON in a line."""
    if isinstance(value, list):
        return "\n".join(f"- {_line(item)}" for item in value)
    if isinstance(value, dict):
        return "\n".join(f"- {name}: {_line(item)}" for name, item in value.items())
    return "" if value is None else _line(value).strip()


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
