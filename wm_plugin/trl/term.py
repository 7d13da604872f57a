"""The objectives on any of TRL's trainers: N of an optimizer step, the terms of a micro-batch, and logging.

`trainer` and `async_trainer` get the tokens' log-probabilities and weights, each in its way. A micro-batch has each objective's
columns (`objectives.run`), `wm_masked` (completions that the host's truncation masking removed), `wm_num_tokens` ((K,), N of each
of the K objectives) and `advantages`.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from wm_plugin.errors import UserError
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.guard import Guard
from wm_plugin.objectives.run import Objectives, RunObjective, column
from wm_plugin.trl.callbacks import GUARD_KEY, StateCallback
from wm_plugin.trl.settings import ObjectiveSettings

logger = logging.getLogger(__name__)
LIMIT = "max_completion_length"  # the host's setting that limits a rollout's length

if TYPE_CHECKING:
    from transformers import Trainer as _Host  # the mixin is put in front of one of TRL's
else:
    _Host = object


class Window:
    """One accumulation window: the micro-batches of an optimizer step, whose tokens are counted together.

    Args:
        objectives: how many the run has, K.

    Attributes:
        batches: the window's raw batches, one a micro-batch.
        position: micro-batches that are done.
        num_tokens: (K,) N of the window, over all ranks.
        counts: for each objective N, its selected tokens and all environment tokens of the window, likewise.
        sums: (K, 3) NLL of the tokens that count, their number, and how many are inside the loss floor and ceiling, in the
            micro-batches that are done, on this rank.
        signal: Σ|advantage| over the micro-batches that are done, on this rank.
        entropy: the policy's, as the host measures it, of each micro-batch that is done, over all ranks.
        generated: generation batches that were made ahead of the host, by the identity of the raw batch.
    """

    def __init__(self, objectives: int) -> None:
        self.batches: list[Any] = []
        self.position = 0
        self.generated: dict[int, dict[str, Any]] = {}
        self.start(torch.zeros(objectives, 3, dtype=torch.int64))

    def open(self, batches: list[Any]) -> None:
        """Begin a new window of these raw batches."""
        self.batches, self.position = batches, 0

    def start(self, counts: torch.Tensor) -> None:
        """Begin the window's first micro-batch with its `counts`, (K, 3)."""
        self.num_tokens, self.counts = counts[:, 0], counts.tolist()
        self.sums = torch.zeros((), device=counts.device)
        self.signal = torch.zeros((), device=counts.device)
        self.entropy: list[float] = []

    def begins(self) -> bool:
        """Return whether the next micro-batch is the window's first.

        Raises:
            RuntimeError: the window has no more micro-batches, or rollouts that were made ahead were not used.
        """
        if self.position == len(self.batches):
            raise RuntimeError(
                "a training step outside Trainer.train(): the tokens of its optimizer batch cannot be counted"
            )
        if self.position == 0 and self.generated:
            raise RuntimeError(
                "generation batches made ahead were not used: the host no longer generates per raw batch"
            )
        return self.position == 0

    @property
    def complete(self) -> bool:
        return self.position == len(self.batches)


