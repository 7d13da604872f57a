"""ECHO: the negative log-likelihood of environment tokens, added to the policy loss ("True Agents Model the World").

    L = L_policy + Σ_tool coeff(tool, step) · (1/N) · Σ_{selected environment tokens of tool} −log p(token)

There is no importance ratio, no clipping, no KL and no reward in the second term: a constant positive advantage. N is the number
of selected environment tokens in the whole optimizer batch, over all ranks and all gradient-accumulation micro-batches. With
`policy_loss` false the first term is left out (the paper's SFT-only arm).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Self

import torch

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.objectives.guard import GuardConfig, read_guard
from wm_plugin.objectives.information import KEEP
from wm_plugin.objectives.schedule import SCHEDULES, scheduled
from wm_plugin.registry import import_object
from wm_plugin.tokens.spans import ROLES, Span
from wm_plugin.untrusted import loads

NORMALIZATIONS = ("selected_tokens", "observation_tokens")
ZERO_VARIANCE = ("keep", "drop", "refill")
ON_SILENCE = ("warn", "stop")
ALIASES = {"alpha": "coeff"}  # accepted in configs, never stored
_RATIOS = 'write true, false, or ratios, e.g. {"echo": 0.05}'


def _help(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class EchoConfig:
    """What the objective counts, and how strongly. `EchoConfig(0.05)` is a complete configuration; `alpha` also names `coeff`.

    Raises:
        UserError: a value is out of its range; the message names the field, the value and what to write.
    """

    coeff: float = _help("Coefficient of the world-model term (ECHO's alpha). 0 turns it off.", 0.0)
    tools: Sequence[str] | Mapping[str, float] | None = _help(
        "Which tools' responses count: null for all of them, a list of names, or {name: multiplier of coeff}. "
        "A tool that is not named is off."
    )
    roles: Sequence[str] | None = _help("Which roles count, e.g. ['tool', 'user']; null for all of them.")
    content_only: bool = _help("Leave out chat-template scaffold around the content (headers, tags).", True)
    include_errors: bool = _help(
        "Count failures that the host made (unknown tool, exception, timeout); that they are left out is ours. Error texts that "
        "a tool returned always count.",
        False,
    )
    include_truncated: bool = _help(
        "Count the environment tokens of completions that were cut at the length limit.", True
    )
    min_token_nll: float | None = _help("Leave out tokens that the model already predicts better than this (nats).")
    max_token_nll: float | None = _help("Leave out tokens that the model predicts worse than this (nats).")
    normalization: str = _help(
        "What N counts: 'selected_tokens', or 'observation_tokens' (every environment token before any selection).",
        "selected_tokens",
    )
    schedule: str = _help("How coeff moves to end_coeff: 'constant', 'linear', 'cosine' or 'step'.", "constant")
    schedule_steps: int | None = _help("Optimizer steps until end_coeff is reached.")
    end_coeff: float = _help("The coefficient after schedule_steps.", 0.0)
    select: Callable[[Span, Mapping[str, Any] | None], bool] | None = _help(
        "A function (span, message) -> bool that has the last word on a span."
    )
    guard: bool | Mapping[str, Any] | GuardConfig | None = _help(
        "Lower the coefficient when the held-out NLL rises in k evaluations in a row while the training NLL falls, or when the "
        "policy's entropy falls under a share of its start: true, or some of {k: 3, factor: 0.5, share: 0.2, sets: null}."
    )
    zero_variance_groups: str = _help(
        "What becomes of groups whose rewards are all equal: 'keep' their world-model gradient; 'drop' it, so that N no longer "
        "counts them and the host's own normaliser still does; or 'refill', as the paper does: other prompts are sampled in "
        "their place until every group has an advantage.",
        "keep",
    )
    max_refills: int = _help(
        "With 'refill': how many further prompts a batch may take, in whole batches. Groups that are then still without an "
        "advantage stay in the batch, and their environment tokens do not count.",
        10,
    )
    tempered: bool = _help(
        "Accept log-probabilities at a sampling temperature other than 1; the metrics say so.", False
    )
    turn_information: bool | Mapping[str, float] = _help(
        "Weigh each observation by how much of the world it shows (Qwen-AgentWorld, table 3): true for the paper's ratios "
        "(echo 0.05, boilerplate 0.1, transform 0.5, everything else 1), or {category: ratio} where they are to be others. N is "
        "not touched.",
        False,
    )
    on_silence: str = _help(
        "What to do about a coefficient above 0 and optimizer batches without a token that counts: 'warn' once, with the likely "
        "causes, or also 'stop' the run after silent_batches of them.",
        "warn",
    )
    silent_batches: int = _help(
        "How many optimizer batches in a row may be without a token that counts (TRL's optimizer steps, verl's global steps).",
        3,
    )

    policy_loss: bool = _help(
        "false leaves the host's loss out and trains on environment tokens alone: the paper's SFT-only arm, which lost in its "
        "tasks. Rollouts, rewards and advantages are made and logged as before. Needs a coefficient above 0 throughout.",
        True,
    )

    alpha: InitVar[float | None] = None

    coeff_given: ClassVar[bool] = True  # an instance's own, if nobody wrote its coefficient

    def __new__(cls, *args: Any, **values: Any) -> Self:
        """Refuse unknown names, and both names of the coefficient, in words."""
        known = {f.name for f in dataclasses.fields(cls)} | set(ALIASES)
        for name in values.keys() - known:
            raise UserError(f"EchoConfig has no field {name!r}{nearest(name, known)}")
        if values.get("alpha") is not None and (args or "coeff" in values):
            raise UserError("EchoConfig gets coeff twice (alpha is the same); keep one")
        config = super().__new__(cls)
        if not args and "coeff" not in values and values.get("alpha") is None:
            object.__setattr__(config, "coeff_given", False)
        return config

    def __post_init__(self, alpha: float | None) -> None:
        if alpha is not None:
            object.__setattr__(self, "coeff", alpha)
        for name in ("coeff", "end_coeff"):
            _require_number(name, getattr(self, name), "write a number >= 0; 0 turns the objective off")
        for name in ("min_token_nll", "max_token_nll"):
            if getattr(self, name) is not None:
                _require_number(name, getattr(self, name), "write a negative log-likelihood in nats, >= 0")
        if (
            self.min_token_nll is not None
            and self.max_token_nll is not None
            and self.min_token_nll > self.max_token_nll
        ):
            raise UserError(
                f"min_token_nll is {self.min_token_nll}, above max_token_nll {self.max_token_nll}: no token would count"
            )
        _require_choice("normalization", self.normalization, NORMALIZATIONS)
        _require_choice("schedule", self.schedule, SCHEDULES)
        _require_choice("zero_variance_groups", self.zero_variance_groups, ZERO_VARIANCE)
        _require_choice("on_silence", self.on_silence, ON_SILENCE)
        if type(self.silent_batches) is not int or self.silent_batches < 1:
            raise UserError(
                f"silent_batches is {shown(self.silent_batches)}; write a whole number of optimizer batches >= 1"
            )
        if type(self.max_refills) is not int or self.max_refills < 1:
            raise UserError(f"max_refills is {shown(self.max_refills)}; write a whole number of batches >= 1")
        for name in ("content_only", "include_errors", "include_truncated", "tempered", "policy_loss"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} is {shown(getattr(self, name))}; write true or false")
        if self.schedule_steps is not None and (type(self.schedule_steps) is not int or self.schedule_steps < 1):
            raise UserError(
                f"schedule_steps is {shown(self.schedule_steps)}; write a whole number of optimizer steps >= 1"
            )
        if self.schedule != "constant" and self.schedule_steps is None:
            raise UserError(f"schedule {self.schedule!r} has no length; write schedule_steps, e.g. the run's max_steps")
        if self.schedule == "constant" and self.schedule_steps is not None:
            raise UserError(
                "schedule_steps has no effect on schedule 'constant'; write schedule: linear, cosine or step"
            )
        # what is not its default and changes nothing would be taken for a setting that works
        for name, needs, works in (
            ("end_coeff", "schedule: linear, cosine or step", self.schedule != "constant"),
            ("max_refills", "zero_variance_groups: refill", self.refills),
        ):
            default = type(self).__dataclass_fields__[name].default
            if not works and getattr(self, name) != default:
                raise UserError(f"{name} has no effect without {needs}; write that, or leave {name} out")
        last = self.coeff if self.schedule == "constant" else self.end_coeff
        if not self.policy_loss and (self.coeff == 0 or last == 0):
            name = "end_coeff" if self.coeff else "coeff"
            raise UserError(f"policy_loss is false and {name} is 0: nothing would be trained; write {name} above 0")
        if self.select is not None and not callable(self.select):
            raise UserError(f"select is {shown(self.select)}; write a function (span, message) -> bool")
        object.__setattr__(self, "guard", read_guard(self.guard))
        if not self.policy_loss and isinstance(self.guard, GuardConfig) and self.guard.factor == 0:
            raise UserError(
                "policy_loss is false and guard.factor is 0: nothing would be trained; write guard.factor above 0"
            )
        object.__setattr__(self, "tools", _checked_tools(self.tools))
        object.__setattr__(self, "roles", _checked_names("roles", self.roles))
        for role in self.roles or ():
            if role not in ROLES:
                raise UserError(f"roles: there is no role {role!r}{nearest(role, ROLES)}")
        object.__setattr__(self, "turn_information", _checked_ratios(self.turn_information))
        if not self.policy_loss and self.nothing:
            raise UserError(f"policy_loss is false, and nothing would be trained: {self.nothing}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, where: str = "world_model") -> "EchoConfig":
        """From a YAML block, flags or a Hydra node.

        `alpha` is read as `coeff`; `tools`, `roles`, `turn_information` and `guard` may be text as flags give them, and `select`
        a path.

        Raises:
            UserError: an unknown key (with the nearest one), or a value that does not fit.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        fields: dict[str, Any] = {}
        for key, value in values.items():
            name = ALIASES.get(key, key)
            if name not in known:
                raise UserError(f"{where} has no field {key!r}{nearest(key, known)}")
            if name in fields:
                raise UserError(f"{where} gives {name!r} twice (as {key!r} too); keep one")
            fields[name] = value
        if isinstance(fields.get("tools"), str):
            fields["tools"] = parse_tools(fields["tools"])
        if isinstance(fields.get("roles"), str):
            fields["roles"] = _names(fields["roles"])
        if isinstance(fields.get("turn_information"), str):
            fields["turn_information"] = _parse_ratios(fields["turn_information"])
        if isinstance(fields.get("select"), str):
            fields["select"] = import_object(fields["select"], field="select")
        return cls(**fields)

    @property
    def active(self) -> bool:
        """Whether the coefficient is above 0 at any step."""
        return self.coeff > 0 or (self.schedule != "constant" and self.end_coeff > 0)

    @property
    def refills(self) -> bool:
        """Whether groups without an advantage are replaced, also at coefficient 0."""
        return self.zero_variance_groups == "refill"

    @property
    def nothing(self) -> str | None:
        """Why no token can ever count; None if some may."""
        if self.roles is not None and not self.roles:
            return "roles is empty, and a role that is not named is off; write null for all of them"
        if self.tools is None or any(self.tool_multiplier(name) for name in self.tools):
            return None
        if not self.tools:
            return "tools is empty, and a tool that is not named is off; write null for all of them"
        return "tools gives every tool that it names the multiplier 0, and a tool that is not named is off"

    @property
    def notice(self) -> str | None:
        """What a run says before its first step: that the policy loss is left out; None if it is not."""
        if self.policy_loss:
            return None
        return (
            "policy_loss is false: the policy loss is left out, and the run trains on environment tokens alone (logged as "
            "policy_silent: 1); the paper's arm of this kind lost in its tasks"
        )

    @property
    def tool_names(self) -> tuple[str, ...] | None:
        """The tools that were named, or None for all of them."""
        return None if self.tools is None else tuple(self.tools)

    def coeff_at(self, step: int) -> float:
        """The coefficient at optimizer step `step` (0-based)."""
        return scheduled(self.schedule, self.coeff, self.end_coeff, self.schedule_steps, step)

    def tool_multiplier(self, tool: str | None) -> float:
        """The multiplier of `coeff` for a tool's tokens; None: tokens that no tool wrote. 0 means off."""
        if self.tools is None:
            return 1.0
        if isinstance(self.tools, Mapping):
            return self.tools.get(tool, 0.0) if tool is not None else 0.0
        return float(tool in self.tools)


