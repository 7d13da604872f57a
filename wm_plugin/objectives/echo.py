"""ECHO: the negative log-likelihood of environment tokens, added to the policy loss ("True Agents Model the World").

    L = L_policy + Σ_tool coeff(tool, step) · (1/N) · Σ_{selected environment tokens of tool} −log p(token)

There is no importance ratio, no clipping, no KL and no reward in the second term: a constant positive advantage. N is the number
of selected environment tokens in the whole optimizer batch, over all ranks and all gradient-accumulation micro-batches. With
`policy_loss` false the first term is left out (the paper's SFT-only arm).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import model_validator

from wm_plugin.objectives.base import Objective
from wm_plugin.options import option

# Of fields that a preset sets, one that is written beside it wins. docs/coefficient.md compares them.
# "True Agents Model the World": one count over the whole batch, policy and environment apart.
_BLOG = {"coeff": 0.05, "normalization": "selected_tokens"}
# "Terminal Agents Learn World Models for Free" (arXiv 2605.24517): 1/|O_i| inside a trajectory, then the mean over trajectories.
_PAPER = {"coeff": 0.05, "normalization": "per_trajectory", "include_errors": True}
# algo = "echo": roles.tool.alpha 0.1, the renderer's content tokens, one all-reduced count of these tokens.
_PRIME_RL = {"coeff": 0.1, "normalization": "selected_tokens", "roles": ("tool",), "include_errors": True}
# echo/: verl's agg_loss with seq-mean-token-mean over every sequence of the batch, and log-probabilities at temperature 0.8.
_VERL_RECIPE = {"coeff": 0.05, "normalization": "per_trajectory", "include_errors": True, "tempered": True}
# adv_estimator: echo with env_loss_coef 0.05: everything that the policy did not sample, a mean a sequence.
_RLLM = {"coeff": 0.05, "normalization": "per_trajectory", "content_only": False, "include_errors": True}
# examples/echo_world_model on TRL: completion_mask * (1 - tool_mask), a mean of each micro-batch.
_OPENENV = {"coeff": 0.1, "normalization": "per_micro_batch", "content_only": False, "include_errors": True}

PRESETS: dict[str, dict[str, Any]] = {
    "blog": _BLOG,
    "paper": _PAPER,
    "prime-rl": _PRIME_RL,
    "verl-recipe": _VERL_RECIPE,
    "rllm": _RLLM,
    "openenv": _OPENENV,
}
# null in a file: the preset's value, or the default
PRESET_FIELDS = frozenset(name for preset in PRESETS.values() for name in preset)


class EchoConfig(Objective):
    """What the objective counts, and how strongly. `EchoConfig(0.05)` is a complete configuration; `alpha` also names `coeff`.

    Raises:
        UserError: a value is out of its range; the message names the field, the value and what to write.
    """

    label: ClassVar[str] = "echo"

    preset: Literal["blog", "paper", "prime-rl", "verl-recipe", "rllm", "openenv"] | None = option(
        "The settings of another trainer's ECHO, such as paper or prime-rl, which set the coefficient, the normalization and the "
        "selection; what is written beside it wins (docs/coefficient.md compares them).",
        default=None,
    )

    @model_validator(mode="before")
    @classmethod
    def _put_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        written = {name: value for name, value in values.items() if value is not None or name not in PRESET_FIELDS}
        if written.get("preset") == "prime":
            written["preset"] = "prime-rl"
        preset = written.get("preset")
        return {**PRESETS.get(preset, {}), **written} if isinstance(preset, str) else written

    @property
    def preset_name(self) -> str | None:
        return self.preset

    def loss(self, logps: torch.Tensor, weights: torch.Tensor, num_tokens: torch.Tensor | float) -> torch.Tensor:
        """Return the mean NLL's share; see `echo_loss`."""
        return echo_loss(logps, weights, num_tokens)


def echo_loss(logps: torch.Tensor, weights: torch.Tensor, num_tokens: torch.Tensor | float) -> torch.Tensor:
    """Compute Σ weight · −log p / N over a batch's tokens: the second term of the objective, without its coefficient.

    Summed over every micro-batch and rank of an optimizer step, this is exactly the term, whatever the split.

    Args:
        logps: (B, T) log-probabilities of the tokens under the current policy, with gradient.
        weights: (B, T) weight of each token; 0 = the token does not count.
        num_tokens: N of the **whole** optimizer batch, a scalar. 0 counts as 1: a batch without environment tokens adds 0.

    Returns:
        0-d tensor in at least float32. Differentiable in `logps`, also when nothing is selected.
    """
    logps = logps.to(torch.promote_types(logps.dtype, torch.float32))
    # `where`, not a product: a log-probability of -inf at a token that does not count must not turn the sum into NaN.
    total = -(torch.where(weights != 0, logps, torch.zeros_like(logps)) * weights).sum()
    return total / (num_tokens.clamp(min=1) if isinstance(num_tokens, torch.Tensor) else max(num_tokens, 1))
