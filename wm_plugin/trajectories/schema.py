"""What a rollout is, whoever recorded it: a context, and turns of an action and what was observed next.

Every observation belongs to the turn whose action brought it about. A turn without observations ends a trajectory, or was never
answered. Transitions are made from these by `expand`.
"""

import json
import math
from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticSerializationError, from_json

VERSION = 1  # of the files that `write` makes; a reader of another version refuses

Kind = Literal["tool", "user", "environment"]
Actor = Literal["agent", "user"]


# digits are 0, what stands before a number outside of strings is a space, and everything else is none of the two
_NUMBERS = bytes(
    ord("0") if byte in b"0123456789" else ord(" ") if byte in b" \t\n\r:,[-" else 1 for byte in range(256)
)
_SIMPLE = frozenset({str, int, bool, type(None)})
DEEPEST = 200  # levels of a JSON value: pydantic writes no more than 255, and our own come on top


def loads(text: str | bytes) -> Any:
    """As `json.loads`, in half its time. On what the fast parser refuses, half surrogate pairs say, Python's decides."""
    try:
        return from_json(text) if has_long_number(text) else orjson.loads(text)
    except (ValueError, TypeError):
        return json.loads(text)


def has_long_number(text: str | bytes) -> bool:
    """Whether there may be an integer of over 64 bits, of which orjson makes a float: 19 digits in a row."""
    if isinstance(text, str):
        text = text.encode(errors="replace")
    # six neighbours of every third byte lie in such a row, and hardly ever in anything else
    return b"000000" in text[::3].translate(_NUMBERS) and b" " + b"0" * 19 in b" " + text.translate(_NUMBERS)


def _plain(value: Any) -> Any:
    """A JSON value that comes back from a file as it is: not too deep, and with infinities as the strings that they become."""
    if not value or type(value) in _SIMPLE:
        return value
    if type(value) is dict and _SIMPLE.issuperset(map(type, value.values())):
        return value
    deep, finite = _walk(value)
    if deep:
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    return value if finite else _finite(value)


def _plain_tools(tools: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """`_plain` of tool schemas, which a file repeats in every row: what equals the row's before it is as plain."""
    global _last_tools
    if tools == _last_tools:
        return tools
    found = tuple(_plain(tool) for tool in tools)
    if all(now is before for now, before in zip(found, tools, strict=True)):
        _last_tools = tools
    return found


_last_tools: tuple[dict[str, Any], ...] = ()


def too_deep(value: Any) -> bool:
    return _walk(value)[0]


def _walk(value: Any) -> tuple[bool, bool]:
    """Whether a value is too deep, and whether all its numbers are finite. It is every row's: written to be quick."""
    level, depth, finite = [value], 0, True
    while level:
        depth += 1
        inner: list[Any] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else (item,)
            if _SIMPLE.issuperset(map(type, children)):
                continue
            for child in children:
                if isinstance(child, dict | list):
                    inner.append(child)
                elif isinstance(child, float):
                    finite = finite and math.isfinite(child)
        if depth == DEEPEST:
            return bool(inner), finite
        level = inner
    return False, finite


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


Json = Annotated[Any, AfterValidator(_plain)]
Object = Annotated[dict[str, Any], AfterValidator(_plain)]
Tools = Annotated[tuple[dict[str, Any], ...], AfterValidator(_plain_tools)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    # For orjson, which asks for it once a record: no step of it is Python's. Nothing but a record has this name.
    fields_to_write = property(attrgetter("__dict__"))

    def to_bytes(self) -> bytes:
        """As one line of JSON. Half surrogate pairs, which texts cut by characters of UTF-16 have, are written as escapes."""
        try:
            if math.isfinite(getattr(self, "reward", None) or 0.0):  # orjson writes an infinite number as null
                return orjson.dumps(self, default=_FIELDS)
        except TypeError:
            pass  # what it does not write: these pairs, integers of over 64 bits, infinities
        try:
            return self.model_dump_json().encode()
        except PydanticSerializationError:
            values = _finite(self.model_dump())
            return json.dumps(values, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace")


_FIELDS = attrgetter("fields_to_write")


class Call(_Record):
    """One tool call."""

    name: str
    arguments: Json = None  # a JSON value; text that is not JSON stays as it is
    id: str | None = None


class Action(_Record):
    """What the actor did: it said something, called tools, or both."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str | None = None  # reasoning that was recorded apart from the text

    @property
    def empty(self) -> bool:
        return not self.calls and not self.text.strip()


class Observation(_Record):
    """What came back. Empty text is a valid observation."""

    kind: Kind  # a tool's result, a user's reply, or a step of an environment
    text: str
    tool: str | None = None
    call: int | None = None  # the index of the call that it answers, in its turn's action
    error: bool = False  # only where the source says so
    data: Object = Field(default_factory=dict)  # score, simulated flag, ..., of the source


class Turn(_Record):
    """An action and what was observed next. In two-sided dialogues the user acts too, and observes its own tools' results."""

    action: Action
    observations: tuple[Observation, ...] = ()
    actor: Actor = "agent"


class Context(_Record):
    """What the actor knew before its first turn (Qwen-AgentWorld's five parts)."""

    task: str = ""  # task description, policy, system prompt
    action_space: Tools = ()  # tool schemas
    initial_state: str = ""  # the first observation, or what the user said first
    demonstrations: tuple[str, ...] = ()
    simulation_instruction: str = ""


class Source(_Record):
    """Where a trajectory comes from, to be found again."""

    format: str
    file: str
    row: int  # 0-based, in the file
    id: str | None = None  # the source's own


class Trajectory(_Record):
    """A rollout."""

    turns: tuple[Turn, ...]
    context: Context = Context()
    task_id: str = ""  # trajectories of one task never lie on both sides of a split
    success: bool | None = None
    reward: float | None = None
    source: Source | None = None
    metadata: Object = Field(default_factory=dict)
    version: Annotated[int, Field(ge=1)] = VERSION

    def observed(self) -> Iterator[tuple[int, int, Observation]]:
        """What the agent observed after an action of its own: (turn, index in the turn, observation)."""
        for number, turn in enumerate(self.turns):
            if turn.actor == "agent":
                for index, observation in enumerate(turn.observations):
                    yield number, index, observation


class Transition(_Record):
    """One training or evaluation sample: history, action, next observation."""

    trajectory: str  # task id and source of the trajectory
    turn: int
    history: tuple[Turn, ...]
    action: Action
    observation: Observation
    context: Context = Context()
    task_id: str = ""
    source: Source | None = None
