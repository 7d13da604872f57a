"""StableToolBench: a tree of steps (Thought, Action, Action Input). The path to each leaf is a trajectory.

The observations come from an LLM and are marked `simulated`. An `observation_code` other than 0 is an error of the tool server.
Paths share their beginnings: `shared_turns` in the metadata counts the first turns that an earlier trajectory has too.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import arguments_of, flag_of, text_of
from wm_plugin.data.readers.base import Rows, rest_of
from wm_plugin.data.schema import Action, Call, Context, Observation, Source, Trajectory, Turn
from wm_plugin.untrusted import LARGEST

_STEP = 1 << 10  # bytes of a step beside its JSON, about


def matches(head: files.Head) -> bool:
    return {"win", "tree"} <= head.keys.keys()


def read(path: Path, _head: files.Head) -> Rows:
    return [files.whole(path)], convert


def convert(record: Any, source: Source) -> Iterator[Trajectory]:
    tree = record.get("tree") if isinstance(record, dict) else None
    root = tree.get("tree") if isinstance(tree, dict) else None
    if not isinstance(root, dict):
        raise RowError("no tree of steps", "no path")
    answer = record.get("answer_generation")
    query = answer.get("query") if isinstance(answer, dict) else None
    task = source.file.partition("_")[0]
    metadata = {"win": record["win"]} if "win" in record else {}
    if isinstance(answer, dict):
        metadata |= {key: answer[key] for key in ("final_answer", "finish_type") if key in answer}
    before: tuple[Turn, ...] = ()
    for number, path in enumerate(_paths(root, len(json.dumps([query, metadata])))):
        turns = _turns(path)
        if turns:
            # Paths are in depth-first order, so that of all earlier paths the last one shares the most turns.
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, turns, strict=False)))
            before = turns
            yield Trajectory(
                turns=turns,
                context=Context(task=str(query or "")),
                task_id=task,  # all paths of a tree are of one task
                success=flag_of(path[-1].get("finished")),
                source=source.model_copy(update={"id": f"{task}/{number}"}),
                metadata=metadata | {"shared_turns": shared},
            )


def _paths(root: Mapping[str, Any], common: int) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the paths from the root to each leaf, without recursion: real trees are deep.

    Each path has copies of its steps and of so many bytes in `common`: all together are no larger than a record may be.
    """
    path: list[Mapping[str, Any]] = []
    stack, total = [(root, 0, common)], 0
    while stack:
        node, depth, size = stack.pop()
        path[depth:] = [node]
        size += _STEP + len(json.dumps(rest_of(node, "children")))
        children = _children(node)
        if not children:
            total += size
            if total > LARGEST:
                raise RowError(f"a tree whose paths are larger than {LARGEST:,} bytes together", "out of bounds")
            yield list(path)
        stack += [(child, depth + 1, size) for child in reversed(children)]


def _children(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    children = node.get("children") or []
    if not isinstance(children, list) or not all(isinstance(child, dict) for child in children):
        raise RowError("`children` is no list of steps", "wrong type")
    return children


def _turns(path: list[Mapping[str, Any]]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    thought: list[str] = []
    name: str | None = None
    for node in path[1:]:
        kind, text = node.get("node_type"), text_of(node.get("description"))
        if kind == "Thought":
            thought.append(text)
        elif kind == "Action":
            if name:  # the action before had no input
                turns.append(Turn(action=Action(calls=(Call(name=name),), thought="\n".join(thought) or None)))
                thought = []
            name = text
        elif kind != "Action Input" or not name:
            raise RowError(f"a step {kind!r} without an action before it", "unknown step")
        else:
            call = Call(name=name, arguments=arguments_of(text))
            observed: tuple[Observation, ...] = ()
            if node.get("observation") is not None:
                code = node.get("observation_code", 0)
                observed = (
                    Observation(
                        kind="tool",
                        text=text_of(node["observation"]),
                        tool=name,
                        call=0,
                        error=code not in (0, None, 3),  # 3: the final answer was given
                        data={"simulated": True, "code": code},
                    ),
                )
            turns.append(Turn(action=Action(calls=(call,), thought="\n".join(thought) or None), observations=observed))
            thought, name = [], None
    if name or thought:  # the path ends with an open step
        calls = (Call(name=name),) if name else ()
        turns.append(Turn(action=Action(calls=calls, thought="\n".join(thought) or None)))
    return tuple(turns)
