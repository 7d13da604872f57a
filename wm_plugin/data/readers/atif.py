"""ATIF, the Agent Trajectory Interchange Format of Harbor, v1.0 to v1.8: `{schema_version, agent, steps}`, a rollout a document.

An agent's step is a turn, with its `observation`'s results; a user's step is a reply. Results without a call are the
environment's. What a system's step says or observes (from v1.2) and what was copied for context (v1.5) is in histories and no
target. Each embedded subagent (v1.7) is a trajectory of its own. `write_atif` keeps what has no field in `extra`, for `convert`.
"""

from collections.abc import Iterator
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import Conversation, flag_of, text_of
from wm_plugin.data.readers.base import number_of, object_of, rest_of, tools_of
from wm_plugin.data.schema import Fields, Source, Trajectory
from wm_plugin.errors import shown

NEWEST = 8  # the minor version, of major version 1
OWN = "wm_plugin"  # our key in an `extra`
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_ERRORS = ("error", "is_error", "tool_result_is_error")  # flags in a result's `extra`
FIELDS = ("kind", "tool", "call", "error", "data")  # of an observation
_KEPT = ("timestamp", "model_name", "reasoning_effort", "metrics", "llm_call_count")  # of a step, as they are


def matches(head: files.Head) -> bool:
    record = head.sample
    version = record.get("schema_version") if isinstance(record, dict) else None
    return isinstance(version, str) and version.startswith("ATIF-") and "steps" in record


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if not isinstance(record, dict) or not isinstance(record.get("steps"), list):
        raise RowError("no list of steps", "no steps")
    version = text_of(record.get("schema_version"))
    minor = version.removeprefix("ATIF-v1.")
    if minor == version or not minor.isdecimal() or int(minor[:9]) > NEWEST:
        raise RowError(
            f"`schema_version` is {shown(version)}, known are ATIF-v1.0 to ATIF-v1.{NEWEST}", "later version"
        )
    extra, agent, own = object_of(record, "extra"), object_of(record, "agent"), object_of(record, "extra", OWN)
    success, reward = flag_of(extra.get("success")), number_of(extra.get("reward"))
    whole = isinstance(own.get("turns"), list)  # the steps did not hold the turns
    conversation, turns = Conversation(exact=True), []
    if not whole:
        turns = _turns(record["steps"], conversation)
        _restore(turns, own.get("turns"))
    fields: Fields = {
        "turns": turns,
        "context": {
            "task": conversation.task,
            "action_space": tools_of(agent.get("tool_definitions")),
            "initial_state": conversation.initial_state,
        },
        "task_id": text_of(extra.get("task_id")),
        "success": success,
        "reward": reward,
        "source": {**vars(source), "id": text_of(record.get("trajectory_id") or record.get("session_id")) or None},
        "metadata": {
            **conversation.rest,
            "agent": rest_of(agent, "tool_definitions"),
            **rest_of(record, "schema_version", "steps", "agent", "extra", "subagent_trajectories"),
            **rest_of(extra, OWN, "task_id", success=success, reward=reward),
        },
    }
    known = Trajectory.model_fields.keys() - (set() if whole else {"turns"})
    yield fields | {key: value for key, value in own.items() if key in known}
    inner = record.get("subagent_trajectories") or []
    if not isinstance(inner, list):
        raise RowError("`subagent_trajectories` is no list", "wrong type")
    for subagent in inner:
        yield from convert(subagent, source)


def _turns(steps: list[Any], conversation: Conversation) -> list[Fields]:
    ids: list[tuple[int, int, Any]] = []  # calls without an id of their own: turn, index, the id that it had
    for number, step in enumerate(steps, 1):
        role = _ROLES.get(text_of(step.get("source"))) if isinstance(step, dict) else None
        if role is None:
            raise RowError(f"step {number} is no step of a system, a user or an agent")
        calls = step.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise RowError(f"step {number} has tool_calls that are no list of objects")
        message = {"role": role, "content": step.get("message"), **{key: step[key] for key in _KEPT if key in step}}
        if role == "assistant":
            message |= {"reasoning_content": step.get("reasoning_content"), "tool_calls": list(map(_call, calls))}
        if rest := rest_of(object_of(step, "extra"), OWN):
            message["extra"] = rest
        results = object_of(step, "observation").get("results") or []
        aside = role == "system" or step.get("is_copied_context") is True  # no answer to an action, or no new one
        if role == "assistant" or message["content"] or not results:
            data = {"role": role} if role == "system" else {}
            conversation.add(message, number, **({"data": {**data, "target": False}} if aside else {}))
        if role == "assistant" and aside:
            conversation.turns[-1].train = False
        for index, call in enumerate(calls if role == "assistant" else ()):
            if "id" in (own := object_of(call, "extra", OWN)):
                ids.append((len(conversation.turns) - 1, index, own["id"]))
        if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
            raise RowError(f"step {number} has results that are no list of objects")
        for result in results:
            observed = _observed(result, aside)
            answer = {"role": "tool", "tool_call_id": result.get("source_call_id"), "content": result.get("content")}
            if result.get("source_call_id") is None or role != "assistant":
                answer["role"], observed = "user", {"kind": "environment", **observed}
            conversation.add(answer, number, **observed)
    turns = conversation.fields()
    for turn, index, identity in ids:
        turns[turn]["action"]["calls"][index]["id"] = identity
    return turns


def _call(call: Fields) -> Fields:
    own = object_of(call, "extra", OWN)
    return {
        "id": call.get("tool_call_id"),
        "name": call.get("function_name"),
        "arguments": own["arguments"] if "arguments" in own else call.get("arguments"),
    }


def _observed(result: Fields, aside: bool) -> Fields:
    """Return what is known of a result beside its call and its text."""
    extra = object_of(result, "extra")
    observed: Fields = {}
    if any(flag_of(extra.get(key)) for key in _ERRORS):
        observed["error"] = True
    data = {key: value for key, value in rest_of(extra, OWN, *_ERRORS).items() if value is not None}
    if refs := result.get("subagent_trajectory_ref"):
        data["subagent_trajectory_ref"] = refs
    if aside or result.get("content") is None:
        data["target"] = False
    if data:
        observed["data"] = data
    return observed | {key: value for key, value in object_of(extra, OWN).items() if key in FIELDS}


def _restore(turns: list[Fields], own: Any) -> None:
    """Put turns that the steps could not hold in their places."""
    for number, turn in own.items() if isinstance(own, dict) else ():
        if not number.isdecimal() or int(number[:9]) >= len(turns):
            raise RowError(f"`extra.{OWN}.turns` has a turn {number[:40]!r}, which is not there")
        turns[int(number[:9])] = turn
