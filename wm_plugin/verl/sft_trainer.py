"""verl's SFT trainer with the world-model term: `torchrun ... -m wm_plugin.verl.sft_trainer <yours> +wm=sft` in the place of
`verl.trainer.sft_trainer`, with `'hydra.searchpath=[pkg://wm_plugin.recipes.verl]'`.

verl has no registry for this trainer, so that a subclass must be started by a module of its own. Rows are those of
`wm data build --as imitation --host verl --tokenizer`; without a block `wm` nothing of ours runs. The term is added to verl's
loss of each micro-batch, from the same log-probabilities; N is counted before a batch is split, over all data-parallel ranks.
"""

import os
import sys
from functools import partial
from typing import Any

import hydra
import torch
from omegaconf import open_dict
from verl.trainer import sft_trainer
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.device import auto_set_device
from verl.utils.tracking import Tracking

from wm_plugin.errors import UserError
from wm_plugin.hosting.dialogues import ENVIRONMENT, Dialogues
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.metrics import learn_tools
from wm_plugin.objectives.run import TOOL_IDS, TRAJECTORIES, WEIGHTS, Objectives, RunObjective, column
from wm_plugin.verl import support
from wm_plugin.verl.sft import ASKED, TokenisedSFTDataset

LIMIT = "data.max_length"  # the host's setting that limits a row's length