def echo_loss(logps: torch.Tensor, weights: torch.Tensor, num_tokens: torch.Tensor | float) -> torch.Tensor:
    """Σ weight · −log p / N over the tokens of a batch: the second term of the objective, without its coefficient.

    Summed over every micro-batch and rank of an optimizer step, this is the term exactly, whatever the split.

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


def within_bounds(logps: torch.Tensor, weights: torch.Tensor, config: EchoConfig) -> torch.Tensor:
    """`weights` (B, T) with 0 where the current token NLL lies outside [min_token_nll, max_token_nll]. N is not touched."""
    nll = -logps.detach()
    if config.min_token_nll is not None:
        weights = torch.where(nll >= config.min_token_nll, weights, torch.zeros_like(weights))
    if config.max_token_nll is not None:
        weights = torch.where(nll <= config.max_token_nll, weights, torch.zeros_like(weights))
    return weights


def count_tokens(weights: torch.Tensor, environment_mask: torch.Tensor, config: EchoConfig) -> torch.Tensor:
    """What a batch adds to N, as a 0-d int64 tensor: a count of members, not a sum of weights.

    Args:
        weights: (B, T) weight of each token; 0 = not selected.
        environment_mask: (B, T), 1 = a non-padding environment token, before any selection.
        config: `normalization` decides which of the two is counted.
    """
    counted = weights if config.normalization == "selected_tokens" else environment_mask
    return torch.count_nonzero(counted)


def parse_tools(text: str) -> Any:
    """`tools` as a flag gives it: JSON, or names separated by commas."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return loads(text)
        except ValueError as error:
            raise UserError(f"tools is not JSON ({error}): {text:.100}; write a,b or '{{\"a\": 0.3}}'") from None
    return _names(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _parse_ratios(text: str) -> Any:
    """`turn_information` as a flag gives it."""
    try:
        return loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        raise UserError(f"turn_information is {shown(text)}; {_RATIOS}") from None


def _require_number(name: str, value: Any, mend: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        write, mark, note = mend.partition(";")
        raise UserError(
            f"{name} is {shown(value)}; {write}{', without quotes' if _is_number(value) else ''}{mark}{note}"
        )


def _is_number(text: Any) -> bool:
    """Whether it is a text that is a number."""
    try:
        return isinstance(text, str) and math.isfinite(float(text))
    except ValueError:
        return False


def _require_choice(name: str, value: Any, choices: Any) -> None:
    if value not in tuple(choices):
        raise UserError(f"{name} is {shown(value)}{nearest(value, choices)}")


def _checked_names(name: str, values: Sequence[str] | None) -> tuple[str, ...] | None:
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, str) for v in values):
        raise UserError(
            f"{name} is {shown(values)}; write a list of names, e.g. ['{values if isinstance(values, str) else 'tool'}']"
        )
    return tuple(values)


