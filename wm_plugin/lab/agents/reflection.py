"""Self-reflection: a strong model that knows each action's outcome writes why the expert's action is the better one.

RWML's baseline (section 3.1, appendices B.3 and C.4). The prompt is our own.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from wm_plugin.client.predict import Predictor
from wm_plugin.data.chat import action_message, chat
from wm_plugin.data.constructions import columns
from wm_plugin.data.sample import Sample
from wm_plugin.data.schema import Trajectory, Turn
from wm_plugin.lab.agents.alternatives import Propose, branch
from wm_plugin.tokens.harmless import harmless
from wm_plugin.tokens.message import Message

Ask = Callable[[list[list[Message]]], list[str | None]]  # conversations -> a reply, or None, for each
MAX_CHARS = 3000  # longer thoughts are left out

INSTRUCTION = Path(__file__).with_name("reflection.txt").read_text(encoding="utf-8").removesuffix("\n")


class _State(NamedTuple):
    trajectory: Trajectory
    number: int  # the turn's
    others: list[Turn]


def reflection(
    trajectories: Iterable[Trajectory],
    environment: Any,
    propose: Propose,
    ask: Ask,
    *,
    alternatives: int = 3,
    inline: bool = False,
    max_chars: int = MAX_CHARS,
    batch: int = 64,
    counts: Counter[str] | None = None,
) -> Iterator[Sample]:
    """Yield a sample for each state of an expert: the history, then a thought that compares actions, and the expert's action.

    Only the thought and the action are trained on.

    Args:
        trajectories, environment, propose, alternatives: as in `alternatives.iwm`. States without another action are left out.
        ask: answers conversations; for a server `asking(ServerPredictor(...))`.
        inline: write the thought as `<think>...</think>` before the content. By default it is `reasoning_content`, which the chat
            templates of models without a thinking mode drop.
        max_chars: longer thoughts are left out. The strong model's own thinking, up to `</think>`, does not count.
        batch: how many conversations to ask at once.
        counts: counts `samples`, dropped replies (`no reply`, `empty`, `too long`), states with `no alternative`, and skipped
            trajectories by reason.
    """
    counts = Counter() if counts is None else counts
    states = _states(trajectories, environment, propose, alternatives, counts)
    while some := list(islice(states, batch)):
        for state, reply in zip(some, ask([question(*state) for state in some]), strict=True):
            thought = None if reply is None else _thought(reply)
            if not thought or len(thought) > max_chars:
                counts["no reply" if thought is None else "too long" if thought else "empty"] += 1
                continue
            counts["samples"] += 1
            yield _sample(state, thought, inline)


def question(trajectory: Trajectory, number: int, others: Iterable[Turn]) -> list[Message]:
    """Write the conversation that asks for a turn's thought.

    The trajectory's texts stand inside JSON strings only, with the control tokens of chat templates made harmless.
    """
    situation = {
        "conversation": chat(trajectory.context, trajectory.turns[:number]),
        "chosen": _action_and_answers(trajectory.turns[number]),
        "others": [_action_and_answers(turn) for turn in others],
    }
    return [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": harmless(json.dumps(situation, ensure_ascii=False))},
    ]


def asking(predictor: Predictor, seed: int = 0) -> Ask:
    """Make an `ask` of a predictor: one reply for each conversation."""
    return lambda conversations: [
        replies[0] if replies else None for replies in predictor(conversations, k=1, seed=seed)
    ]


def _states(
    trajectories: Iterable[Trajectory], environment: Any, propose: Propose, alternatives: int, counts: Counter[str]
) -> Iterator[_State]:
    for trajectory in trajectories:
        for number, others in enumerate(branch(trajectory, environment, propose, alternatives, counts) or ()):
            if others:
                yield _State(trajectory, number, others)
            else:
                counts["no alternative"] += 1


def _thought(reply: str) -> str:
    text = reply.rpartition("</think>")[2].strip()
    return "" if "<think>" in text else text  # the reply was cut off inside its thinking


def _action_and_answers(turn: Turn) -> dict[str, Any]:
    action: dict[str, Any] = {"text": turn.action.text} if turn.action.text else {}
    if turn.action.calls:
        action["calls"] = [{"name": call.name, "arguments": call.arguments} for call in turn.action.calls]
    return {"action": action, "answers": [observation.text for observation in turn.observations]}


def _sample(state: _State, thought: str, inline: bool) -> Sample:
    trajectory, number, _ = state
    action = trajectory.turns[number].action
    update = (
        {"text": f"<think>\n{thought}\n</think>\n\n{action.text}", "thought": None} if inline else {"thought": thought}
    )
    messages = [
        *chat(trajectory.context, trajectory.turns[:number]),
        action_message(action.model_copy(update=update), number),
    ]
    return Sample(
        messages=messages,
        train=[False] * (len(messages) - 1) + [True],
        tools=trajectory.context.action_space,
        columns={**columns(trajectory, "reflection"), "turn": number},
    )