class WorldModelSFTTrainer(SFTTrainer):
    """verl's `SFTTrainer` with the term of the block `wm`.

    Raises:
        UserError: a setting that is not known to be exact, or rows without observations.
    """

    training_client: Any  # the host's

    def __init__(self, config: Any) -> None:
        self._wm_objectives = Objectives() if config.get("wm") is None else support.check_sft(config)
        with open_dict(config):
            config.data.pop(ASKED, None)
        super().__init__(config)
        if self._wm_objectives:
            self.training_client.step = self.resume_global_step

    def _build_dataset(self) -> None:
        super()._build_dataset()
        if not self._wm_objectives:
            return
        datasets = [one for one in (self.train_dataset, self.val_dataset) if one is not None]
        for one in datasets:
            if not isinstance(one, TokenisedSFTDataset):
                raise UserError(
                    f"data.custom_cls is {type(one).__name__}, whose rows do not say what the environment wrote; leave it to "
                    "+wm=sft, and give rows of wm data build --as imitation --host verl --tokenizer"
                )
        tools = learn_tools([], {name for one in datasets for name in one.tools()})
        support.check_sft_tools(self._wm_objectives, {*tools})
        self._wm_running = [
            RunObjective(name, one, limit=LIMIT, tools=tools) for name, one in self._wm_objectives.items()
        ]
        dialogues = Dialogues(self._wm_running, partial(self.model_config.tokenizer.decode, skip_special_tokens=True))
        if self._wm_objectives.active:
            dialogues.check(self.train_dataset.dialogues(), "data.train_files", LIMIT)
        for one in datasets:
            one.measure(dialogues, held_out=one is not self.train_dataset)

    def _build_engine(self) -> None:
        super()._build_engine()
        if self._wm_objectives:
            self.training_client = Client(self.training_client, self.loss_fn, self._wm_objectives, self._wm_running)

    def fit(self) -> None:
        if not self._wm_objectives:
            return super().fit()
        client = self.training_client

        class WithFigures(Tracking):
            """Adds what was measured in a validation to the host's figures of it."""

            def log(self, data: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
                return super().log({**data, **client.validated()} if "val/loss" in data else data, *args, **kwargs)

        sft_trainer.Tracking = WithFigures  # a local of verl's `fit`
        try:
            super().fit()
        finally:
            sft_trainer.Tracking = Tracking
        client.at_end()
        return None


class Client:
    """verl's training worker, with the term on top of its loss. All but the batches goes to the worker.

    Args:
        worker: verl's. base: its loss.

    Attributes:
        step: optimizer steps that are done.
    """

    def __init__(self, worker: Any, base: Any, objectives: Objectives, running: list[RunObjective]) -> None:
        self._worker, self._base, self._objectives, self._running = worker, base, objectives, running
        self.step = 0
        self._coeffs: dict[str, float] = {}  # of this step; empty in a validation
        self._num_tokens: dict[str, torch.Tensor] = {}
        self._sums: dict[str, list[torch.Tensor]] = {}
        worker.set_loss_fn(loss_fn=self._loss)
        for one in running:
            for text in one.notices:
                self._say(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def train_batch(self, data: Any) -> Any:
        """`data` is this rank's part of an optimizer step: only here can N be counted."""
        counts = self._reduce(self._count(data))
        self._coeffs = {one.name: one.coeff(self.step) for one in self._running}
        self._num_tokens = dict(zip(self._objectives, counts[:, 0], strict=True))
        self._sums = {name: [] for name in self._objectives}
        output = self._worker.train_batch(data=data)
        self.step += 1
        trained = data["loss_mask"].values().sum() * self._objectives.policy_loss
        figures: dict[str, float] = {}
        for one, (_, selected, environment) in zip(self._running, counts.tolist(), strict=True):
            coeff, meter = self._coeffs[one.name], one.meter("train")
            sums = torch.stack(self._sums[one.name]).sum(dim=0)
            counted = int(self._reduce(sums[2].clone())) if one.objective.has_bounds else selected
            meter.add(sums, one.tools)
            meter.end_step(coeff, trained.to(sums.device), counted=counted > 0)
            figures |= meter.result(self._reduce)
            if coeff > 0 and one.monitor.record(coeff=coeff, environment=environment, counted=counted):
                self._report(one, environment, selected)
        if (metrics := tu.get(output, "metrics") if output is not None else None) is not None:
            tu.assign_non_tensor(output, metrics={**metrics, **figures})
        return output

    def infer_batch(self, data: Any) -> Any:
        counts = self._reduce(self._count(data))
        self._coeffs, self._num_tokens = {}, dict(zip(self._objectives, counts[:, 0], strict=True))
        self._sums = {name: [] for name in self._objectives}
        output = self._worker.infer_batch(data)
        for one in self._running:
            # over all ranks here, as the first one alone will ask for the figures
            one.meter("val").add(self._reduce(torch.stack(self._sums[one.name]).sum(dim=0)), one.tools)
            one.meter("val").end_step(one.coeff(self.step), torch.ones((), device=counts.device))
        return output

    def validated(self) -> dict[str, float]:
        """Return the figures of the batches since the last call."""
        return {
            f"val/{key}": value for one in self._running for key, value in one.meter("val").result(lambda x: x).items()
        }

    def at_end(self) -> None:
        """Report objectives without a token in the whole run."""
        for one in self._running:
            if one.monitor.at_end():
                self._report(one, 0, 0)

    def _count(self, data: Any) -> torch.Tensor:
        """Return (K, 3): what this rank's rows add to N, their selected tokens and the environment's."""
        names = [column(base, name) for name in self._objectives for base in (WEIGHTS, TRAJECTORIES)]
        missing = {ENVIRONMENT, *names} - {*data.keys()}
        if missing:
            raise RuntimeError(f"wm: a batch has no {', '.join(missing)}; report it with your verl version")
        columns = {name: data[name].values() for name in names}
        return self._objectives.counts(columns, data[ENVIRONMENT].values()).to(self._worker.device_name)

    def _loss(self, model_output: Any, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return verl's loss of a micro-batch with its share of the terms; in a validation verl's alone."""
        training = bool(self._coeffs)
        with torch.set_grad_enabled(torch.is_grad_enabled() and (self._objectives.policy_loss or not training)):
            loss, metrics = self._base(model_output=model_output, data=data, dp_group=dp_group)
        logps = model_output["log_probs"].values()[None]
        # a place predicts the token after it; the last one of a row the next row's first, which never counts
        columns = {
            column(base, name): data[column(base, name)].values().roll(-1).to(logps.device)[None]
            for base in (WEIGHTS, TOOL_IDS)
            for name in self._objectives
        }
        total, sums = self._objectives.add_terms(
            loss,
            logps,
            columns,
            coeffs=self._coeffs or {one.name: one.coeff(self.step) for one in self._running},
            num_tokens={name: count.to(logps.device) for name, count in self._num_tokens.items()},
            num_tools={one.name: len(one.tools) for one in self._running},
            ranks=int(data["dp_size"]),
            masked=torch.zeros((), device=logps.device),
        )
        for name, own in sums.items():
            self._sums[name].append(own)
        return (total if training else loss), metrics

    def _reduce(self, values: torch.Tensor) -> torch.Tensor:
        group = self._worker.engine.get_data_parallel_group()
        if group is not None:
            torch.distributed.all_reduce(values, group=group)
        return values

    def _report(self, one: RunObjective, environment: int, selected: int) -> None:
        # other processes may read the rows; what is known here is of the first ones
        self._say(one.monitor.report(Tally.sum(one.tallies), environment=environment, selected=selected))

    def _say(self, text: str) -> None:
        if torch.distributed.get_rank() == 0:
            print(f"wm: {text}", file=sys.stderr)


@hydra.main(config_path="pkg://verl.trainer.config", config_name="sft_trainer_engine", version_base=None)
def main(config: Any) -> None:
    """Train as verl's own main does."""
    auto_set_device(config)
    sft_trainer.SFTTrainer = WorldModelSFTTrainer  # which verl's `run_sft` makes
    try:
        sft_trainer.run_sft(config)
    except UserError as error:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"wm: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
