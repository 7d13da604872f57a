"""What `consistency` played, written: W2R episodes in Word2World's own form, and a row for each turn."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import atomic
from wm_plugin.data.readers.word2world import SUCCESS
from wm_plugin.data.render import sides
from wm_plugin.data.schema import Observation, Trajectory
from wm_plugin.data.thoughts import words
from wm_plugin.data.transitions import with_success
from wm_plugin.lab.evaluation.consistency import Episode


def w2r_rows(episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """Episodes in Word2World's W2R form, which `trajectories.readers.word2world` reads.

    A conversation has the turns that were replayed; what the world model goes on to say after the real end is `after_the_end`. An
    episode without a replayed turn has no row: the form has no episode without an action.
    """
    for one in episodes:
        if one.replayed is None or not one.replayed.turns:
            continue
        steps, replayed = _steps(one.simulated), _steps(one.replayed)
        conversation = [
            {"react": react, "world_model_observation": predicted, "env_observation": real}
            for (react, predicted), (_, real) in zip(steps, replayed, strict=False)
        ]
        rest = [{"react": react, "world_model_observation": text} for react, text in steps[len(conversation) :]]
        yield {
            "item_id": one.task,
            "conversation": conversation,
            "success": bool(one.replayed.success),
            "reward": one.replayed.reward,
            "agent": one.agent,
            "split": one.split,
            "number": one.number,
            "real_success": one.won("real"),
            "world_model_success": one.won("wm"),
            "parted": one.parted,
            "failures": dict(one.failures),
            "after_the_end": rest,
        }


def write_w2r(episodes: Sequence[Episode], path: str | Path) -> None:
    """Write `w2r_rows` as JSON lines."""
    with atomic(Path(path)) as unfinished, unfinished.open("w", encoding="utf-8", newline="\n") as file:
        for row in w2r_rows(episodes):
            file.write(json.dumps(row, ensure_ascii=True) + "\n")


def _steps(trajectory: Trajectory) -> list[tuple[str, str]]:
    """(react, observation) of each turn, as the dialogues of `samples.prompts` have them."""
    steps = []
    for turn in with_success(trajectory).turns:
        blocks = dict(sides([turn], [[_marked(observation) for observation in turn.observations]]))
        thought = words(turn.action.thought)
        thought = f"Thought: {thought}\n\nAction: " if thought else ""
        steps.append((thought + blocks["actor"], blocks.get("world", "")))
    return steps


def _marked(observation: Observation) -> str:
    return observation.text + SUCCESS if observation.data.get("success") is True else observation.text


def turn_rows(episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """A row for each turn that was played in both worlds, for `measures.write_rows`."""
    for one in episodes:
        if one.replayed is None:
            continue
        context = one.simulated.context.initial_state
        for number, ((action, predicted), (_, real)) in enumerate(
            zip(_steps(one.simulated), _steps(one.replayed), strict=False), 1
        ):
            yield {
                "context": context,
                "action": action,
                "real": real,
                "predicted": predicted,
                "scores": {"exact": float(predicted.strip() == real.strip())},
                "failure": one.failures.get("wm", ""),
                "agent": one.agent,
                "split": one.split,
                "task": one.task,
                "turn": number,
            }
            context = predicted
