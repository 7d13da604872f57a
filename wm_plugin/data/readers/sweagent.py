"""SWE-agent's `.traj`: `{trajectory: [{action, observation, response, thought, state}], history, info}`, one rollout per file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import arguments_of, text_of
from wm_plugin.data.readers.base import Rows, rest_of
from wm_plugin.data.schema import Action, Context, Observation, Source, Trajectory, Turn


def matches(head: files.Head) -> bool:
    return "trajectory" in head.keys


def read(path: Path, _head: files.Head) -> Rows:
    return [files.whole(path)], convert


def convert(record: Any, source: Source) -> Iterator[Trajectory]:
    if not isinstance(record, dict) or not isinstance(record.get("trajectory"), list):
        raise RowError("no list `trajectory`", "no path")
    history = record.get("history") or []
    if not isinstance(history, list) or not all(isinstance(message, dict) for message in history):
        raise RowError("`history` is no list of messages", "wrong type")
    before = _before_the_first_action(history)
    yield Trajectory(
        turns=tuple(_turn(step) for step in record["trajectory"]),
        context=Context(
            task="\n\n".join(text_of(m.get("content")) for m in before if m.get("role") == "system"),
            initial_state="\n\n".join(
                text_of(m.get("content")) for m in before if m.get("role") == "user" and not m.get("is_demo")
            ),
            demonstrations=tuple(text_of(m.get("content")) for m in before if m.get("is_demo")),
        ),
        task_id=source.file.rsplit("/", 1)[-1].partition(".")[0],
        success=None,  # the tests that decide are not in the file
        source=source,
        metadata=rest_of(record, "trajectory", "history"),
    )


def _before_the_first_action(history: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    first = next(
        (n for n, m in enumerate(history) if m.get("role") == "assistant" and not m.get("is_demo")), len(history)
    )
    return history[:first]


def _turn(step: Any) -> Turn:
    if not isinstance(step, dict) or not isinstance(step.get("action"), str):
        raise RowError("a step without an action", "no action")
    data = rest_of(step, "action", "observation", "response", "thought", "state")
    state = arguments_of(step.get("state"))  # older files have it as JSON text
    if state is not None:
        data["state"] = {"text": state} if isinstance(state, str) else state
    observation = Observation(kind="environment", text=text_of(step.get("observation")), data=data)
    thought = text_of(step.get("thought")) or text_of(
        step.get("response")
    )  # the response is the thought with the action
    action = Action(text=step["action"], thought=thought or None)
    return Turn(action=action, observations=(observation,))