class TermMixin(_Host):
    """What TRL's trainers share. A subclass defines `_wm_count_window`, and calls `_wm_start` and `_wm_add`."""

    _wm = Objectives()  # empty until the host is complete: until then overrides do nothing
    _wm_running: list[RunObjective] = []  # noqa: RUF012 - replaced, never changed
    _wm_guards: list[StateCallback] = []  # noqa: RUF012
    _wm_eval_set = ""  # the prefix of our figures in an evaluation of a named set
    _wm_explores = True  # whether a fall of the policy's entropy is a collapse, which guards watch
    _metrics: dict[str, Any]  # the host's

    def _wm_start(self, objectives: Objectives, running: list[RunObjective]) -> None:
        """Add and measure the objectives from now on."""
        self._wm, self._wm_running = objectives, running
        self._wm_window = Window(len(running))
        self._wm_warned: set[str] = set()
        for one in running:
            for text in one.notices:
                self._wm_log(text)
        self._wm_guards = [
            StateCallback(column(GUARD_KEY, one.name), one.guard, "guard", "starts anew")
            for one in running
            if one.guard is not None
        ]
        for callback in self._wm_guards:
            self.add_callback(callback)
        # each objective's summed NLL and tokens, by evaluation set
        self._wm_held_out: dict[str, dict[str, tuple[float, float]]] = {}

    def _wm_make_running(self, objectives: Objectives, tools: Iterable[str]) -> list[RunObjective]:
        tempered = self.args.temperature != 1.0
        return [
            RunObjective(name, one, limit=LIMIT, tempered=tempered, tools=tools) for name, one in objectives.items()
        ]

    # -- the count: N of one optimizer step, before its first backward --------------------------------------------------------

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        batches = super().get_batch_samples(*args, **kwargs)
        if self._wm:
            self._wm_window.open(batches[0])
        return batches

    def _wm_count_window(self) -> torch.Tensor:
        """Return (K, 3) int64: what this rank adds to N of each objective, its selected tokens and its environment tokens."""
        raise NotImplementedError

    def _wm_num_tokens(self) -> torch.Tensor:
        """Return (K,) N of the optimizer step that the next micro-batch belongs to."""
        window = self._wm_window
        if window.begins():
            counts = torch.zeros(len(self._wm), 3, dtype=torch.int64, device=self.accelerator.device)
            if self._wm.active:  # else N divides nothing, and generating early would shift dropout's random numbers
                counts = self.accelerator.reduce(self._wm_count_window(), reduction="sum")
            window.start(counts)
        window.position += 1
        return window.num_tokens

    # -- the loss -------------------------------------------------------------------------------------------------------------

    def _wm_add(self, loss: torch.Tensor, logps: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the host's loss with the objectives' terms of a micro-batch.

        Args:
            loss: the host's.
            logps: (B, T) with gradient, of the tokens to which the columns of `inputs` belong.
            inputs: beside the columns, `advantages`: 0 where the host trains on nothing.
        """
        coeffs = {one.name: one.coeff(self.state.global_step) for one in self._wm_running}
        loss, sums = self._wm.add_terms(
            loss,
            logps,
            inputs,
            coeffs=coeffs,
            num_tokens=dict(zip(self._wm, inputs["wm_num_tokens"], strict=True)),
            num_tools={one.name: len(one.tools) for one in self._wm_running},
            ranks=self.accelerator.num_processes,
            masked=inputs["wm_masked"].sum(),
        )
        self._wm_record(sums, inputs["advantages"].abs().sum() * self._wm.policy_loss, coeffs)
        return loss

    # -- the metrics ----------------------------------------------------------------------------------------------------------

    def _wm_record(self, sums: dict[str, torch.Tensor], signal: torch.Tensor, coeffs: dict[str, float]) -> None:
        """Record a micro-batch, and the optimizer step that it completes; `signal` is its Σ|advantage|."""
        mode = "train" if self.model.training else "eval"
        for one in self._wm_running:
            one.meter(mode).add(sums[one.name], one.tools)
        if mode == "eval":
            for one in self._wm_running:
                one.meter(mode).end_step(coeffs[one.name], signal)
            return
        window = self._wm_window
        window.signal = window.signal + signal
        window.sums = window.sums + torch.stack([sums[one.name][:3] for one in self._wm_running])
        if self._wm_explores and any(one.guard for one in self._wm_running):
            window.entropy += self._metrics["train"].get("entropy", [])[-1:]  # the host's figure of this micro-batch
        if window.complete:
            for place, one in enumerate(self._wm_running):
                self._wm_end_step(place, one, coeffs[one.name])

    def _wm_end_step(self, place: int, one: RunObjective, coeff: float) -> None:
        """Complete an optimizer step: its figures, whether any token counted, and the guard. Every rank decides alike."""
        window, counted = self._wm_window, 0
        _, selected, environment = window.counts[place]
        bounded = coeff > 0 and one.objective.has_bounds
        if bounded or one.guard is not None:
            nll, tokens, in_loss = self.accelerator.reduce(window.sums[place], reduction="sum").tolist()
        if coeff > 0:
            counted = int(in_loss) if bounded else selected
            if one.monitor.record(coeff=coeff, environment=environment, counted=counted):
                self._wm_report(place, one)
            if counted:  # a later report covers only rollouts since then, or of the same generation batch
                last = list(one.tallies)[-1:]
                one.tallies.clear()
                one.tallies.extend(last)
        one.meter("train").end_step(coeff, window.signal, counted=counted > 0)
        if one.guard is not None:
            entropy = sum(window.entropy) / len(window.entropy) if window.entropy else None
            self._wm_log(one.guard.after_step(nll=nll, tokens=tokens, entropy=entropy))

    def _wm_log(self, text: str | None) -> None:
        if text is not None and self.accelerator.is_main_process:
            logger.warning(text)

    def _wm_end(self) -> None:
        """Report objectives without a token in the whole run. Called on every rank as training ends."""
        for place, one in enumerate(self._wm_running):
            if one.monitor.at_end():
                self._wm_report(place, one)

    def _wm_report(self, place: int, one: RunObjective) -> None:
        """Warn that no token counted, with the likely causes."""
        from accelerate.utils import gather_object

        _, selected, environment = self._wm_window.counts[place]
        text = one.monitor.report(
            Tally.sum(gather_object(list(one.tallies))),
            environment=environment,
            selected=selected,
            policy_silent=float(self.accelerator.reduce(self._wm_window.signal, reduction="sum")) == 0,
        )
        self._wm_log(text)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        mode = "train" if self.model.training else "eval"
        for one in self._wm_running:
            meter = one.meter(mode)
            figures = meter.result(lambda sums: self.accelerator.reduce(sums, reduction="sum"))
            prefix = self._wm_eval_set if mode == "eval" else ""
            if mode == "eval":
                self._wm_held_out.setdefault(one.name, {})[prefix.removesuffix("_")] = meter.nll, meter.tokens
            elif figures:
                figures |= one.guard_figures()
            self._metrics[mode].update({prefix + key: [value] for key, value in figures.items()})
            if figures and meter.term_alone and mode == "train" and self._wm.policy_loss:
                self._wm_warn_once("silent", one.term_alone_warning())
        super().log(logs, *args, **kwargs)

    def _wm_after_evaluation(self) -> None:
        """Pass an evaluation's figures of all sets to the guards, before a checkpoint of this step is written."""
        for one in self._wm_running:
            if isinstance(one.guard, Guard):
                sets = self._wm_held_out.get(one.name, {})
                self._wm_log(one.guard.after_evaluation(self.state.global_step, sets))
        for callback in self._wm_guards:
            callback.keep(self.state)

    def _wm_warn_once(self, kind: str, message: str) -> None:
        if kind not in self._wm_warned and self.accelerator.is_main_process:
            logger.warning(message)
        self._wm_warned.add(kind)


class EvaluatedMixin(TermMixin):
    """The same on trainers that have evaluations."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        # the host calls this for each of several sets, with eval_<name>, and logs the figures of all by the same names
        named = metric_key_prefix.startswith("eval_")
        self._wm_eval_set = f"{metric_key_prefix.removeprefix('eval_')}_" if named else ""
        of_the_run = self.is_in_train and eval_dataset is None and metric_key_prefix == "eval"  # of all its sets
        if of_the_run:
            self._wm_held_out = {}
        figures = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        if of_the_run:
            self._wm_after_evaluation()
        return figures


def no_coefficient_warning(world_model: Any, args: Any, reward_funcs: Any) -> str | None:
    """Return the warning for a run without a coefficient; None if it has one, or trains on a reward of predictions.

    Args:
        reward_funcs: the trainer's argument; those of `wm_plugin.trl.rewards` score predictions.
    """
    if resolve(world_model, args).written:
        return None
    plain = world_model is None and not (isinstance(args, ObjectiveSettings) and args.objective_fields_set())
    functions = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if plain and any(getattr(function, "reward", None) is not None for function in functions):
        return None
    what = "there is no world_model" if plain else "world_model is given, but coeff is 0"
    return (
        f"{what}: nothing is trained on environment tokens; write coeff=0.05 (world_model=EchoConfig(0.05), or echo_coeff: 0.05 "
        "in a file), or 0 if that is meant"
    )


def resolve(world_model: Any, args: Any) -> Objectives:
    """Return the objectives of a run, from the argument, or from `world_model` or the `echo_*` fields of a config.

    They are empty without any of these and with a config of the host's own.

    Raises:
        UserError: two of them are given, or the argument is neither an objective nor several by name.
    """
    found = None if world_model is None else Objectives.read(world_model)
    if not isinstance(args, ObjectiveSettings):
        return Objectives() if found is None else found
    fields = args.objective_fields_set()
    if found is not None and fields:
        raise UserError(f"world_model=EchoConfig(...) and {', '.join(fields)} are the same thing; give one of them")
    return args.objectives() if found is None else found
