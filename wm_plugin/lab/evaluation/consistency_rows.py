"""Writes the episodes that `consistency` plays: W2R episodes in Word2World's own form, and a row for each turn."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wm_plugin.data.readers.word2world import SUCCESS
from wm_plugin.data.render import sides
from wm_plugin.data.schema import Trajectory
from wm_plugin.data.thoughts import words
from wm_plugin.data.transitions import with_success
from wm_plugin.lab.evaluation.consistency import Episode
from wm_plugin.lab.evaluation.measures import write_lines


def w2r_rows(episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """Make rows in Word2World's W2R form, which `data.readers.word2world` reads.

    A conversation has the turns that were replayed; what the world model says after the real end is `after_the_end`. An episode
    without a replayed turn has no row: the form has no episode without an action.
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
    write_lines(w2r_rows(episodes), Path(path))


def turn_rows(episodes: Sequence[Episode]) -> Iterator[dict[str, Any]]:
    """Make a row for each turn that was played in both worlds, for `measures.write_rows`."""
    for one in episodes:
        if one.replayed is None:
            continue
        context = one.simulated.context.initial_state
        pairs = zip(_steps(one.simulated), _steps(one.replayed), strict=False)
        for number, ((action, predicted), (_, real)) in enumerate(pairs, 1):
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


def _steps(trajectory: Trajectory) -> list[tuple[str, str]]:
    """Write each turn as (react, observation), as the dialogues of `data.prompts` have them."""
    steps = []
    for turn in with_success(trajectory).turns:
        marked = [one.text + SUCCESS * (one.data.get("success") is True) for one in turn.observations]
        blocks = dict(sides([turn], [marked]))
        thought = words(turn.action.thought)
        thought = f"Thought: {thought}\n\nAction: " if thought else ""
        steps.append((thought + blocks["actor"], blocks.get("world", "")))
    return steps
