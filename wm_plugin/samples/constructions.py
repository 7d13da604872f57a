"""What the papers train on besides predictions: an agent's own turns, and texts.

`imitation` and `rft` are RWML's baselines (section 3.1, appendices B.3 and C.4); the baselines that play in an environment are in
`agents.alternatives` and `agents.reflection`. `documents` are the corpora of Qwen-AgentWorld's continual pre-training (section
3.2), whose dialogues are the kind `cpt`. The papers mix them: IWM is `alternatives.iwm` and `imitation` together, pre-training is
`documents` and `cpt`.
"""

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.samples.sample import Sample
from wm_plugin.trajectories import files
from wm_plugin.trajectories.chat import chat
from wm_plugin.trajectories.expand import identity
from wm_plugin.trajectories.schema import Action, Trajectory


def imitation(trajectories: Iterable[Trajectory], *, construction: str = "imitation") -> Iterator[Sample]:
    """Experts' rollouts as the agent saw them: everything that the agent did counts, empty messages excepted.

    A trajectory in which the agent did nothing is left out.
    """
    for trajectory in trajectories:
        messages = chat(trajectory.context, trajectory.turns)
        train = [m["role"] == "assistant" and bool(m["content"].strip() or "tool_calls" in m) for m in messages]
        if any(train):
            yield Sample(messages, train, trajectory.context.action_space, columns(trajectory, construction))


def rft(
    trajectories: Iterable[Trajectory], *, threshold: float | None = None, per_task: int | None = None, seed: int = 0
) -> Iterator[Sample]:
    """Rejection-sampling fine-tuning: `imitation` of one's own successes, without duplicates.

    Args:
        threshold: a reward from here on is a success too; None: only `success` says so.
        per_task: at most so many of one task. Which ones is a fixed function of the seed and the trajectory, whatever the order
            of the files, and fewer are a part of more. All successes are held in memory then.

    Raises:
        UserError: `per_task` is less than 1.
    """
    if per_task is not None and per_task < 1:
        raise UserError(f"per_task is {per_task}; write a number >= 1, or leave it out for all")
    won = (trajectory for trajectory in trajectories if _won(trajectory, threshold))
    found = _unlike(won)
    return imitation(found if per_task is None else _capped(found, per_task, seed), construction="rft")


def documents(paths: Iterable[str | Path]) -> Iterator[Sample]:
    """Texts of a user's own for continual pre-training: each is one assistant's message, all of which counts.

    A .txt or .md file is a text; a .jsonl file (also gzipped) has one a line, in the field `text`. Long ones are not split.

    Raises:
        UserError: another suffix, a file that cannot be read, or a line without a text: which one.
    """
    for path in map(Path, paths):
        for row, text in _texts(path):
            if text.strip():
                yield Sample(
                    messages=[{"role": "assistant", "content": text}],
                    train=[True],
                    columns={"construction": "document", "task_id": f"{path.name}/{row}"},
                )


def columns(trajectory: Trajectory, construction: str) -> dict[str, Any]:
    """What every sample says of where it comes from."""
    return {"construction": construction, "task_id": trajectory.task_id, "trajectory": identity(trajectory)}


def _won(trajectory: Trajectory, threshold: float | None) -> bool:
    rewarded = threshold is not None and trajectory.reward is not None and trajectory.reward >= threshold
    return trajectory.success is True or rewarded


def _unlike(trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Each trajectory once; ids of calls, sources and rewards make no difference."""
    seen: set[bytes] = set()
    for trajectory in trajectories:
        turns = [
            (acts(turn.action), turn.action.text, turn.action.thought, [o.text for o in turn.observations])
            for turn in trajectory.turns
            if turn.actor == "agent"
        ]
        digest = _digest([trajectory.context.model_dump(), turns])
        if digest not in seen:
            seen.add(digest)
            yield trajectory


def _capped(trajectories: Iterable[Trajectory], per_task: int, seed: int) -> Iterator[Trajectory]:
    """The `per_task` luckiest of each task, in their order."""
    tasks: dict[str, list[tuple[bytes, int, Trajectory]]] = {}
    for place, trajectory in enumerate(trajectories):
        luck = _digest([seed, identity(trajectory)])
        tasks.setdefault(trajectory.task_id or identity(trajectory), []).append((luck, place, trajectory))
    kept = [ranked for found in tasks.values() for ranked in heapq.nsmallest(per_task, found, key=lambda r: r[:2])]
    return (trajectory for _, _, trajectory in sorted(kept, key=lambda ranked: ranked[1]))


def acts(action: Action) -> str:
    """What an action does to the world: its calls, or what it says if it calls nothing."""
    return json.dumps([(call.name, call.arguments) for call in action.calls] or action.text.strip(), sort_keys=True)


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"][-1:]
    if suffixes == [".jsonl"]:
        for record in files.lines(path):
            text = record.value.get("text") if isinstance(record.value, dict) else None
            if not isinstance(text, str):
                raise UserError(f"{path}, row {record.row}: {record.error or 'no field `text` that holds a text'}")
            yield record.row, text
    elif suffixes in ([".txt"], [".md"]):
        with files.open_file(path) as file:
            try:
                yield 0, file.read().decode()
            except UnicodeDecodeError as error:
                raise UserError(f"{path}: not UTF-8 at byte {error.start}") from None
    else:
        raise UserError(f"{path}: texts are .txt, .md or .jsonl files")


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
