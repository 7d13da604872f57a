"""OpenHands' events: a list of actions and observations, or the rows of an evaluation, which have it as their `history`.

An action of the agent's is what the model wrote (`tool_call_metadata.model_response`): its content, its reasoning and its calls.
Several actions of one response are one turn. Events without it are of agents that write their actions as text; the call then has
the action's name and arguments. An observation is an event's `content`; its prefix and suffix, which tell of the shell's state,
are not in the text. Failed observations are errors, and an `error` is one that OpenHands itself made of a call. What OpenHands
does for the agent (`recall`, changes of state) is no turn. Old histories of pairs are read, too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import Conversation, flag_of, text_of
from wm_plugin.data.readers.base import Rows, gathered, number_of, object_of, rest_of, tools_of
from wm_plugin.data.schema import Fields, Source
from wm_plugin.data.thoughts import joined

_ASIDE = ("recall", "agent_state_changed", "change_agent_state", "null", "condensation", "condensation_request")
_OUTCOMES = ("resolved", "success")
_INVALID: Fields = {"kind": "environment", "error": True, "data": {"actions": 1, "invalid": 1}}
_NOT_ARGUMENTS = ("thought", "image_urls", "wait_for_response", "confirmation_state", "security_risk", "blocking")


def matches(head: files.Head) -> bool:
    record = head.sample
    if not isinstance(record, dict):
        return False
    if _is_event(record):
        return head.layout in ("array", "lines")
    history = record.get("history")
    if not isinstance(history, list) or "trajectory" in record:
        return False
    if not history:  # of a long document, too
        return {"instance_id", "test_result"} <= record.keys()
    return _is_event(history[0]) or (isinstance(history[0], list) and any(map(_is_event, history[0])))


def read(path: Path, head: files.Head) -> Rows:
    records = files.records(path, head)
    return gathered(records) if _is_event(head.sample) else records, convert


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if isinstance(record, list):
        record = {"history": record}
    history = record.get("history") if isinstance(record, dict) else None
    if not isinstance(history, list) or not history:
        raise RowError("no list `history` of events, or an empty one", "no events")
    events = [event for entry in history for event in (entry if isinstance(entry, list) else [entry])]
    conversation, tools = Conversation(exact=True), []
    seen: set[str] = set()  # responses of the model, each of which may have caused several events
    for number, event in enumerate(events, 1):
        if not _is_event(event):
            raise RowError(f"event {number} is no action and no observation", "wrong type")
        if event.get("action") == "system":
            tools = tools_of(object_of(event, "args").get("tools"))
        for message, observed in _messages(event, seen):
            conversation.add(message, number, **observed)
    report = object_of(record, "test_result", "report")
    success = flag_of(next((one[key] for one in (record, report) for key in _OUTCOMES if key in one), None))
    reward = number_of(record.get("reward"))
    yield {
        "turns": conversation.fields(),
        "context": {"task": conversation.task, "action_space": tools, "initial_state": conversation.initial_state},
        "task_id": text_of(record.get("instance_id")),
        "success": success,
        "reward": reward,
        "source": vars(source),
        "metadata": {**conversation.rest, **rest_of(record, "history", "instance_id", "instruction", reward=reward)},
    }


def _is_event(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(key), str) for key in ("action", "observation"))


def _messages(event: Fields, seen: set[str]) -> Iterator[tuple[Fields, Fields]]:
    """Yield the messages that an event stands for, each with what is known of it as an observation."""
    action, observation, args = event.get("action"), event.get("observation"), object_of(event, "args")
    if (action or observation) in _ASIDE:
        return
    if action == "system":
        yield {"role": "system", "content": args.get("content")}, {}
        return
    called = object_of(event, "tool_call_metadata")
    if not isinstance(action, str | None):
        raise RowError("an action that is no text", "wrong type")
    if action is not None and not called and ("args" not in event or "source" not in event):
        raise RowError(
            f"an action {action[:40]!r} without its source and `args`: who acts, and how, is not in the file",
            "no action",
        )
    if action == "message" and event.get("source") != "agent" and not called:
        yield {"role": "user", "content": args.get("content")}, {}
        return
    call_id = called.get("tool_call_id")
    if called:
        identity = text_of(object_of(called, "model_response").get("id")) or text_of(call_id)
        if identity not in seen:
            seen.add(identity)
            yield _response(called), {}
    if action is not None:
        if not called:
            yield _action(action, args, event.get("id")), {}
        return
    if observation == "error" and not called and "cause" not in event:  # of a call that OpenHands did not record
        yield (
            {"role": "user", "content": event.get("content")},
            {**_INVALID, "data": {**_INVALID["data"], "target": False}},
        )
        return
    observed: Fields = {"error": event.get("success") is False}
    if observation == "error":
        observed = {"error": True, "data": _INVALID["data"]}
    elif (code := object_of(event, "extras", "metadata").get("exit_code")) is not None:
        observed["data"] = {"exit_code": code}
    yield {"role": "tool", "tool_call_id": call_id or event.get("cause"), "content": event.get("content")}, observed


def _response(called: Fields) -> Fields:
    """Return the message that the model wrote; of a stripped file, the call that it must have had."""
    choices = object_of(called, "model_response").get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = object_of(first, "message")
    if not message.get("tool_calls"):
        call = {"id": called.get("tool_call_id"), "name": called.get("function_name")}
        message = {**message, "tool_calls": [call]}
    return {**message, "role": "assistant"}


def _action(action: str, args: Fields, identity: Any) -> Fields:
    """Write an action as the assistant's message, as the model's own words are not in the file."""
    if action == "message":
        return {"role": "assistant", "content": args.get("content")}
    arguments = {
        key: value for key, value in args.items() if key not in _NOT_ARGUMENTS and value not in (None, "", {}, [])
    }
    return {
        "role": "assistant",
        "content": "",
        "reasoning": joined(text_of(args.get("thought"))),
        "tool_calls": [{"id": identity, "name": action, "arguments": arguments}],
    }
