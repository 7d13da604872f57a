"""What decides an episode in a world model: its mark of success, the world's own check of an answer, a judge of the whole
trajectory, or a rule on the answer.

* `predicted`: the reward is 1 where the world model has marked a success.
* `answer`: of worlds that answer by a tool (`answer_tool` of the class), the world's own reward for that answer (`Session`).
* `verifier`: a reward of `wm_plugin.rewards` is given the trajectory as text in the place of a prediction, the task in the place
  of what was observed, and the row's columns by their names, as in a trainer: a judge reads `context`, which may hold a rubric.
  Judges put texts between markers that these cannot forge (`rewards.delimit`). The prompt `verifier` of the judges asks
  whether the task was done.
* `rule`: a function of the agent's answer (the argument of the tool of answers, or else its last words without a call) and the
  row's columns. One that fails on an answer gives 0.

An episode that was lost has the reward 0, and nobody is asked.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from wm_plugin.environments.simulated_session import Session
from wm_plugin.environments.simulation_config import SimulationConfig
from wm_plugin.errors import UserError
from wm_plugin.registry import import_object
from wm_plugin.rewards.make import make
from wm_plugin.trajectories.render import write_context, write_history
from wm_plugin.trajectories.schema import Turn

logger = logging.getLogger(__name__)

_ARGUMENTS = {"self", "predictions", "targets"}  # of a reward, which no column may take the place of


def judge(sessions: Sequence[Session]) -> None:
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


def _ruled(config: SimulationConfig, session: Session) -> float:
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


def _verified(config: SimulationConfig, sessions: Sequence[Session]) -> list[float]:
    texts, tasks = [], []
    for one in sessions:
        trajectory = one.trajectory
        told = [
            write_history([_seen(turn) for turn in trajectory.turns]),
            f"Agent (at the end):\n{one.words}" if one.words.strip() else "",
        ]
        texts.append("\n\n".join(filter(None, told)) or "Nothing was done.")
        tasks.append(write_context(trajectory.context.model_copy(update={"simulation_instruction": ""})))
    names = dict.fromkeys(name for one in sessions for name in one.columns if name not in _ARGUMENTS)
    columns = {name: [one.columns.get(name) for one in sessions] for name in names}
    return [float(score) for score in _verifier(config)(texts, tasks, **columns)]


def _seen(turn: Turn) -> Turn:
    """A turn as the agent saw it: without what the world model was told of its calls."""
    plain = (one.model_copy(update={"data": {}}) for one in turn.observations)
    return turn.model_copy(update={"observations": tuple(plain)})


@lru_cache(maxsize=8)
def _verifier(config: SimulationConfig) -> Callable[..., Sequence[float]]:
    return make(config.verifier, field="simulation.verifier")
