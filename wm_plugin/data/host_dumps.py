"""What hosts' dumps of rollouts lack: the tool schemas of their prompts, and which of a row's columns are its reward.

Without the schemas a prompt that is made of a rollout is not the prompt of its training. Our trainers write a file beside the
dump, a JSON object of `Shown` by name. A row's column `wm_tools` has the name; without the column it is `*`. A resumed run adds
names, and leaves those of earlier rows as they are:

    {"*": {"tools": [schemas], "rewards": {"column": weight}, "chat_template_kwargs": {}, "fingerprint": "0f3c…"}}

They lack, too, which results the host made up where a call failed: an unknown tool, arguments that do not fit, an exception. A
dump has their text alone: TRL writes an exception as `{'error': text}`, which a tool's own dict of that form looks like, too.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from wm_plugin.data.files import open_file
from wm_plugin.data.outputs import write_text
from wm_plugin.data.schema import Action, Fields, Tools, Trajectory, Transition
from wm_plugin.errors import UserError, shown
from wm_plugin.untrusted import loads, number

FILE = "wm_dump.json"
EVERY = "*"
COLUMN = "wm_tools"  # of a dump: the name of what a row's prompt showed
RENDERED = "wm_rendered"  # of a trajectory's metadata, and of a row: how its run wrote it, as `Shown.rendered`
# Of verl's dumps by our trainer: the messages of a row's prompt, and those after it.
PROMPT, COMPLETION = "prompt", "completion"
FORMATS = ("trl", "verl")  # of hosts' dumps
LARGEST = 1 << 24  # bytes of the file
MOST_NAMES = 3  # of tools in warnings
WARNING = (
    "call tools and carry no tool schemas, so that their prompts are not those of training; --tools package.module:function, or "
    "a world's name, adds the schemas (of wm data convert, wm masks, wm eval one-step --as policy)"
)

# the text of {"error": text}, as Python writes it
_ERROR = re.compile(r"""\{'error': (?:'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")\}""")
_VERL = (
    "Unknown function '{}'. Available tools: [",
    "Invalid JSON in arguments for '{}': ",
    "Error executing tool '{}': ",
)

Schemas = Sequence[Mapping[str, Any]]
Item = TypeVar("Item", bound=Trajectory | Transition)


class Shown(BaseModel):
    """What the prompts of some rows showed, and how they were written."""

    model_config = ConfigDict(extra="forbid")

    tools: Tools = ()
    rewards: dict[str, float] = {}  # TRL's columns of rewards, with their weights
    chat_template_kwargs: dict[str, Any] = {}
    fingerprint: str = ""  # of the tokenizer with its chat template and these (`tokens.chat.Chat.fingerprint`)

    @property
    def rendered(self) -> Fields:
        return self.model_dump(include={"chat_template_kwargs", "fingerprint"})


_FILE = TypeAdapter(dict[str, Shown])


class Declared(dict[str, Shown]):
    """The file's content."""

    def of(self, row: Mapping[str, Any]) -> Shown | None:
        """Return what the prompt of a row with these columns showed; None if that is not known."""
        name = row.get(COLUMN)
        return self.get(name if isinstance(name, str) else EVERY)

    def complete(self, trajectory: Trajectory) -> Trajectory:
        """Return a trajectory that was read from a dump with its tools and its reward."""
        if (known := self.of(trajectory.metadata)) is None:
            return trajectory
        if (reward := reward_of(trajectory.metadata, known.rewards)) is not None:
            trajectory = trajectory.model_copy(update={"reward": reward})
        metadata = {**trajectory.metadata, RENDERED: known.rendered}
        return with_tools(trajectory.model_copy(update={"metadata": metadata}), known.tools)


class Writer:
    """Writes the file of a folder of dumps, which is made if it is missing. What earlier runs declared there stays."""

    def __init__(self, folder: str | Path) -> None:
        self._file = Path(folder) / FILE
        self._known = beside(self._file)

    def declare(self, wanted: Iterable[tuple[str, Shown]]) -> list[str]:
        """Return for each the name that its rows get: the one that is wanted, or `name~2`, ... if that says something else."""
        before = len(self._known)
        names = [self._name(*one) for one in wanted]
        if len(self._known) > before:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            content = {name: shown.model_dump() for name, shown in self._known.items()}
            write_text(self._file, json.dumps(content, ensure_ascii=False, indent=1, default=str) + "\n")
        return names

    def _name(self, wanted: str, shown: Shown) -> str:
        numbered = (f"{wanted}~{number}" for number in count(2))
        return next(name for name in chain([wanted], numbered) if self._known.setdefault(name, shown) == shown)


def beside(path: Path) -> Declared:
    """Read the file in the folder of a dump, if there is one."""
    file = path.parent / FILE
    if not file.is_file():
        return Declared()
    with open_file(file) as opened:
        data = opened.read(LARGEST + 1)
    try:
        return Declared(_FILE.validate_python(loads(data, strict=True, largest=LARGEST)))
    except ValidationError:
        reason = "holds something else than what prompts showed"
    except ValueError as error:
        reason = " ".join(str(error).split())
    raise UserError(f"{file}: {reason}; our trainers write it beside their dumps: remove it, or mend it")


def reward_of(columns: Mapping[str, Any], weights: Mapping[str, float]) -> float | None:
    """Return the weighted sum of a row's rewards, without those that a reward function left out; None if all are."""
    values = [(weight, number(columns.get(name))) for name, weight in weights.items()]
    kept = [weight * value for weight, value in values if value is not None]
    return sum(kept) if kept else None


def with_tools(trajectory: Trajectory, tools: Schemas) -> Trajectory:
    """Return a trajectory with these schemas if it has none."""
    if trajectory.context.action_space or not tools:
        return trajectory
    context = trajectory.context.model_copy(update={"action_space": tuple(tools)})
    return trajectory.model_copy(update={"context": context})


def name_of(schema: Mapping[str, Any]) -> str:
    """Return the name of a tool, in OpenAI's form or without its envelope."""
    function = schema.get("function")
    return str((function if isinstance(function, Mapping) else schema).get("name"))


def lacks_tools(item: Trajectory | Transition) -> bool:
    """Tell whether the agent calls tools and their schemas are not known. Some prompts show none, and their run says so."""
    known = item.context.action_space or (isinstance(item, Trajectory) and item.metadata.get(RENDERED))
    return not known and any(action.calls for action in _actions(item))


def strange_tools(item: Trajectory | Transition) -> set[str]:
    """Return the tools that the agent calls and that are not among the schemas; none where no schema is known."""
    known = {name_of(schema) for schema in item.context.action_space}
    return {call.name for action in _actions(item) for call in action.calls} - known if known else set()


class Lacking:
    """Passes trajectories or transitions through, and counts those whose agent calls tools that have no schema."""

    def __init__(self) -> None:
        self.count, self.strange = 0, Counter[str]()

    def __call__(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            self.count += lacks_tools(item)
            self.strange.update(strange_tools(item))
            yield item

    @property
    def notes(self) -> list[str]:
        """The warnings, if something is lacking."""
        return warnings(self.count, self.strange)


def warnings(count: int, strange: Mapping[str, int]) -> list[str]:
    """Write warnings about so many rollouts without schemas, and about tools that are not among them, or nothing for none."""
    found = [f"{count:,} of these rollouts {WARNING}"] if count else []
    for name, times in sorted(strange.items(), key=lambda one: -one[1])[:MOST_NAMES]:
        found.append(f"{times:,} of these rollouts call {shown(name)}, which is not among their tool schemas")
    return found


def _actions(item: Trajectory | Transition) -> Iterator[Action]:
    if isinstance(item, Transition):
        return iter([item.action])
    return (turn.action for turn in item.turns if turn.actor == "agent")


def is_trls(text: str) -> bool:
    """Tell whether a result has the form of a failed call under TRL."""
    return bool(_ERROR.fullmatch(text))


def is_verls(text: str, tool: str) -> bool:
    """Tell whether a result of a call of `tool` is verl's text of a failed call."""
    return any(text.startswith(beginning.format(tool)) for beginning in _VERL)


def marked(turns: list[Fields], host: str) -> list[Fields]:
    """Mark the results in a host's dump that the host made up, as `wm env rollout` does."""
    for turn in turns:
        calls: list[Any] = turn["action"].get("calls", [])
        for observation in turn["observations"]:
            place, text = observation.get("call"), observation["text"]
            if place is None:
                continue
            if is_trls(text) if host == "trl" else is_verls(text, calls[place]["name"]):
                observation["error"] = True
                observation["data"] = {**observation.get("data", {}), "actions": 1, "invalid": 1}
    return turns
