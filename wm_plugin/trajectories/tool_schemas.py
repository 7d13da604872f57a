"""The tool schemas of a host's rollouts, whose dumps carry none: in a file beside the dump, which our trainers write.

Without them a prompt that is made of such a rollout is not the prompt of its training. The file is a JSON object:

    {"*": [schemas]}                          every row's
    {"maze": [schemas], "taxi": [schemas]}    those of the rows whose column `wm_tools` says so
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from wm_plugin.errors import UserError
from wm_plugin.trajectories.fields import Fields
from wm_plugin.trajectories.files import open_file
from wm_plugin.trajectories.outputs import write_text
from wm_plugin.trajectories.schema import Action, Context, Trajectory, Transition
from wm_plugin.untrusted import loads

FILE = "wm_tools.json"
EVERY = "*"
COLUMN = "wm_tools"  # of a dump: the name of a row's schemas
PROMPT = "prompt"  # of verl's dumps by our trainer: the messages of a row's prompt
FORMATS = ("trl", "verl")  # of hosts' dumps
LARGEST = 1 << 24  # bytes of the file
WARNING = (
    "call tools and carry no tool schemas, so that their prompts are not those of training; add the schemas with wm data "
    "convert --tools package.module:function or --environment NAME"
)

Schemas = Mapping[str, Sequence[Mapping[str, Any]]]
Row = TypeVar("Row", bound=Trajectory | Fields)
Item = TypeVar("Item", bound=Trajectory | Transition)


def save(folder: str | Path, schemas: Schemas) -> None:
    """Write the file into a host's folder of dumps, which is made if it is missing."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_text(Path(folder) / FILE, json.dumps(schemas, ensure_ascii=False, indent=1) + "\n")


def beside(path: Path) -> Schemas:
    """The schemas in the folder of a dump; empty if there is no file of them.

    Raises:
        UserError: the file holds something else.
    """
    file = path.parent / FILE
    if not file.is_file():
        return {}
    with open_file(file) as opened:
        data = opened.read(LARGEST + 1)
    mend = "; remove it, or write an object of lists of tool schemas"
    try:
        value = loads(data, strict=True, largest=LARGEST)
        return {name: Context(action_space=tools).action_space for name, tools in value.items()}
    except (ValidationError, AttributeError):
        raise UserError(f"{file}: holds something else than tool schemas{mend}") from None
    except ValueError as error:
        raise UserError(f"{file}: {' '.join(str(error).split())}{mend}") from None


def of_row(schemas: Schemas, row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The schemas of a row with these columns."""
    name = row.get(COLUMN)
    return schemas.get(name if isinstance(name, str) else EVERY) or schemas.get(EVERY, ())


def with_tools(row: Row, tools: Sequence[Mapping[str, Any]]) -> Row:
    """A trajectory, or its validated fields, with these schemas if it has none."""
    if isinstance(row, Trajectory):
        if row.context.action_space or not tools:
            return row
        context = row.context.model_copy(update={"action_space": tuple(tools)})
        return cast(Row, row.model_copy(update={"context": context}))
    if not row["context"]["action_space"] and tools:
        row["context"] = {**row["context"], "action_space": tuple(tools)}
    return row


def name_of(schema: Mapping[str, Any]) -> str:
    """The name of a tool, in OpenAI's form or without its envelope."""
    function = schema.get("function")
    return str((function if isinstance(function, Mapping) else schema).get("name"))


class Lacking:
    """Passes trajectories or transitions through, and counts those whose agent calls tools of which there is no schema."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if not item.context.action_space:
                self.count += any(action.calls for action in _actions(item))
            yield item

    @property
    def notes(self) -> list[str]:
        """The warning, if there is something to warn of."""
        return warnings(self.count)


def warnings(count: int) -> list[str]:
    """What to say of so many rollouts without schemas: one sentence, or none."""
    return [f"{count:,} of these rollouts {WARNING}"] if count else []


def _actions(item: Trajectory | Transition) -> Iterator[Action]:
    if isinstance(item, Transition):
        return iter([item.action])
    return (turn.action for turn in item.turns if turn.actor == "agent")
