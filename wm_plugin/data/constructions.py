"""Samples of the papers other than predictions: an agent's own turns, and plain texts.

`imitation` and `rft` are RWML's baselines (section 3.1, appendices B.3 and C.4); its baselines that play in an environment are in
`lab.agents`. `documents` are the texts of Qwen-AgentWorld's continual pre-training (section 3.2); its dialogues are the kind
`cpt`.
"""

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.chat import conversation
from wm_plugin.data.sample import Sample
from wm_plugin.data.schema import Action, Trajectory
from wm_plugin.data.transitions import identity
from wm_plugin.errors import UserError


def imitation(
    trajectories: Iterable[Trajectory], *, construction: str = "imitation", left_out: Counter[str] | None = None
) -> Iterator[Sample]:
    """Yield experts' rollouts as the agent saw them: all of the agent's messages count, except empty ones, and those that the
    source says not to train on (`Turn.train`).

    A trajectory without a message that counts is left out.

    Args:
        left_out: counts trajectories that are left out, by reason.
    """
    left_out = Counter() if left_out is None else left_out
    for trajectory in trajectories:
        messages = conversation(trajectory)
        said = [m["role"] == "assistant" and bool(m["content"].strip() or "tool_calls" in m) for m in messages]
        # each of the agent's turns is one assistant message
        marks = iter([turn.train for turn in trajectory.turns if turn.actor == "agent"])
        wanted = [m["role"] == "assistant" and next(marks, True) for m in messages]
        train = [one and other for one, other in zip(said, wanted, strict=True)]
        if any(train):
            named = columns(trajectory, construction) | {"reward": trajectory.reward}
            yield Sample(messages, train, trajectory.context.action_space, named, observed=True)
        else:
            left_out["no target" if any(said) else "nothing said"] += 1


def rft(
    trajectories: Iterable[Trajectory],
    *,
    threshold: float | None = None,
    per_task: int | None = None,
    seed: int = 0,
    left_out: Counter[str] | None = None,
) -> Iterator[Sample]:
    """Yield `imitation` of the agent's own successes, without duplicates: rejection-sampling fine-tuning.

    Args:
        threshold: a reward of at least this is a success too; None counts only the flag `success`.
        per_task: at most so many per task. The draw depends only on the seed and the trajectory, and a smaller number draws a
            subset of a larger one. All successes are held in memory.
        left_out: counts trajectories that are left out, by reason.

    Raises:
        UserError: `per_task` is less than 1.
    """
    if per_task is not None and per_task < 1:
        raise UserError(f"per_task is {per_task}; write a number >= 1, or leave it out for all")
    left_out = Counter() if left_out is None else left_out
    successes = _distinct(_successes(trajectories, threshold, left_out), left_out)
    if per_task is not None:
        successes = _capped(successes, per_task, seed, left_out)
    return imitation(successes, construction="rft", left_out=left_out)


def documents(paths: Iterable[str | Path]) -> Iterator[Sample]:
    """Yield the user's own texts for continual pre-training. Each is one assistant message that counts as a whole.

    A .txt or .md file is one text. A .jsonl file (also gzipped) has a text per line, in the field `text`. Long texts are not
    split.

    Raises:
        UserError: another suffix, a file that cannot be read, or a line without a text; names the file and the row.
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
    """Return the columns that name a sample's origin."""
    return {"construction": construction, "task_id": trajectory.task_id, "trajectory": identity(trajectory)}


def _successes(
    trajectories: Iterable[Trajectory], threshold: float | None, left_out: Counter[str]
) -> Iterator[Trajectory]:
    for one in trajectories:
        reward = None if threshold is None else one.reward
        if one.success is True or (threshold is not None and reward is not None and reward >= threshold):
            yield one
        else:
            left_out["unknown success" if one.success is None and reward is None else "no success"] += 1


def _distinct(trajectories: Iterable[Trajectory], left_out: Counter[str]) -> Iterator[Trajectory]:
    """Yield each trajectory once. Trajectories that differ only in ids of calls, source or reward are the same."""
    digests: set[bytes] = set()
    for trajectory in trajectories:
        if (digest := content_digest(trajectory)) in digests:
            left_out["duplicate"] += 1
        else:
            digests.add(digest)
            yield trajectory


def content_digest(trajectory: Trajectory) -> bytes:
    """Return a digest that is the same for trajectories that differ only in ids of calls, source, reward and metadata."""
    turns = [
        (acts(turn.action), turn.action.text, turn.action.thought, [o.text for o in turn.observations], turn.train)
        for turn in trajectory.turns
        if turn.actor == "agent"
    ]
    return _digest([trajectory.context.model_dump(), turns])


def _capped(
    trajectories: Iterable[Trajectory], per_task: int, seed: int, left_out: Counter[str]
) -> Iterator[Trajectory]:
    """Return at most `per_task` trajectories of each task, drawn by `_digest`, in their order."""
    tasks: dict[str, list[tuple[bytes, int, Trajectory]]] = {}
    for place, trajectory in enumerate(trajectories):
        rank = _digest([seed, identity(trajectory)])
        tasks.setdefault(trajectory.task_id or identity(trajectory), []).append((rank, place, trajectory))
    drawn = [entry for entries in tasks.values() for entry in heapq.nsmallest(per_task, entries, key=lambda e: e[:2])]
    if over := sum(map(len, tasks.values())) - len(drawn):
        left_out["per_task"] += over
    return (trajectory for _, _, trajectory in sorted(drawn, key=lambda entry: entry[1]))


def acts(action: Action) -> str:
    """Write what of an action affects the world as a comparable text: its calls, or its text if it has none."""
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
