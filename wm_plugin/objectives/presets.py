"""The settings under which other trainers have the objective: what each sets, and where that stands.

A preset sets fields of `EchoConfig`; a field that is written beside it wins. All of them are sums over the same log-probabilities
and differ in what is selected and in what it is divided by. docs/echo.md compares them.
"""

from typing import Any

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
FIELDS = frozenset(
    name for preset in PRESETS.values() for name in preset
)  # null in a file: the preset's value, or the default
