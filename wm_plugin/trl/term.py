"""The world-model term on any of TRL's trainers: N of an optimizer step, the term's share of a micro-batch, and what is logged.

What differs from trainer to trainer is how the tokens' log-probabilities and weights are had; that is in `trainer` and
`async_trainer`. The columns of a micro-batch, by name: `wm_weights` and `wm_tool_ids` as of `tokens.spans.token_weights`,
`wm_masked` (completions that the host's truncation masking took away) and `advantages`.
"""

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from wm_plugin.errors import UserError, shown
from wm_plugin.objectives.echo import EchoConfig, echo_loss, within_bounds
from wm_plugin.objectives.empty_batches import EmptyBatchMonitor, Tally
from wm_plugin.objectives.guard import Guard, GuardConfig
from wm_plugin.objectives.metrics import EchoMeter
from wm_plugin.trl.callbacks import GuardCallback
from wm_plugin.trl.settings import ObjectiveSettings
from wm_plugin.trl.window import Window

logger = logging.getLogger(__name__)
TALLIES = 64  # of the last generation batches: more than an accumulation window has

if TYPE_CHECKING:
    from transformers import Trainer as _Host  # the mixin is put in front of one of TRL's
else:
    _Host = object


class TermMixin(_Host):
    """What TRL's trainers share. A subclass has `_wm_count_window`, and calls `_wm_start` and `_wm_add`."""

    _wm: Any = None  # the EchoConfig; no override acts before the host is complete
    _wm_guard: GuardCallback | None = None
    _wm_eval_set = ""  # before our figures in an evaluation: the name of its set of rows, if it has one
    _metrics: dict[str, Any]  # the host's

    def _wm_start(self, config: EchoConfig, silence: EmptyBatchMonitor, tools: list[str]) -> None:
        """From here on the term is added and measured."""
        self._wm = config
        self._wm_silence = silence
        self._wm_tools = tools
        prefix = "echo" if self.args.temperature == 1.0 else "echo_tempered"
        self._wm_meters = {"train": EchoMeter(prefix, config), "eval": EchoMeter(prefix, config)}
        self._wm_window = Window()
        self._wm_tallies: deque[Tally] = deque(maxlen=TALLIES)
        self._wm_warned: set[str] = set()
        for text in filter(None, (config.notice, silence.warning)):
            self._wm_say(text)
        if isinstance(config.guard, GuardConfig):
            self._wm_guard = GuardCallback(Guard(config.guard))
            self.add_callback(self._wm_guard)
        self._wm_held_out: dict[str, tuple[float, float]] = {}  # of an evaluation's sets: summed NLL and tokens

    # -- the count: N of one optimizer step, before its first backward --------------------------------------------------------

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        batches = super().get_batch_samples(*args, **kwargs)
        if self._wm is not None:
            self._wm_window.open(batches[0])
        return batches

    def _wm_count_window(self) -> torch.Tensor:
        """(3,) int64: what this rank adds to N of the window, its selected tokens and its environment tokens."""
        raise NotImplementedError

    def _wm_num_tokens(self) -> torch.Tensor:
        """N of the optimizer step that the next micro-batch belongs to."""
        window = self._wm_window
        if window.begins():
            counts = torch.zeros(3, dtype=torch.int64, device=self.accelerator.device)
            if self._wm.active:  # else N divides nothing, and rollouts made ahead would draw before the dropout does
                counts = self.accelerator.reduce(self._wm_count_window(), reduction="sum")
            window.num_tokens = counts[0]
            window.selected, window.environment = counts[1:].tolist()
            window.in_loss = torch.zeros((), dtype=torch.int64, device=self.accelerator.device)
            window.signal = torch.zeros((), device=self.accelerator.device)
            window.sums, window.entropy = 0.0, []
        window.position += 1
        return window.num_tokens

    # -- the loss -------------------------------------------------------------------------------------------------------------

    def _wm_add(
        self, loss: torch.Tensor, logps: torch.Tensor, inputs: dict[str, Any], num_tokens: torch.Tensor
    ) -> torch.Tensor:
        """The host's loss with the term's share of a micro-batch.

        Args:
            loss: the host's.
            logps: (B, T) with gradient, of the tokens to which the columns of `inputs` belong.
            num_tokens: N.
        """
        coeff = self._wm.coeff_at(self.state.global_step)
        if self._wm_guard is not None:
            coeff *= self._wm_guard.guard.multiplier
        loss_weights = within_bounds(logps, inputs["wm_weights"], self._wm)
        term = coeff * echo_loss(logps, loss_weights, num_tokens)
        self._wm_record(logps.detach(), inputs, loss_weights, term.detach(), coeff)
        # Data parallelism averages over ranks what is a sum over them. At 0 the host's tensor goes back as it is.
        if not self._wm.policy_loss:
            return self.accelerator.num_processes * term
        return loss + self.accelerator.num_processes * term if coeff > 0 else loss

    # -- the metrics ----------------------------------------------------------------------------------------------------------

    def _wm_record(
        self, logps: torch.Tensor, inputs: dict[str, Any], loss_weights: torch.Tensor, term: torch.Tensor, coeff: float
    ) -> None:
        meter = self._wm_meters["train" if self.model.training else "eval"]
        sums = meter.add(
            logps,
            inputs["wm_weights"],
            inputs["wm_tool_ids"],
            self._wm_tools,
            loss_weights=loss_weights,
            loss=term,
            masked=inputs["wm_masked"].sum(),
        )
        signal = inputs["advantages"].abs().sum() * self._wm.policy_loss
        if not self.model.training:
            meter.end_step(coeff, signal)
            return
        window = self._wm_window
        window.signal = window.signal + signal
        window.in_loss = window.in_loss + torch.count_nonzero(loss_weights)
        if self._wm_guard is not None:
            window.sums = window.sums + sums
            window.entropy += self._metrics["train"].get("entropy", [])[-1:]  # the host's figure of this micro-batch
        if window.complete:
            meter.end_step(coeff, window.signal, counted=self._wm_watch(coeff) > 0)
            if self._wm_guard is not None:
                self._wm_guard_step(self._wm_guard.guard)

    def _wm_guard_step(self, guard: Guard) -> None:
        window = self._wm_window
        nll, tokens = self.accelerator.reduce(window.sums, reduction="sum").tolist()
        entropy = sum(window.entropy) / len(window.entropy) if window.entropy else None
        self._wm_say(guard.after_step(nll=nll, tokens=tokens, entropy=entropy))

    def _wm_say(self, text: str | None) -> None:
        if text is not None and self.accelerator.is_main_process:
            logger.warning(text)

    def _wm_watch(self, coeff: float) -> int:
        """Say once that an optimizer step had no token to train on, or stop. Every rank decides alike.

        Returns:
            How many tokens it had, over all ranks; at coefficient 0 none.

        Raises:
            UserError: as from `EmptyBatchMonitor.speak`.
        """
        if coeff == 0:
            return 0
        window, config, counted = self._wm_window, self._wm, self._wm_window.selected
        if config.min_token_nll is not None or config.max_token_nll is not None:
            counted = int(self.accelerator.reduce(window.in_loss, reduction="sum"))
        if self._wm_silence.record(coeff=coeff, environment=window.environment, counted=counted):
            self._wm_speak()
        if counted:  # what is told of a later silence is of the rollouts since, or of the same generation batch
            self._wm_tallies = deque(list(self._wm_tallies)[-1:], maxlen=TALLIES)
        return counted

    def _wm_end(self) -> None:  # called as training ends, on every rank
        if self._wm_silence.at_end():
            self._wm_speak()

    def _wm_speak(self) -> None:
        from accelerate.utils import gather_object

        window = self._wm_window
        text = self._wm_silence.report(
            Tally.sum(gather_object(list(self._wm_tallies))),
            environment=window.environment,
            selected=window.selected,
            policy_silent=float(self.accelerator.reduce(window.signal, reduction="sum")) == 0,
        )
        if self.accelerator.is_main_process:
            logger.warning(text)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self._wm is not None:
            mode = "train" if self.model.training else "eval"
            meter = self._wm_meters[mode]
            figures = meter.result(lambda sums: self.accelerator.reduce(sums, reduction="sum"))
            prefix = self._wm_eval_set if mode == "eval" else ""
            if mode == "eval":
                self._wm_held_out[prefix.removesuffix("_")] = meter.nll, meter.tokens
            elif figures and self._wm_guard is not None:
                figures |= {f"{meter.prefix}/{key}": value for key, value in self._wm_guard.guard.figures().items()}
            self._metrics[mode].update({prefix + key: [value] for key, value in figures.items()})
            if figures and meter.term_alone and mode == "train" and self._wm.policy_loss:
                self._wm_warn_once(
                    "silent",
                    "all advantages of an optimizer step were 0: it trained on the world-model term alone "
                    f"(logged as {meter.prefix}/policy_silent)",
                )
        super().log(logs, *args, **kwargs)

    def _wm_warn_once(self, kind: str, message: str) -> None:
        if kind not in self._wm_warned and self.accelerator.is_main_process:
            logger.warning(message)
        self._wm_warned.add(kind)


