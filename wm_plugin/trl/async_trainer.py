"""The world-model objective inside TRL's asynchronous GRPO trainer.

Its rollouts are made in a process of their own, by older policies, while it trains; a likelihood has no importance ratio, so that
their age makes no difference to the term. Its collator packs rows into one sequence in which tokens that several of them share
are computed once, and its loss takes log-probabilities at chosen places of it. Ours are further places in the same forward: the
collator's labels are completed by the environment's tokens, and the host's own packing says where each is predicted.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from wm_plugin.errors import UserError
from wm_plugin.objectives.base import Objective
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.run import TOOL_IDS, TRAJECTORIES, WEIGHTS, column
from wm_plugin.tokens.spans import Origin
from wm_plugin.trl import async_support, optimizers, sharding, support
from wm_plugin.trl.async_rollout import FactsMixin, Metrics, WorldModelRolloutLoop
from wm_plugin.trl.callbacks import EndCallback
from wm_plugin.trl.doctor import check_tokenizer
from wm_plugin.trl.rewards import check_truth
from wm_plugin.trl.settings import MAX_LOST, ObjectiveSettings
from wm_plugin.trl.term import TermMixin, no_coefficient_warning, resolve

logger = logging.getLogger(__name__)


@dataclass
class WorldModelAsyncGRPOConfig(ObjectiveSettings, AsyncGRPOConfig):
    """`AsyncGRPOConfig` and the fields of `EchoConfig`, each with the prefix `echo_`."""

    def __post_init__(self) -> None:
        if self.turn_budget is not None:
            raise UserError(
                "turn_budget changes while the policy trains, and the rollouts of AsyncGRPOTrainer are made in a process that is "
                "told max_tool_calling_iterations once; write that, or use WorldModelGRPOTrainer"
            )
        if self.look_ahead is not None:
            raise UserError(
                "look_ahead plays evaluations, and AsyncGRPOTrainer has none; use WorldModelGRPOTrainer, or measure its "
                "checkpoints with wm eval lookahead"
            )
        if self.max_lost != MAX_LOST:
            raise UserError("max_lost counts the episodes of a step, and AsyncGRPOTrainer does not; leave it out")
        self.objectives()  # says what is wrong before the host's own checks, which may load a device
        super().__post_init__()


class WorldModelAsyncGRPOTrainer(TermMixin, AsyncGRPOTrainer):
    """TRL's `AsyncGRPOTrainer` with the world-model term.

    With `coeff` 0 for the whole run, loss, gradients, parameters and random numbers are those of the host, bit by bit. The
    environment tokens' NLL is then measured on a CPU alone: elsewhere the host's head computes the log-probabilities of the
    tokens that it trains on and no others, and more of them would change its rounding.

    Args:
        world_model: the objective, or several by name, {name: EchoConfig(...)}. The `echo_*` fields of a
            `WorldModelAsyncGRPOConfig` are the same thing; giving both is an error.
        rollout_worker: TRL's `HarnessRolloutWorker`, or your own; its loop must be a `WorldModelRolloutLoop`, or derive from
            `WorldModelRolloutMixin` (`wm_plugin.trl.async_rollout`).

    Raises:
        UserError: a combination that is not known to be exact (see `wm_plugin.trl.async_support`), with the way out.
    """

    def __init__(
        self,
        *args: Any,
        world_model: Objective | Mapping[str, Any] | None = None,
        tools: list[Callable] | None = None,
        environment_factory: Any = None,
        rollout_worker: Any = None,
        **kwargs: Any,
    ) -> None:
        support.check_arguments(*args[:1], tools=tools, environment_factory=environment_factory, **kwargs)
        support.check_no_curriculum(environment_factory)
        support.check_rows(kwargs.get("train_dataset"), None, environments=environment_factory is not None)
        super().__init__(
            *args, tools=tools, environment_factory=environment_factory, rollout_worker=rollout_worker, **kwargs
        )
        sharding.warn(self)
        support.warn_untested()
        # the host keeps neither; given by position they are not checked
        check_truth(kwargs.get("reward_funcs"), kwargs.get("train_dataset"), warns=self.accelerator.is_main_process)
        optimizers.put(self)
        objectives = resolve(world_model, self.args)
        try:
            async_support.require()
            if self.accelerator.is_main_process:
                _put_loop(self.rollout_worker)
            self._wm_log(
                no_coefficient_warning(world_model, self.args, args[1] if len(args) > 1 else kwargs.get("reward_funcs"))
            )
            names = async_support.names_of_tools(tools, environment_factory)
            asked = objectives.active or objectives.refills
            if not objectives or not (asked or names or rollout_worker is not None):
                return
            async_support.check(self, objectives, names, rollout_worker)
            template = check_tokenizer(self.processing_class)  # not first after a rollout
            if template.state == "fail":
                raise UserError(f"{template.name}: {template.detail}; {template.mend}")
            running = self._wm_make_running(objectives, names)
        except UserError as error:
            if objectives.active or objectives.refills:
                raise
            logger.warning("environment tokens are not measured (coeff is 0): %s", error)
            return
        self._wm_start(objectives, running)
        self.add_callback(EndCallback(self._wm_end))

    # -- batches: where in a packed row the environment's tokens are predicted, and their weights -------------------------------

    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()
        if self._wm and self.accelerator.is_main_process:  # which collates for all ranks
            collate = loader.base_dataloader.collate_fn
            loader.base_dataloader.collate_fn = lambda examples: self._wm_columns(collate(examples), examples[0])
        return loader

    def _wm_columns(self, batch: dict[str, torch.Tensor], rows: list[Any]) -> dict[str, torch.Tensor]:
        """Return a micro-batch of the host's with our columns: (R, M) for R ranks, each with a row; padding has the index -1."""
        samples = [sample for row in rows for sample in row.samples]
        origins = [self._wm_origins(sample) for sample in samples]
        observed = [sum(origin.span.end - origin.span.start for origin in own) for own in origins]
        facts = [getattr(sample["metrics"], "facts", None) for sample in samples]
        unanswered = sum(one.calls for one, some in zip(facts, observed, strict=True) if one and not some)
        tally = Tally(environment=sum(observed), unanswered=unanswered)
        equal = [one is not None and one.without_variance for one in facts]
        length = max(len(sample["input_ids"]) for sample in samples)
        own_columns: dict[str, torch.Tensor] = {}  # (samples, T)
        for one in self._wm_running:
            own_columns |= one.columns(one.weigh(origins, equal, tally), length)
        counted = {one.name: own_columns.pop(column(TRAJECTORIES, one.name)) for one in self._wm_running}
        own_columns = {  # gloo and NCCL send no int16
            name: values if values.is_floating_point() else values.long() for name, values in own_columns.items()
        }
        columns: dict[str, list[torch.Tensor]] = {}
        environment = []
        for row in rows:
            count = len(row.samples)
            for name, values in _terms(row, {name: own[:count] for name, own in own_columns.items()}).items():
                columns.setdefault(name, []).append(values)
            own_columns = {name: own[count:] for name, own in own_columns.items()}
            environment.append(sum(observed[:count]))
            observed = observed[count:]
        labels = pad_sequence(columns.pop("labels"), batch_first=True, padding_value=-100)
        return {
            **batch,
            "shift_labels": torch.where(labels == -100, batch["shift_labels"], labels),
            "wm_environment": torch.tensor(environment),
            **{column(TRAJECTORIES, name): values.sum().unsqueeze(0) for name, values in counted.items()},
            **{
                name: pad_sequence(values, batch_first=True, padding_value=-1 if name == "wm_index" else 0)
                for name, values in columns.items()
            },
        }

    def _wm_origins(self, sample: dict[str, Any]) -> list[Origin]:
        """Return the environment's spans in a sample and what is known of each."""
        metrics = sample["metrics"]
        problem = (
            metrics.facts.problem
            if isinstance(metrics, Metrics)
            else "a sample has no facts about the environment's tokens: the loop of your own rollout_worker must be a "
            "wm_plugin.trl.async_rollout.WorldModelRolloutLoop, or have WorldModelRolloutMixin as its first base"
        )
        if not problem:
            if metrics.facts.note:
                self._wm_warn_once("note", metrics.facts.note)
            return [Origin.unpack(values) for values in metrics.facts.origins]
        if self._wm.active:
            raise UserError(problem)
        self._wm_warn_once("spans", f"environment tokens of a sample are not measured (coeff is 0): {problem}")
        return []

    # -- the count and the loss -------------------------------------------------------------------------------------------------

    def _prepare_inputs(self, inputs: Any) -> Any:
        inputs = super()._prepare_inputs(inputs)
        if not self._wm or not self.model.training:
            return inputs
        return {**inputs, "wm_num_tokens": self._wm_num_tokens()}

    def _wm_count_window(self) -> torch.Tensor:
        counts = []
        for batch in self._wm_window.batches:  # which has the numbers of environment tokens alone
            number = batch["wm_environment"].sum()
            counts.append(self._wm.counts(batch, torch.ones(int(number), dtype=torch.int64, device=number.device)))
        return torch.stack(counts).sum(dim=0).to(self.accelerator.device)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        if not self._wm or not self.model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = []

        def forward(**kwargs: Any) -> Any:
            outputs.append(model(**kwargs))
            return outputs[-1]

        loss = super().compute_loss(forward, inputs, return_outputs, num_items_in_batch)
        if len(outputs) != 1:
            raise RuntimeError(
                f"the policy loss ran the model {len(outputs)} times instead of once; "
                "which log-probabilities the world-model term should use is not known"
            )
        present = inputs["wm_index"] >= 0
        logps = outputs[0].log_probs.flatten()[inputs["wm_index"][present]]
        columns = {
            column(base, name): inputs[column(base, name)][present].unsqueeze(0)
            for base in (WEIGHTS, TOOL_IDS)
            for name in self._wm
        }
        columns |= {name: inputs[name] for name in ("wm_num_tokens", "advantages")}
        columns["wm_masked"] = torch.zeros(1, device=logps.device)  # the host masks no completions
        return self._wm_add(loss, logps.unsqueeze(0), columns)


