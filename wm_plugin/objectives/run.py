"""A run's objectives, over which both hosts loop: their columns, loss terms, figures and monitors."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from wm_plugin.errors import UserError, shown
from wm_plugin.objectives import OBJECTIVES
from wm_plugin.objectives.base import Objective
from wm_plugin.objectives.empty_batches import EmptyBatchMonitor, Tally
from wm_plugin.objectives.guard import Guard, GuardConfig
from wm_plugin.objectives.metrics import Meter, token_sums
from wm_plugin.tokens.spans import Origin, Span, token_weights

# Columns of a batch: (rows, tokens) each, see `tokens.spans.token_weights`; and (rows,), 0 = the trajectory is left out.
WEIGHTS, TOOL_IDS, TRAJECTORIES = "wm_weights", "wm_tool_ids", "wm_trajectories"
Weighed = list[tuple[Span, float]]  # a completion's spans, each with the weight of its tokens
TALLIES = 64  # of the last generation batches: more than an accumulation window has


def read_objective(fields: Mapping[Any, Any], where: str) -> Objective:
    """Return the objective of which a file has the fields; `objective` names its class, which is else EchoConfig.

    Raises:
        UserError: there is no such class, or a value does not fit.
    """
    return objective_class(fields.get("objective", "echo"), where).read(
        {name: value for name, value in fields.items() if name != "objective"}, where
    )


def objective_class(path: Any, where: str) -> type[Objective]:
    """Return the class of objectives that a file names, by its name in `OBJECTIVES` or as package.module:Class."""
    kind = OBJECTIVES.get(str(path))
    if isinstance(kind, type) and issubclass(kind, Objective) and kind.has_loss():
        return kind
    raise UserError(
        f"{where}.objective is {shown(path)}, which is no objective; write {' or '.join(OBJECTIVES)}, or a class of your own"
    )


def column(base: str, name: str) -> str:
    """Return the name of an objective's column or value in a batch. A run's only objective, "", has the bare name."""
    return f"{base}_{name}" if name else base


class Objectives(dict[str, Objective]):
    """A run's objectives by name. A run's only objective is called ""; a run without any is the host's own."""

    @classmethod
    def read(cls, given: Any, where: str = "world_model") -> "Objectives":
        """Return a run's objectives from one, or from {name: one, or the fields of one}.

        One with `normalization: per_role` becomes one a role, named after it.

        Args:
            where: the setting's name, for errors.

        Raises:
            UserError: it is neither, a name is no word, or a value does not fit.
        """
        several = isinstance(given, Mapping) and bool(given)
        several = several and all(isinstance(one, Mapping | Objective) for one in given.values())  # not one's fields
        if not several and not (isinstance(given, Objective) and given.has_loss()):
            raise UserError(
                f"{where} is {shown(given)}; write {where}=EchoConfig(coeff=0.05), or several by name, e.g. "
                "{tools: {coeff: 0.05, roles: [tool]}, users: {coeff: 0.01, roles: [user]}}"
            )
        objectives = cls()
        for name, one in given.items() if isinstance(given, Mapping) else [("", given)]:
            if name and not (isinstance(name, str) and name.isidentifier()):
                raise UserError(f"{where} has the name {shown(name)}; write a word, e.g. tools")
            own = one if isinstance(one, Objective) else read_objective(one, f"{where}.{name}")
            if own.normalization != "per_role":
                objectives[name] = own
                continue
            for role in own.roles or ():
                alone = {role: own.role_multiplier(role)}
                objectives[f"{name or 'role'}_{role}"] = own.replace(roles=alone, normalization="selected_tokens")
        return objectives

    @property
    def active(self) -> bool:
        """Whether a coefficient is above 0 at any step."""
        return any(one.active for one in self.values())

    @property
    def written(self) -> bool:
        """Whether a coefficient was given."""
        return any(one.coeff_given or one.active for one in self.values())

    @property
    def max_refills(self) -> int:
        """How many batches of further prompts may replace a batch's groups without an advantage."""
        return max((one.max_refills for one in self.values() if one.refills), default=0)

    @property
    def refills(self) -> bool:
        """Whether groups without an advantage are replaced, also at coefficient 0."""
        return self.max_refills > 0

    @property
    def policy_loss(self) -> bool:
        """Whether the host's own loss counts."""
        return all(one.policy_loss for one in self.values())

    @property
    def categorize(self) -> bool:
        """Whether an objective needs the categories of turns."""
        return any(one.turn_information for one in self.values())

    def check_split(self, micro_batches: int) -> None:
        """Check that no preset makes the term depend on how many micro-batches an optimizer step of a rank has.

        Raises:
            UserError: one does, and nobody asked for it by writing `normalization: per_micro_batch` without a preset.
        """
        for one in self.values():
            if one.normalization == "per_micro_batch" and one.preset_name is not None and micro_batches > 1:
                raise UserError(
                    f"preset {one.preset_name} divides by the tokens of each micro-batch, and a step has several: the term would "
                    "be that many times as strong; take one micro-batch a step or preset blog, or write normalization: "
                    "per_micro_batch, coeff and content_only in place of the preset to train so"
                )

    def transportable(self) -> "Objectives":
        """Return these objectives without functions of the user's own, which other processes need not be able to import."""
        return Objectives({name: one.replace(select=None, select_rollout=None) for name, one in self.items()})

    def counts(self, columns: Mapping[str, torch.Tensor], environment: torch.Tensor) -> torch.Tensor:
        """Return (K, 3) int64: what a batch adds to N of each objective, its selected tokens and its environment tokens.

        Args:
            columns: the batch's, see `RunObjective.columns`.
            environment: 1 = an environment token that is no padding, before any selection; on the device of `columns`.
        """
        counts = []
        for name, one in self.items():
            weights, rows = columns[column(WEIGHTS, name)], int(columns[column(TRAJECTORIES, name)].sum())
            counts += [one.count(weights, environment, rows), torch.count_nonzero(weights), environment.sum()]
        return torch.stack([count.to(torch.int64) for count in counts]).view(-1, 3)

    def add_terms(
        self,
        loss: torch.Tensor,
        logps: torch.Tensor,
        columns: Mapping[str, torch.Tensor],
        *,
        coeffs: Mapping[str, float],
        num_tokens: Mapping[str, torch.Tensor | float],
        num_tools: Mapping[str, int],
        ranks: int,
        masked: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Add the objectives' terms of a micro-batch to the host's loss, or replace it if `policy_loss` is false.

        The terms are sums over ranks, but data parallelism averages: each term is multiplied by the number of ranks. If all
        coefficients are 0, the host's tensor is returned unchanged.

        Args:
            loss: the host's.
            logps: (B, T) with gradient, of the tokens to which `columns` belong.
            coeffs, num_tokens, num_tools: by objective; N of the whole optimizer batch, and how many tools have figures.
            masked: 0-d, the number of completions that the host's truncation masking removed.

        Returns:
            The loss, 0-d, and each objective's `metrics.token_sums`.
        """
        total = loss if self.policy_loss else None
        sums = {}
        for name, objective in self.items():
            weights, coeff = columns[column(WEIGHTS, name)], coeffs[name]
            trains = coeff > 0 or not objective.policy_loss
            with torch.set_grad_enabled(torch.is_grad_enabled() and trains):
                loss_weights = objective.within_bounds(logps, weights)
                divisor = objective.denominator(weights, num_tokens[name], ranks)
                term = coeff * objective.loss(logps, loss_weights, divisor)
            sums[name] = token_sums(
                logps.detach(),
                weights,
                columns[column(TOOL_IDS, name)],
                num_tools[name],
                loss_weights=loss_weights,
                loss=term.detach(),
                masked=masked,
            )
            if trains:
                total = ranks * term if total is None else total + ranks * term
        assert total is not None  # an objective without a policy loss always trains
        return total, sums


class RunObjective:
    """One objective's state during a run: its tools' numbers, its figures, its guard and its monitor of empty batches.

    Args:
        name: its name in the run; "" for the only one.
        limit: the host's setting that limits a rollout's length.
        tempered: whether the host's log-probabilities are divided by a temperature; the figures' names then say so.
        tools: the tools that the host knows.

    Attributes:
        tools: the tools with figures of their own, in the order of their numbers.
        tallies: for each of the last generation batches, what became of its environment tokens.
        meters: figures by mode or evaluation set.
        notices: warnings for before the first step.

    Raises:
        UserError: `on_silence` is `stop`, and with these options no token can count.
    """

    def __init__(
        self, name: str, objective: Objective, *, limit: str, tempered: bool = False, tools: Iterable[str] = ()
    ) -> None:
        self.name, self.objective = name, objective
        label = f"{objective.label}_tempered" if tempered else objective.label
        self.prefix = f"{label}/{name}" if name else label
        self.tools = sorted(objective.tool_names or tools)
        self.tallies: deque[Tally] = deque(maxlen=TALLIES)
        self.meters: dict[str, Meter] = {}
        self.monitor = EmptyBatchMonitor(objective, limit=limit)
        self.guard = Guard(objective.guard) if isinstance(objective.guard, GuardConfig) else None
        self.notices = [text for text in (objective.notice, self.monitor.warning) if text]

    def coeff(self, step: int) -> float:
        """Return the coefficient at optimizer step `step` (0-based), lowered by the guard."""
        coeff = self.objective.coeff_at(step)
        return coeff if self.guard is None else coeff * self.guard.multiplier

    def meter(self, key: str) -> Meter:
        return self.meters.setdefault(key, Meter(self.objective, self.prefix))

    def weigh(
        self,
        rows: Sequence[Iterable[Origin]],
        without_variance: Sequence[bool],
        facts: Tally,
        *,
        rollouts: Sequence[tuple[Any, float] | None] = (),
        held_out: bool = False,
    ) -> list[Weighed | None]:
        """Return each completion's spans with the weights of their tokens; None for a completion that is left out as a whole.

        Args:
            rows: each completion's spans and what is known of them.
            without_variance: for each completion, whether all rewards of its group are equal.
            facts: counts that are the same for every objective.
            rollouts: each completion's messages and reward, for `select_rollout`; None for a padding row.
            held_out: whether the completions are an evaluation's, whose figures cover all groups.
        """
        tally = replace(facts, left_out=facts.left_out.copy())
        spans: list[Weighed | None] = []
        for place, (origins, equal) in enumerate(zip(rows, without_variance, strict=True)):
            dropped = None if held_out else self._dropped(equal, rollouts[place] if rollouts else None)
            weighed = self.objective.weigh(origins, dropped=dropped, tally=tally)
            spans.append(None if dropped else weighed)
        if not held_out:
            self.tallies.append(tally)
        return spans

    def _dropped(self, equal: bool, rollout: tuple[Any, float] | None) -> str | None:
        """Return the field that leaves a whole completion out; None if none does."""
        if equal and self.objective.zero_variance_groups != "keep":
            return "zero_variance_groups"
        chosen = self.objective.select_rollout is None or rollout is None or self.objective.select_rollout(*rollout)
        return None if chosen else "select_rollout"

    def columns(self, spans: Sequence[Weighed | None], length: int) -> dict[str, torch.Tensor]:
        """Return this objective's columns of a batch of completions, padded to `length`."""
        weights, tool_ids = token_weights([own or [] for own in spans], length, self.tools)
        return {
            column(WEIGHTS, self.name): self.objective.share(weights),
            column(TOOL_IDS, self.name): tool_ids,
            column(TRAJECTORIES, self.name): torch.tensor([float(own is not None) for own in spans]),
        }

    def guard_figures(self) -> dict[str, float]:
        """Return the guard's figures by their names in a log."""
        figures = {} if self.guard is None else self.guard.figures()
        return {f"{self.prefix}/{key}": value for key, value in figures.items()}

    def term_alone_warning(self) -> str:
        """Return the warning for an optimizer step with tokens that counted but only advantages of 0."""
        return (
            "all advantages of an optimizer step were 0: it trained on the world-model term alone (logged as "
            f"{self.prefix}/policy_silent)"
        )