def _checked_tools(tools: Sequence[str] | Mapping[str, float] | None) -> tuple[str, ...] | dict[str, float] | None:
    if not isinstance(tools, Mapping):
        return _checked_names("tools", tools)
    for name, multiplier in tools.items():
        _require_number(f"tools[{name!r}]", multiplier, "write a multiplier of coeff, >= 0")
    return {str(name): float(multiplier) for name, multiplier in tools.items()}


def _checked_ratios(value: bool | Mapping[str, float]) -> dict[str, float] | bool:
    """False, or the ratio of every category."""
    if value is False:
        return False
    if value is not True and not isinstance(value, Mapping):
        raise UserError(f"turn_information is {shown(value)}; {_RATIOS}")
    ratios = value if isinstance(value, Mapping) else {}
    for name, ratio in ratios.items():
        if name not in KEEP:
            raise UserError(f"turn_information has no category {name!r}{nearest(name, KEEP)}")
        mend = "write a ratio > 0; 0 would change N: leave tools out with `tools`, and single results with `select`"
        _require_number(f"turn_information[{name!r}]", ratio, mend)
        if ratio == 0:
            raise UserError(f"turn_information[{name!r}] is {shown(ratio)}; {mend}")
    return {name: float(ratios.get(name, ratio)) for name, ratio in KEEP.items()}