def _put_loop(worker: Any) -> None:
    """Let TRL's worker run our loop, which its process makes as it starts."""
    loop = getattr(worker, "_loop_cls", None)  # the user's own worker need not have it
    if loop is None or issubclass(loop, FactsMixin):
        return
    mixin, ours = "async_rollout.WorldModelRolloutMixin", WorldModelRolloutLoop
    if any(base.__name__ == "_HarnessRolloutLoop" for base in loop.__mro__):  # whose module needs OpenEnv
        async_support.require_harness()
        from wm_plugin.trl.harness import WorldModelHarnessLoop

        mixin, ours = "harness.WorldModelHarnessMixin", WorldModelHarnessLoop
    if loop not in ours.__mro__:
        raise UserError(
            f"{type(worker).__name__} runs {loop.__name__}, which records nothing about the environment's tokens: derive a loop "
            f"from wm_plugin.trl.{mixin} and it, and name that in the worker's _loop_cls"
        )
    worker._loop_cls = ours


def _terms(row: Any, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the environment's tokens of a packed row, by the host's own packing: they take the place of the trained ones.

    Args:
        row: the host's `TreeRow`.
        columns: of the objectives, (samples, T) each.

    Returns:
        labels: (N,) the token that each position of the row predicts, -100 = none of the environment's that counts.
        wm_index, and each of the columns: (M,) the position that predicts each of these tokens, and its values.
    """
    samples = row.samples
    weights = [values for name, values in columns.items() if name.startswith(WEIGHTS)]
    selected = torch.stack(weights).ne(0).any(dim=0)
    masks = [selected[place, : len(sample["input_ids"])] for place, sample in enumerate(samples)]
    row.samples = [{**sample, "completion_mask": mask} for sample, mask in zip(samples, masks, strict=True)]
    try:
        packed = row.pack()
    finally:
        row.samples = samples
    selected[:, 0] = False  # nothing predicts the first token of a row
    return {
        "labels": packed["shift_labels"],
        "wm_index": packed["token_index"],
        **{name: values[selected] for name, values in columns.items()},
    }
