"""ScienceWorld gold paths: `{index: {taskName, goldActionSequences: [{variationIdx, fold, taskDescription, path: [...]}]}}`.

Scores and flags are strings. The state by looking around and the inventory are kept in each observation's `data`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import flag_of, text_of
from wm_plugin.data.readers.base import Rows, check_common, number_of, rest_of
from wm_plugin.data.schema import Action, Context, Observation, Source, Trajectory, Turn


def matches(head: files.Head) -> bool:
    tasks = [value for value in head.keys.values() if value]
    return bool(tasks) and all(isinstance(task, dict) and "goldActionSequences" in task for task in tasks)


def read(path: Path, _head: files.Head) -> Rows:
    return (record for _, record in files.pairs(path)), convert


def convert(record: Any, source: Source) -> Iterator[Trajectory]:
    if not isinstance(record, dict) or not isinstance(record.get("goldActionSequences"), list):
        raise RowError("no list `goldActionSequences`", "no path")
    check_common(rest_of(record, "goldActionSequences"), len(record["goldActionSequences"]))
    name = str(record.get("taskName", record.get("taskIdx", "")))
    for sequence in record["goldActionSequences"]:
        if not isinstance(sequence, dict) or not isinstance(sequence.get("path"), list):
            raise RowError("a sequence without a list `path`", "no path")
        turns = tuple(_turn(step) for step in sequence["path"])
        completed = turns[-1].observations[0].data.get("completed") if turns else None
        yield Trajectory(
            turns=turns,
            context=Context(task=text_of(sequence.get("taskDescription"))),
            task_id=f"{name}/{sequence.get('variationIdx')}",
            success=completed,
            reward=number_of(turns[-1].observations[0].data["score"]) if turns else None,
            source=source.model_copy(update={"id": f"{name}/{sequence.get('variationIdx')}"}),
            metadata={
                **rest_of(record, "taskName", "goldActionSequences"),
                **rest_of(sequence, "path", "taskDescription", "variationIdx"),
            },
        )


def _turn(step: Any) -> Turn:
    if not isinstance(step, dict) or not isinstance(step.get("action"), str):
        raise RowError("a step without an action", "no action")
    score, completed = number_of(step.get("score")), flag_of(step.get("isCompleted"))
    data = rest_of(step, "action", "observation", score=score, isCompleted=completed)
    data = {"score": score, "completed": completed} | data
    observation = Observation(kind="environment", text=text_of(step.get("observation")), data=data)
    return Turn(action=Action(text=step["action"]), observations=(observation,))
