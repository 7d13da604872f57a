"""A reward for what the policy predicts inside an episode: before it acts, it writes what it expects to observe (as in VAGEN).

    s_k = reward(prediction of turn k, observation of turn k)                     0 without a prediction
    level turn:   A_t += coeff · (s_k − mean of the group's s)                    for the tokens t of turn k (`objectives.turns`)
    level sum:    R   += coeff · Σ_k s_k
    level mean:   R   += coeff · mean_k s_k

The turns of an episode that are scored, and what each of them is scored against, `hosting.predictions` decides.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from wm_plugin.errors import UserError, check_keys, shown
from wm_plugin.options import Number, Options, option, parsed
from wm_plugin.rewards.extract import check_tag
from wm_plugin.rewards.hosted import HostedReward, RewardError
from wm_plugin.rewards.make import make

FIELD = "prediction_reward"
_RESERVED = ("think", "action")  # tags of the protocol


def _spec(value: Any) -> Any:
    """Check a reward's description without making the reward, which may load a model."""
    value = parsed(value)
    if isinstance(value, str):
        value = {"path": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("path"), str):
        if callable(value) and not isinstance(value, type):
            return value
        raise UserError(f"reward is {shown(value)}; write a name, or {{path: NAME, kwargs: {{...}}}}")
    check_keys("reward", value, ("path", "kwargs"))
    from wm_plugin.rewards import REWARDS

    REWARDS.get(value["path"])
    kwargs = value.get("kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise UserError(f"reward: kwargs is {shown(kwargs)}; write the arguments of {value['path']} by name")
    if kwargs.get("tag") is not None:
        raise UserError(f"reward: tag is {shown(kwargs['tag'])}; leave it out, and write tag beside the reward")
    return {"path": value["path"], **({"kwargs": dict(kwargs)} if kwargs else {})}


def _tag(value: str) -> str:
    check_tag(value)
    if not value or value in _RESERVED:
        raise UserError(f"tag is {shown(value)}; write a name of its own, such as prediction")
    return value


class PredictionReward(Options):
    """A reward for predictions that the policy writes in its turns, before it acts."""

    example = "{reward: exact, coeff: 0.1}"

    reward: Annotated[Any, BeforeValidator(_spec)] = option(
        "What scores a prediction against the observation: a name (exact, rouge, embedding, json, rubric, ...), or {path: NAME, "
        "kwargs: {...}}, without a tag.",
        default={"path": "exact"},
    )
    coeff: Number = option(
        "The factor of the scores. 0: predictions are scored and logged, and the run is as without the block.",
        default=0.1,
        ge=0,
    )
    level: Literal["turn", "sum", "mean"] = option(
        "What a score counts for. turn: an advantage of its turn's tokens, compared with the mean over the scored turns of the "
        "group. sum, mean: the sum or the mean over an episode's scored turns is added to its reward.",
        default="turn",
    )
    tag: Annotated[str, AfterValidator(_tag)] = option(
        "The tag around a prediction. What stands in it is not acted on.", default="prediction"
    )
    ask: bool = option(
        "Ask for predictions at the end of the first observation. false: the prompts do, or the policy knows.",
        default=True,
    )

    @property
    def left_out(self) -> str | None:
        """The tag whose content is left out before an answer's actions are parsed; None at coefficient 0."""
        return self.tag if self.coeff else None

    @property
    def of_turns(self) -> bool:
        """Whether the scores become advantages of turns."""
        return self.coeff > 0 and self.level == "turn"

    @property
    def of_episodes(self) -> bool:
        """Whether the scores become part of the episode's reward."""
        return self.coeff > 0 and self.level != "turn"

    def bonus(self, scores: Sequence[float | None]) -> float:
        """Return what an episode's reward gains by the scores of its turns; None: the turn is not scored."""
        counted = [score for score in scores if score is not None]
        if not self.of_episodes or not counted:
            return 0.0
        return self.coeff * sum(counted) / (len(counted) if self.level == "mean" else 1)

    def scores(
        self, predictions: Sequence[str | None], targets: Sequence[str], columns: Mapping[str, Sequence[Any]]
    ) -> list[float | None]:
        """Score predictions; one that is None scores 0, whatever the reward.

        Args:
            columns: a value for each prediction; the reward gets those that it takes.

        Returns:
            A score each; None where the reward gives none.

        Raises:
            UserError: the reward does not exist, lacks a column, or failed.
        """
        scorer, lock = _scorer(self)
        rows = [row for row, prediction in enumerate(predictions) if prediction is not None]
        if not rows:
            return [0.0] * len(predictions)
        of_rows = {name: [values[row] for row in rows] for name, values in columns.items()}
        texts = [predictions[row] for row in rows], [targets[row] for row in rows], scorer.columns(of_rows)
        try:
            with lock:
                result: Any = scorer.function(*texts[:2], **texts[2])
                if asyncio.iscoroutine(result):
                    result = asyncio.run(result)
        except UserError:
            raise
        except Exception as error:
            result = error
        found: list[float | None] = [0.0] * len(predictions)
        for row, outcome in zip(rows, scorer.outcomes(result, len(rows)), strict=True):
            if isinstance(outcome, RewardError):
                raise UserError(f"{FIELD}: {outcome}")
            found[row] = None if outcome is None or outcome != outcome else outcome
        return found


@lru_cache(maxsize=8)
def _scorer(options: PredictionReward) -> tuple[HostedReward, Any]:
    """Make a run's reward, once in a process. Those that ask a server are called by several episodes at the same time."""
    field, spec = f"{FIELD}.reward", options.reward
    name = spec["path"] if isinstance(spec, Mapping) else getattr(spec, "__name__", type(spec).__name__)
    reward = HostedReward(str(name), make(spec, field=field), optional=True, outputs=False)
    return reward, threading.Lock() if reward.call_async is None else nullcontext()
