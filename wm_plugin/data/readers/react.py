"""ReAct's ALFWorld prompts: `{name: text}`, where `>` begins an action. `think:` and its answer `OK.` become the thought."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.readers.base import Rows
from wm_plugin.data.schema import Action, Context, Observation, Source, Trajectory, Turn


def matches(head: files.Head) -> bool:
    texts = [value for value in head.keys.values() if value is not None]
    return bool(texts) and all(isinstance(text, str) and "\n>" in text for text in texts)


def read(path: Path, _head: files.Head) -> Rows:
    named = (
        files.Record(r.row, {"name": key, "text": r.value} if r.error is None else None, r.error, r.raw)
        for key, r in files.pairs(path)
    )
    return named, convert


def convert(record: Any, source: Source) -> Iterator[Trajectory]:
    name, text = record["name"], record["text"]
    if not isinstance(text, str):
        raise RowError("not a text", "wrong type")
    opening, *steps = f"\n{text}".replace("\r\n", "\n").split("\n>")
    thought: list[str] = []
    turns = []
    for step in steps:
        action, answered, observation = step.strip(" ").partition("\n")
        observation = observation.rstrip("\n")
        if action.startswith("think:") and observation.strip() in ("", "OK."):
            thought.append(action.removeprefix("think:").strip())
            continue
        observed = (Observation(kind="environment", text=observation),) if answered else ()
        turns.append(
            Turn(action=Action(text=action.strip(), thought="\n".join(thought) or None), observations=observed)
        )
        thought = []
    if not turns:
        raise RowError("no action", "no action")
    if thought:  # it ended with a thought
        turns.append(Turn(action=Action(thought="\n".join(thought))))
    yield Trajectory(
        turns=tuple(turns), context=Context(initial_state=opening.removeprefix("\n")), task_id=name, source=source
    )
