"""Trajectories as other tools read them, for `wm data convert --to`.

| to | a line or row |
|---|---|
| atif | a document of Harbor's ATIF v1.7; what has no field there is in an `extra`, and `readers.atif` reads the same back |
| messages | chat messages with tool calls, the tools as JSON text, `task_id`, `success` and `reward`, for TRL and `datasets` |
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from wm_plugin.data.chat import arguments_text, call_ids, conversation
from wm_plugin.data.errors import RowError
from wm_plugin.data.hidden import HIDDEN
from wm_plugin.data.messages import arguments_of
from wm_plugin.data.readers import atif
from wm_plugin.data.schema import Action, Fields, Observation, Source, Trajectory, Turn
from wm_plugin.data.thoughts import content_of, is_inline
from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import encodable

ATIF = "ATIF-v1.7"
_SOURCE = Source(format="atif", file="", row=0)


def messages_row(trajectory: Trajectory) -> Fields:
    """Write a trajectory as chat messages: what the agent saw and did. Arguments of calls are objects, as in TRL's docs."""
    messages = conversation(trajectory)
    for function in _functions(messages):
        function["arguments"] = arguments_of(function["arguments"])
    return {
        "messages": messages,
        "tools": json.dumps(trajectory.context.action_space, ensure_ascii=False),
        "task_id": trajectory.task_id,
        "success": trajectory.success,
        "reward": trajectory.reward,
    }


def flat(row: Fields) -> Fields:
    """Change a row of messages to one for parquet, where objects would get each other's keys: arguments are JSON text."""
    for function in _functions(row["messages"]):
        function["arguments"] = arguments_text(function["arguments"])
    flat: Fields = encodable(row)
    return flat


def _functions(messages: list[Message]) -> Iterator[Fields]:
    return (call["function"] for message in messages for call in message.get("tool_calls", ()))


def columns(pyarrow: Any) -> dict[str, Any]:
    """Return the parquet columns of `flat` rows. The keys that a message lacks are null, which hosts ignore."""
    text = pyarrow.string()
    function = pyarrow.struct({"name": text, "arguments": text})
    calls = pyarrow.list_(pyarrow.struct({"id": text, "type": text, "function": function}))
    message = {
        **dict.fromkeys(("role", "content", "reasoning_content", "name", "tool_call_id"), text),
        "tool_calls": calls,
    }
    return {
        "messages": pyarrow.list_(pyarrow.struct(message)),
        "tools": text,
        "task_id": text,
        "success": pyarrow.bool_(),
        "reward": pyarrow.float64(),
    }


def lost_in_messages(trajectory: Trajectory) -> Iterator[str]:
    """Yield what chat messages cannot hold of a trajectory."""
    if any(one.actor == "user" and one.action.calls for one in trajectory.turns):
        yield "the calls of users"
    if any(one.error for _, _, one in trajectory.observed()):
        yield "flags of errors"
    if not all(one.train for one in trajectory.turns):
        yield "marks of what is not to be trained on"
    context = trajectory.context
    if context.simulation_instruction or any(getattr(context, name) for name in HIDDEN):
        yield "what only a world model is shown"


def atif_document(trajectory: Trajectory) -> Fields:
    """Write a trajectory as a document of ATIF.

    Fields that `readers.atif` would read otherwise from the rest of the document, or not at all, are in `extra["wm_plugin"]`.
    """
    agent = trajectory.metadata.get("agent")
    if not isinstance(agent, dict) or not all(isinstance(agent.get(key), str) for key in ("name", "version")):
        agent = {"name": "unknown", "version": "unknown"}
    source = trajectory.source
    document: Fields = {
        "schema_version": ATIF,
        "session_id": (source and source.id) or None,
        "agent": {
            **{key: agent[key] for key in ("name", "version")},
            "tool_definitions": list(trajectory.context.action_space),
        },
        "steps": [{"step_id": number, **step} for number, step in enumerate(_steps(trajectory), 1)],
        "extra": {
            "task_id": trajectory.task_id,
            "success": trajectory.success,
            "reward": trajectory.reward,
        },
    }
    values = trajectory.model_dump()
    try:
        (fields,) = atif.convert(document, _SOURCE)
        read = Trajectory.model_validate(fields).model_dump()
    except (RowError, ValidationError):
        read = {}
    own = {key: value for key, value in values.items() if key != "version" and value != read.get(key, ...)}
    if "turns" in own and len(read.get("turns", ())) == len(values["turns"]):
        pairs = enumerate(zip(values["turns"], read["turns"], strict=True))
        own["turns"] = {str(number): turn for number, (turn, as_read) in pairs if turn != as_read}
    elif "turns" in own:  # no step is read then
        own = values | {"turns": list(values["turns"])}
    if own:
        document["extra"][atif.OWN] = own
    return document


def _steps(trajectory: Trajectory) -> Iterator[Fields]:
    context = trajectory.context
    if context.task:
        yield {"source": "system", "message": context.task}
    if context.initial_state or not (context.task or trajectory.turns):  # there is at least one step
        yield {"source": "user", "message": context.initial_state}
    for number, turn in enumerate(trajectory.turns):
        if turn.actor == "user":
            yield {"source": "user", "message": turn.action.text}
            continue
        yield _agent_step(turn, number)
        for observation in turn.observations:
            if observation.kind == "user" and observation.call is None:
                yield {"source": "user", "message": observation.text}


def _agent_step(turn: Turn, number: int) -> Fields:
    action, ids = turn.action, call_ids(turn.action.calls, number)
    step: Fields = {"source": "agent", "message": content_of(action)}
    if action.thought and not is_inline(action.thought):
        step["reasoning_content"] = action.thought
    if action.calls:
        step["tool_calls"] = list(_calls(action, ids))
    if results := list(_results(turn, ids)):
        step["observation"] = {"results": results}
    return step


def _calls(action: Action, ids: list[str]) -> Iterator[Fields]:
    for call, identity in zip(action.calls, ids, strict=True):
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        own = {"id": call.id} if call.id != identity else {}
        if call.arguments != arguments:
            own["arguments"] = call.arguments
        written: Fields = {"tool_call_id": identity, "function_name": call.name, "arguments": arguments}
        yield written | ({"extra": {atif.OWN: own}} if own else {})


def _results(turn: Turn, ids: list[str]) -> Iterator[Fields]:
    answered: set[int] = set()
    for observation in turn.observations:
        call = observation.call
        if call is None and observation.kind == "user":
            continue
        written: Fields = {}
        expected = Observation(kind="environment", text="")
        if call is not None and 0 <= call < len(ids) and call not in answered:
            answered.add(call)
            written["source_call_id"] = ids[call]
            expected = Observation(kind="tool", text="", tool=turn.action.calls[call].name, call=call)
        own = {
            key: getattr(observation, key) for key in atif.FIELDS if getattr(observation, key) != getattr(expected, key)
        }
        yield {**written, "content": observation.text, **({"extra": {atif.OWN: own}} if own else {})}


def lost_in_atif(trajectory: Trajectory) -> Iterator[str]:
    """Yield nothing: every object of a document has an `extra`."""
    del trajectory
    yield from ()


Make = Callable[[Trajectory], Fields]
Lost = Callable[[Trajectory], Iterator[str]]
TO: dict[str, tuple[Make, Lost]] = {
    "atif": (atif_document, lost_in_atif),
    "messages": (messages_row, lost_in_messages),
}
