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
from pydantic_core import PydanticSerializationError

from wm_plugin.trajectories.json_values import checked, finite

VERSION = 1  # of the files that `write` makes; a reader of another version refuses

Kind = Literal["tool", "user", "environment"]
Actor = Literal["agent", "user"]


def _checked_tools(tools: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """`checked` tool schemas. A file repeats them in every row, so schemas that equal the row's before are not checked again."""
    global _last_tools
    if tools == _last_tools:
        return tools
    result = tuple(checked(tool) for tool in tools)
    if all(after is before for after, before in zip(result, tools, strict=True)):
        _last_tools = tools
    return result


_last_tools: tuple[dict[str, Any], ...] = ()


Json = Annotated[Any, AfterValidator(checked)]
Object = Annotated[dict[str, Any], AfterValidator(checked)]
Tools = Annotated[tuple[dict[str, Any], ...], AfterValidator(_checked_tools)]


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
            values = finite(self.model_dump())
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
