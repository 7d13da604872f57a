"""Predictions inside an episode on TRL: which runs can have them, and scores of turns as advantages of their tokens."""

from collections.abc import Iterable
from typing import Any

import torch
import trl
from accelerate.utils import gather_object

from wm_plugin.errors import UserError
from wm_plugin.hosting.predictions import prediction_reward, turn_scores
from wm_plugin.objectives.turns import on_tokens, turn_advantages
from wm_plugin.rewards.prediction import PredictionReward
from wm_plugin.trl import _compat


def of(environments: Iterable[Any]) -> PredictionReward | None:
    """Return the prediction reward of classes or instances of environments; None if they have none.

    Raises:
        UserError: they have several, or some have one and others none.
    """
    found = {prediction_reward(environment) for environment in environments}
    if len(found) > 1:
        raise UserError(
            "the environments have different prediction rewards: write one prediction_reward for all of them"
        )
    return next(iter(found), None)


def check(options: PredictionReward, args: Any) -> None:
    """Refuse a run in which scores of turns cannot become advantages of their tokens.

    Args:
        args: the trainer's.
    """
    if _compat.installed() < _compat.ENVIRONMENT_POOLS:
        raise UserError(
            f"prediction_reward needs trl>={_compat.ENVIRONMENT_POOLS}, and trl {trl.__version__} is installed"
        )
    if options.of_turns and args.importance_sampling_level != "token":
        raise UserError(
            f"importance_sampling_level is {args.importance_sampling_level}: one ratio for all turns would put a turn's "
            "advantage on all tokens; write importance_sampling_level: token, or prediction_reward.level: sum"
        )
    if options.of_turns and args.use_liger_kernel:
        raise UserError(
            "use_liger_kernel takes one advantage a completion, and prediction_reward.level: turn has one a turn; write "
            "use_liger_kernel: false, or prediction_reward.level: sum"
        )


def advantages(
    environments: Iterable[Any], sampled: torch.Tensor, coeff: float, *, group_size: int, process: int
) -> torch.Tensor:
    """Return (B, T), what the scores of turns add to the advantages of this rank's completions.

    Args:
        environments: the completions' own, B of them.
        sampled: (B, T), 1 = the policy sampled the token.
        group_size: completions of a prompt.
        process: this rank's number.
    """
    own = [turn_scores(environment) for environment in environments]
    scores = gather_object(own)
    groups = [row // group_size for row in range(len(scores))]
    start = process * len(own)
    return on_tokens(turn_advantages(scores, groups, coeff)[start : start + len(own)], sampled)
