"""The records of a rollout from any source: a context, and turns of an action and the observations that follow it.

An observation belongs to the turn whose action caused it. A turn without observations ends a trajectory, or was never answered.
`expand` makes transitions from these records, and `compact` lines of a file from transitions.
"""

import json
import math
from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from wm_plugin.data.errors import RowError
from wm_plugin.untrusted import checked, finite

VERSION = 1  # of our own files; a later version is refused

Fields = dict[str, Any]  # of a record, before they are validated; the records in it are dicts too
Kind = Literal["tool", "user", "environment"]
Actor = Literal["agent", "user"]


def _checked_tools(tools: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """Check tool schemas. A file repeats them in every row, so schemas that equal the row's before are not checked again."""
    global _last_tools
    if tools == _last_tools:
        return tools
    result = tuple(checked(tool) for tool in tools)
    if all(after is before for after, before in zip(result, tools, strict=True)):
        _last_tools = tools
    return result


_last_tools: tuple[dict[str, Any], ...] = ()


Count = Annotated[int, Field(ge=0)]
Json = Annotated[Any, AfterValidator(checked)]
Object = Annotated[dict[str, Any], AfterValidator(checked)]
Tools = Annotated[tuple[dict[str, Any], ...], AfterValidator(_checked_tools)]


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    # orjson calls it for every record, so that it must not run Python code. Only records have an attribute of this name.
    fields_to_write = property(attrgetter("__dict__"))

    def to_bytes(self) -> bytes:
        """Write the record as one line of JSON. Half surrogate pairs, from texts cut between UTF-16 units, become escapes."""
        try:
            if math.isfinite(getattr(self, "reward", None) or 0.0):  # orjson writes an infinite number as null
                return orjson.dumps(self, default=_FIELDS)
        except TypeError:
            pass  # half surrogate pairs, integers of over 64 bits, infinities: orjson does not write them
        try:
            return self.model_dump_json().encode()
        except PydanticSerializationError:
            values = finite(self.model_dump())
            return json.dumps(values, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace")


_FIELDS = attrgetter("fields_to_write")


class Call(Record):
    """One tool call."""

    name: str
    arguments: Json = None  # a JSON value; or the text, if it is not JSON
    id: str | None = None


class Action(Record):
    """What the actor did: a text, tool calls, or both."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str | None = None  # reasoning, if it was recorded separately

    @property
    def empty(self) -> bool:
        """No call, and no text but white space."""
        return not self.calls and not self.text.strip()


class Observation(Record):
    """A result, a reply or a state that followed an action. Empty text is valid."""

    kind: Kind  # a tool's result, a user's reply, or a step of an environment
    text: str
    tool: str | None = None
    call: int | None = None  # the index of the answered call in its turn's action
    error: bool = False  # only if the source flags it
    data: Object = Field(default_factory=dict)  # what else the source has: score, simulated flag, ...


class Turn(Record):
    """An action and the observations after it. In two-sided dialogues the user acts too, and observes its own tools' results."""

    action: Action
    observations: tuple[Observation, ...] = ()
    actor: Actor = "agent"
    train: bool = True  # False if the source says that the agent's words are not to be trained on


class Context(Record):
    """What the actor knew before its first turn (Qwen-AgentWorld's five parts), and what it did not."""

    task: str = ""  # task description, policy, system prompt
    action_space: Tools = ()  # tool schemas
    initial_state: str = ""  # the first observation, or the user's first message
    demonstrations: tuple[str, ...] = ()
    simulation_instruction: str = ""
    # For the world model alone: no agent and no judge sees these (`data.hidden`).
    world_context: str = ""  # the hidden state before the first turn: the data
    permissions: str = ""  # who may do what
    availability: str = ""  # which services, tools and goods are there, and which are not
    final_state: str = ""  # the state at the end that success requires


class Source(Record):
    """The place of a trajectory in the files that it was read from."""

    format: str
    file: str
    row: int  # 0-based, in the file
    id: str | None = None  # the source's own


class Trajectory(Record):
    """A rollout."""

    turns: tuple[Turn, ...]
    context: Context = Context()
    task_id: str = ""  # a split never separates trajectories of one task
    success: bool | None = None
    reward: float | None = None
    source: Source | None = None
    metadata: Object = Field(default_factory=dict)
    version: Annotated[int, Field(ge=1)] = VERSION

    def observed(self) -> Iterator[tuple[int, int, Observation]]:
        """Yield the observations that follow the agent's own actions: (turn, index in the turn, observation)."""
        for number, turn in enumerate(self.turns):
            if turn.actor == "agent":
                for index, observation in enumerate(turn.observations):
                    yield number, index, observation


class Transition(Record):
    """One training or evaluation sample: history, action, next observation."""

    trajectory: str  # the trajectory's `identity`
    turn: int
    history: tuple[Turn, ...]
    action: Action
    observation: Observation
    context: Context = Context()
    task_id: str = ""
    source: Source | None = None


class Reference(Record):
    """A transition in a `Line`."""

    turn: int  # its number in the trajectory
    history: Count  # how many turns before it
    observation: Count | Observation  # the index in the turn's observations; itself, if the line does not hold the turn
    action: Action | None = None  # None: the turn's


class Line(Record):
    """Transitions of one trajectory that follow each other, and the turns that they refer to: how files hold them."""

    trajectory: str  # its `identity`
    first: int  # the number of the first of `turns` in the trajectory
    turns: tuple[Turn, ...]
    transitions: tuple[Reference, ...]
    context: Context = Context()
    task_id: str = ""
    source: Source | None = None

    def expanded(self) -> Iterator[Transition]:
        """Yield the transitions themselves."""
        for reference in self.transitions:
            end = reference.turn - self.first
            start = end - reference.history
            if reference.history and not 0 <= start < end <= len(self.turns):
                raise RowError(f"the history of turn {reference.turn} is not in the line", "no transition")
            action, observation = reference.action, reference.observation
            if action is None or isinstance(observation, int):
                turn = self.turns[end] if 0 <= end < len(self.turns) else Turn(action=Action())
                if not isinstance(observation, int) or observation >= len(turn.observations):
                    raise RowError(f"turn {reference.turn} or its observation is not in the line", "no transition")
                action, observation = turn.action, turn.observations[observation]
            yield Transition.model_construct(  # the line is valid; a history would be checked turn by turn again
                trajectory=self.trajectory,
                turn=reference.turn,
                history=self.turns[start:end] if reference.history else (),
                action=action,
                observation=observation,
                context=self.context,
                task_id=self.task_id,
                source=self.source,
            )


def misfit(error: ValidationError | RecursionError) -> str:
    """Say the first reason why a record does not fit the schema, in one line: the field, and what is wrong with it."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] != "extra_forbidden":
        return f"{place}: {first['msg'].partition(' or instance of ')[0]}"
    within = Context if first["loc"][:-1] == ("context",) else Trajectory if len(first["loc"]) == 1 else None
    return f"{place}: there is no such field" + (f"; there is {', '.join(within.model_fields)}" if within else "")
