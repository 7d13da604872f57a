"""Decide an episode in a world model: by its mark of success, the world's own check of an answer, a judge of the whole
trajectory, or a rule on the answer.

* `predicted`: the reward is 1 where the world model has marked a success.
* `answer`: of worlds that answer by a tool (`answer_tool` of the class), the world's own reward for that answer (`Session`).
* `verifier`: a reward of `wm_plugin.rewards` gets the trajectory as text instead of a prediction, the task instead of the
  observation, and the row's columns by their names, as in a trainer: a judge reads `context`, which may hold a rubric. Judges
  put texts between markers that these cannot forge (`rewards.delimit`). The judges' prompt `verifier` asks whether the task was
  done. A trajectory of more than a judge's `max_chars` is shortened first (`as_told`).
* `rule`: a function of the agent's answer (the argument of the tool of answers, or else its last words without a call) and the
  row's columns. One that fails on an answer gives 0.

An episode that was lost has the reward 0, and nobody is asked.
"""

import json
import logging
import math
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from wm_plugin.data.render import write_context, write_history
from wm_plugin.data.schema import Call, Turn
from wm_plugin.errors import UserError
from wm_plugin.registry import import_object
from wm_plugin.rewards.judge import JudgedReward
from wm_plugin.rewards.make import make
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

if TYPE_CHECKING:
    from wm_plugin.worlds.wrappers.simulated_session import Session

logger = logging.getLogger(__name__)

_SIZES = (1000, 300, 80)  # characters that stay of a text, where a judge cannot read all
_MOST_ARGUMENTS = 300  # characters that stay of a call's arguments
_NOTE = 60  # characters of a line that says what is missing, at most
_ARGUMENTS = {"self", "predictions", "targets"}  # of a reward, which no column may take the place of


def judge(sessions: Sequence["Session"]) -> None:
    """Score the episodes that a verifier or a rule decides and that have no score yet.

    Raises:
        UserError: there is no such verifier or rule, or the verifier's server failed too often.
    """
    waiting = [
        one for one in sessions if one.config.success in ("verifier", "rule") and one.score is None and not one.lost
    ]
    for config in {one.config for one in waiting}:
        own = [one for one in waiting if one.config == config]
        scores = [_ruled(config, one) for one in own] if config.success == "rule" else _verified(config, own)
        for one, score in zip(own, scores, strict=True):
            if math.isfinite(score):
                one.score = score
            else:  # the judge's server failed
                one.lost, one.score = 1, 0.0


def _ruled(config: SimulationConfig, session: "Session") -> float:
    try:
        score = float(_rule(str(config.rule))(session.answer, dict(session.columns)))
        if not math.isfinite(score):
            raise ValueError(f"it gives {score}")
        return score
    except UserError:
        raise
    except Exception as error:  # the answer is a policy's
        logger.warning("%s failed on an answer, which gets 0 (%s: %.200s)", config.rule, type(error).__name__, error)
        return 0.0


@lru_cache
def _rule(path: str) -> Callable[..., Any]:
    rule: Callable[..., Any] = import_object(path, field="simulation.rule")
    if not callable(rule):
        raise UserError(f"simulation.rule: {path} is no function")
    return rule


def _verified(config: SimulationConfig, sessions: Sequence["Session"]) -> list[float]:
    verifier, texts, tasks = _verifier(config), [], []
    most = verifier.max_chars if isinstance(verifier, JudgedReward) else sys.maxsize
    for one in sessions:
        trajectory = one.trajectory
        texts.append(as_told(trajectory.turns, one.words, most))
        tasks.append(write_context(trajectory.context.model_copy(update={"simulation_instruction": ""})))
    names = dict.fromkeys(name for one in sessions for name in one.columns if name not in _ARGUMENTS)
    columns = {name: [one.columns.get(name) for one in sessions] for name in names}
    return [float(score) for score in verifier(texts, tasks, **columns)]


def as_told(turns: Sequence[Turn], words: str, most: int) -> str:
    """Write an episode for a judge, in at most so many characters: what the agent did and saw, and its last words.

    The end says what it came to. Where there is too much, the texts of the oldest turns lose their middles first, more and more
    of them, while calls stay; then the oldest turns are left out. Lines say what is missing.
    """
    turns = [_seen(turn) for turn in turns]
    blocks = [write_history([turn], number) for number, turn in enumerate(turns)]
    if words.strip():
        blocks.append(f"Agent (at the end):\n{_without_middle(words, most // 2)}")
    excess = sum(len(block) + 2 for block in blocks) - 2 - most
    for size in _SIZES:
        for number, turn in enumerate(turns):
            if excess <= 0:
                break
            block = write_history([_short(turn, size)], number)
            excess += len(block) - len(blocks[number])
            blocks[number] = block
    start = 0
    while start < len(blocks) - 1 and excess + (_NOTE if start else 0) > 0:
        excess -= len(blocks[start]) + 2
        start += 1
    notes = [f"(left out here: turns 1 to {start})"] if start else []
    text = "\n\n".join([*notes, *blocks[start:]]) or "Nothing was done."
    if len(text) <= most:
        return text
    end = text[len(text) - max(most - _NOTE, 1) :]  # one turn alone is too long
    return f"(cut here: {len(text) - len(end)} characters)\n{end}"


def _seen(turn: Turn) -> Turn:
    """Return a turn as the agent saw it: without what the world model was told of its calls."""
    plain = (one.model_copy(update={"data": {}}) for one in turn.observations)
    return turn.model_copy(update={"observations": tuple(plain)})


def _short(turn: Turn, size: int) -> Turn:
    """Return a turn whose texts have about so many characters."""
    seen = (one.model_copy(update={"text": _without_middle(one.text, size)}) for one in turn.observations)
    calls = (_short_call(call) for call in turn.action.calls)
    action = turn.action.model_copy(update={"text": _without_middle(turn.action.text, size), "calls": tuple(calls)})
    return turn.model_copy(update={"action": action, "observations": tuple(seen)})


def _short_call(call: Call) -> Call:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    if len(arguments) <= _MOST_ARGUMENTS:
        return call
    return call.model_copy(update={"arguments": _without_middle(arguments, _MOST_ARGUMENTS)})


def _without_middle(text: str, size: int) -> str:
    half, left_out = size // 2, len(text) - size
    return (
        text if left_out <= _NOTE else f"{text[:half]}\n(cut here: {left_out} characters)\n{text[len(text) - half :]}"
    )


@lru_cache(maxsize=8)
def _verifier(config: SimulationConfig) -> Callable[..., Sequence[float]]:
    return make(config.verifier, field="simulation.verifier")
