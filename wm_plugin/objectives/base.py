"""The base of all objectives over environment tokens: which tokens count, and how much.

An objective is one class in one file: its options, and the methods of `Objective` that it overrides. Hosts pass tensors to
these methods, and loop over a run's objectives (`run`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.objectives import metrics
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.guard import GuardConfig, as_guard
from wm_plugin.objectives.information import KEEP
from wm_plugin.objectives.schedule import scheduled
from wm_plugin.objectives.weigh import weigh
from wm_plugin.options import Names, Number, Options, Parsed, Whole, names, option
from wm_plugin.registry import import_object
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.spans import Origin, Role, Span

Multiplier = Annotated[Number, Field(ge=0)]
Roles = Annotated[tuple[Role, ...] | dict[Role, Multiplier], BeforeValidator(names)]
Normalization = Literal["selected_tokens", "observation_tokens", "per_trajectory", "per_role", "per_micro_batch"]
TURN_RATIOS = 'true, false, or ratios, e.g. {"echo": 0.05}'


def _imported(value: Any, field: ValidationInfo) -> Any:
    return import_object(value, field=field.field_name or "select") if isinstance(value, str) else value


def _ratios(value: Any) -> Any:
    """Return False, or the ratio of every category."""
    if isinstance(value, bool):
        return dict(KEEP) if value else False
    if not isinstance(value, Mapping):
        raise ValueError
    for name, ratio in value.items():
        if name not in KEEP:
            raise UserError(f"turn_information has no category {name!r}{nearest(name, KEEP)}")
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < math.inf:
            raise UserError(
                f"turn_information[{name!r}] is {shown(ratio)}; write a ratio > 0; 0 would change N: leave tools out with "
                "`tools`, and single results with `select`"
            )
    return {**KEEP, **value}


class Objective(Options):
    """An objective's options and arithmetic. A subclass defines `loss`, and overrides what else differs.

    Raises:
        UserError: a value is out of its range; the message names the field, the value and what to write.
    """

    label: ClassVar[str] = "wm"  # its figures are <label>/<figure>
    aliases = {"alpha": "coeff"}  # noqa: RUF012 - pydantic reads the type from the base

    coeff: Number = option(
        "Coefficient of the world-model term (ECHO's alpha). 0 turns it off.",
        default=0.0,
        ge=0,
        write="a number >= 0; 0 turns the objective off",
    )
    tools: Annotated[Names | dict[str, Multiplier] | None, Parsed] = option(
        "Which tools' responses count: null for all of them, a list of names, or {name: multiplier of coeff}. "
        "A tool that is not named is off.",
        default=None,
        write="a list of names, e.g. ['search'], or {name: multiplier of coeff >= 0}",
    )
    roles: Roles | None = option(
        "Which roles count: null for all of them, a list, e.g. ['tool', 'user'], or {role: multiplier of coeff}. A role that "
        "is not named is off.",
        default=None,
        write="a list of roles, e.g. ['tool'], or {role: multiplier of coeff >= 0}",
    )
    content_only: bool = option("Leave out chat-template scaffold around the content (headers, tags).", default=True)
    include_errors: bool = option(
        "Count error texts that the host wrote (unknown tool, exception, timeout). Those that a tool returned always count.",
        default=False,
    )
    include_truncated: bool = option(
        "Count the environment tokens of completions that were cut at the length limit.", default=True
    )
    min_token_nll: Number | None = option(
        "Leave out tokens that the model already predicts better than this (nats).", default=None, ge=0
    )
    max_token_nll: Number | None = option(
        "Leave out tokens that the model predicts worse than this (nats).", default=None, ge=0
    )
    normalization: Normalization = option(
        "What a token's loss is divided by: 'selected_tokens' or 'observation_tokens' (every environment token before any "
        "selection) of the whole optimizer batch; 'per_trajectory', for the mean over trajectories of each one's mean; "
        "'per_role', the selected tokens of its role; 'per_micro_batch', whose sum depends on how a batch is split.",
        default="selected_tokens",
    )
    schedule: Literal["constant", "linear", "cosine", "step"] = option(
        "How coeff moves to end_coeff: 'constant', 'linear', 'cosine' or 'step'.", default="constant"
    )
    schedule_steps: Whole | None = option(
        "Steps until end_coeff is reached: TRL's optimizer steps, verl's global steps.", default=None, ge=1
    )
    end_coeff: Number = option("The coefficient after schedule_steps.", default=0.0, ge=0)
    select: Annotated[Callable[[Span, Mapping[str, Any] | None], bool] | None, BeforeValidator(_imported)] = option(
        "A function (span, message) -> bool that has the last word on a span; in files package.module:function.",
        default=None,
        write="a function (span, message) -> bool",
    )
    select_rollout: Annotated[Callable[[Sequence[Message], float], bool] | None, BeforeValidator(_imported)] = option(
        "A function (messages, reward) -> bool of a completion, for example of failures alone; where it is false, none of its "
        "tokens count, and neither does the trajectory. In files package.module:function. Evaluations cover all of them.",
        default=None,
        write="a function (messages, reward) -> bool",
    )
    guard: Annotated[GuardConfig | None, BeforeValidator(as_guard), Parsed] = option(
        "Lower the coefficient when the held-out NLL rises in k evaluations in a row while the training NLL falls, or when the "
        "policy's entropy falls under a share of its start: true, or some of {k: 3, factor: 0.5, share: 0.2, sets: null}.",
        default=None,
        write="true, or some of {k: 3, factor: 0.5, share: 0.2, sets: null}",
    )
    zero_variance_groups: Literal["keep", "drop", "refill"] = option(
        "What to do with groups whose rewards are all equal: 'keep' their world-model gradient; 'drop' it, so that N no longer "
        "counts them while the host's own normaliser does; or 'refill', as the paper does: sample other prompts instead until "
        "every group has an advantage.",
        default="keep",
    )
    max_refills: Whole = option(
        "With 'refill': how many batches of further prompts a batch may take. Groups that still have no advantage then stay in "
        "the batch, and their environment tokens do not count.",
        default=10,
        ge=1,
    )
    tempered: bool = option(
        "Accept log-probabilities at a sampling temperature other than 1; the metrics say so.", default=False
    )
    turn_information: Annotated[dict[str, float] | bool, BeforeValidator(_ratios), Parsed] = option(
        "Weigh each observation by how much of the world it shows (Qwen-AgentWorld, table 3): true for the paper's ratios "
        "(echo 0.05, boilerplate 0.1, transform 0.5, everything else 1), or {category: ratio} for others. N does not change.",
        default=False,
        write=TURN_RATIOS,
    )
    on_silence: Literal["warn", "stop"] = option(
        "What to do if the coefficient is above 0 but optimizer batches have no token that counts: 'warn' once, with the likely "
        "causes, or also 'stop' the run after silent_batches of them.",
        default="warn",
    )
    silent_batches: Whole = option(
        "How many optimizer batches in a row may have no token that counts (TRL's optimizer steps, verl's global steps).",
        default=3,
        ge=1,
        write="a whole number of optimizer batches >= 1",
    )
    policy_loss: bool = option(
        "false leaves the host's loss out and trains on environment tokens alone: the paper's SFT-only arm, which did worse "
        "on its tasks. Rollouts, rewards and advantages are made and logged as before. Needs a coefficient above 0 throughout.",
        default=True,
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (
            self.min_token_nll is not None
            and self.max_token_nll is not None
            and self.min_token_nll > self.max_token_nll
        ):
            raise UserError(
                f"min_token_nll is {self.min_token_nll}, above max_token_nll {self.max_token_nll}: no token would count"
            )
        if self.schedule != "constant" and self.schedule_steps is None:
            raise UserError(f"schedule {self.schedule!r} has no length; write schedule_steps, e.g. the run's max_steps")
        # a value that has no effect would be mistaken for a setting that works
        for name, needs, works in (
            ("schedule_steps", "schedule: linear, cosine or step", self.schedule != "constant"),
            ("end_coeff", "schedule: linear, cosine or step", self.schedule != "constant"),
            ("max_refills", "zero_variance_groups: refill", self.refills),
        ):
            if not works and getattr(self, name) != type(self).model_fields[name].default:
                raise UserError(f"{name} has no effect without {needs}; write that, or leave {name} out")
        if not self.policy_loss:
            last = "coeff" if self.schedule == "constant" else "end_coeff"
            for name, value in (("coeff", self.coeff), (last, getattr(self, last))):
                if value == 0:
                    raise UserError(
                        f"policy_loss is false and {name} is 0: nothing would be trained; write {name} above 0"
                    )
            if self.guard is not None and self.guard.factor == 0:
                raise UserError(
                    "policy_loss is false and guard.factor is 0: nothing would be trained; write guard.factor above 0"
                )
            if self.why_nothing_counts:
                raise UserError(f"policy_loss is false, and nothing would be trained: {self.why_nothing_counts}")
        if self.normalization == "per_role" and not self.roles:
            raise UserError(
                "normalization per_role divides by each role's tokens; name the roles, e.g. roles: [tool, user]"
            )
        return self

    @property
    def coeff_given(self) -> bool:
        """Whether the coefficient was written, which tells a 0 from a forgotten one."""
        return "coeff" in self.model_fields_set

    @property
    def active(self) -> bool:
        """Whether the coefficient is above 0 at any step."""
        return self.coeff > 0 or (self.schedule != "constant" and self.end_coeff > 0)

    @property
    def has_bounds(self) -> bool:
        """Whether a floor or a ceiling may leave selected tokens out of the loss."""
        return self.min_token_nll is not None or self.max_token_nll is not None

    @property
    def refills(self) -> bool:
        """Whether groups without an advantage are replaced, also at coefficient 0."""
        return self.zero_variance_groups == "refill"

    @property
    def why_nothing_counts(self) -> str | None:
        """Return why no token can ever count; None if some may."""
        if self.roles is not None and not any(self.role_multiplier(role) for role in self.roles):
            empty = "is empty" if not self.roles else "gives every role that it names the multiplier 0"
            return f"roles {empty}, and a role that is not named is off; write null for all of them"
        if self.tools is None or any(self.tool_multiplier(name) for name in self.tools):
            return None
        if not self.tools:
            return "tools is empty, and a tool that is not named is off; write null for all of them"
        return "tools gives every tool that it names the multiplier 0, and a tool that is not named is off"

    @property
    def preset_name(self) -> str | None:
        """Return the trainer whose settings these are, for an objective that has presets."""
        return None

    @property
    def notice(self) -> str | None:
        """Return the notice that the policy loss is left out, for before the first step; None if it is not."""
        if self.policy_loss:
            return None
        return (
            "policy_loss is false: the policy loss is left out, and the run trains on environment tokens alone (logged as "
            "policy_silent: 1); the paper's SFT-only arm did worse on its tasks"
        )

    @property
    def tool_names(self) -> tuple[str, ...] | None:
        """Return the named tools, or None for all of them."""
        return None if self.tools is None else tuple(self.tools)

    def coeff_at(self, step: int) -> float:
        """Return the coefficient at optimizer step `step` (0-based)."""
        return scheduled(self.schedule, self.coeff, self.end_coeff, self.schedule_steps, step)

    def tool_multiplier(self, tool: str | None) -> float:
        """Return the multiplier of `coeff` for a tool's tokens, 0 if it is off. None stands for tokens that no tool wrote."""
        if self.tools is None:
            return 1.0
        if isinstance(self.tools, Mapping):
            return self.tools.get(tool, 0.0) if tool is not None else 0.0
        return float(tool in self.tools)

    def role_multiplier(self, role: str) -> float:
        """Return the multiplier of `coeff` for tokens of a role, 0 if it is off."""
        if isinstance(self.roles, Mapping):
            return self.roles.get(role, 0.0)  # type: ignore[call-overload, no-any-return]
        return float(self.roles is None or role in self.roles)

    # -- what a host calls, in a run's order ---------------------------------------------------------------------------------

    def weigh(
        self, origins: Iterable[Origin], *, dropped: str | None = None, tally: Tally | None = None
    ) -> list[tuple[Span, float]]:
        """Return a completion's spans, each with the weight of its tokens; see `weigh.weigh`."""
        return weigh(origins, self, dropped=dropped, tally=tally)

    def share(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the weights (B, T) of whole completions as the loss takes them: each row's over its number of selected tokens
        with `per_trajectory`, else unchanged.
        """
        if self.normalization != "per_trajectory":
            return weights
        return weights / torch.count_nonzero(weights, dim=1).clamp(min=1).unsqueeze(1)

    def count(self, weights: torch.Tensor, environment_mask: torch.Tensor, rows: int) -> torch.Tensor:
        """Return what a batch adds to N, as a 0-d int64 tensor: a count of tokens or trajectories, not a sum of weights.

        Args:
            weights: (B, T) weight of each token; 0 = not selected.
            environment_mask: (B, T), 1 = a non-padding environment token, before any selection.
            rows: the batch's trajectories, also those without environment tokens, but none that are left out as a whole.
        """
        if self.normalization == "per_trajectory":
            return torch.tensor(rows, device=weights.device)
        return torch.count_nonzero(environment_mask if self.normalization == "observation_tokens" else weights)

    def denominator(self, weights: torch.Tensor, num_tokens: torch.Tensor | float, ranks: int) -> torch.Tensor | float:
        """Return what a micro-batch's loss is divided by: N, or with `per_micro_batch` its own selected tokens.

        Args:
            weights: (B, T), the micro-batch's. num_tokens: N of the whole optimizer batch.
            ranks: how many ranks the term is summed over; the mean over them is wanted where each divides by its own tokens.
        """
        return ranks * torch.count_nonzero(weights) if self.normalization == "per_micro_batch" else num_tokens

    def within_bounds(self, logps: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Set `weights` (B, T) to 0 where the current token NLL is outside [min_token_nll, max_token_nll]. N does not change."""
        nll = -logps.detach()
        if self.min_token_nll is not None:
            weights = torch.where(nll >= self.min_token_nll, weights, torch.zeros_like(weights))
        if self.max_token_nll is not None:
            weights = torch.where(nll <= self.max_token_nll, weights, torch.zeros_like(weights))
        return weights

    @classmethod
    def has_loss(cls) -> bool:
        """Return whether the class defines `loss`; without it nothing can be trained."""
        return cls.loss is not Objective.loss

    def loss(self, logps: torch.Tensor, weights: torch.Tensor, num_tokens: torch.Tensor | float) -> torch.Tensor:
        """Return the term without its coefficient. Summed over an optimizer step's micro-batches and ranks, it is exact.

        Args:
            logps: (B, T) log-probabilities of the tokens under the current policy, with gradient.
            weights: (B, T) weight of each token, within bounds; 0 = the token does not count.
            num_tokens: N of the whole optimizer batch, a scalar.

        Returns:
            0-d tensor, differentiable in `logps` also when nothing is selected.
        """
        raise NotImplementedError

    def figures(self, sums: Sequence[float], tools: Sequence[str], **step: Any) -> dict[str, float]:
        """Return what is logged, without the prefix; arguments as in `metrics.figures`."""
        return metrics.figures(sums, tools, objective=self, **step)