def nothing_asked(world_model: EchoConfig | None, args: Any, reward_funcs: Any) -> str | None:
    """What to warn of where nobody wrote a coefficient; None if somebody did, or if a reward of predictions trains.

    Args:
        reward_funcs: what the trainer was given; those of `wm_plugin.trl.rewards` are of predictions.
    """
    config = resolve(world_model, args)
    if config is not None and (config.coeff_given or config.active):
        return None
    plain = world_model is None and not (isinstance(args, ObjectiveSettings) and args.echo_fields_set())
    functions = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if plain and any(getattr(function, "reward", None) is not None for function in functions):
        return None
    what = "there is no world_model" if plain else "world_model is given, but coeff is 0"
    return (
        f"{what}: nothing is trained on environment tokens; write coeff=0.05 (world_model=EchoConfig(0.05), or echo_coeff: 0.05 "
        "in a file), or 0 if that is meant"
    )


def resolve(world_model: EchoConfig | None, args: Any) -> EchoConfig | None:
    """The objective of a run, from the argument or the `echo_*` fields of a config.

    Raises:
        UserError: both are given, or the argument is none.
    """
    if world_model is not None and not isinstance(world_model, EchoConfig):
        raise UserError(f"world_model is {shown(world_model)}; write world_model=EchoConfig(coeff=0.05)")
    if not isinstance(args, ObjectiveSettings):
        return world_model
    fields = args.echo_fields_set()
    if world_model is not None and fields:
        raise UserError(f"world_model=EchoConfig(...) and {', '.join(fields)} are the same thing; give one of them")
    return world_model if world_model is not None else args.echo_config()
