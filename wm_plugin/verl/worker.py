"""The actor's workers: they count the tokens of a whole mini-batch before it is split, and add the term to the loss."""

from functools import partial
from typing import Any

import torch
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from wm_plugin.objectives import EchoConfig
from wm_plugin.verl.loss import world_model_loss
from wm_plugin.verl.names import COEFF, COLUMNS, COUNTS, NUM_TOKENS, NUM_TOOLS, SILENT


class WorldModelTrainingWorker(TrainingWorker):
    """verl's training worker of the actor, whatever its engine."""

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False)
    def train_batch(self, data: Any) -> Any:
        """`data` is this rank's part of a mini-batch, one optimizer step: only here can N be counted."""
        if world_model_term(self.loss_fn):
            missing = [name for name in (*COLUMNS, COEFF, NUM_TOOLS) if name not in data.keys()]  # noqa: SIM118
            if missing:
                raise RuntimeError(
                    f"wm: the actor's batch has no {', '.join(missing)}: what the trainer wrote did not arrive, and training on "
                    "would leave the world-model term out; report it with your verl version"
                )
            counts = torch.stack([_values(data[COUNTS]).sum(), torch.count_nonzero(_values(data["advantages"]))])
            counts = counts.to(self.device_name)
            group = self.engine.get_data_parallel_group()
            if group is not None:
                torch.distributed.all_reduce(counts, group=group)
            num_tokens, with_advantage = counts.tolist()
            tu.assign_non_tensor(data, **{NUM_TOKENS: num_tokens, SILENT: float(with_advantage == 0)})
        return super().train_batch(data)


class WorldModelActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's hybrid worker with our training worker for the actor. Without `wm_configure` it does what verl's does."""

    actor_worker_cls = WorldModelTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wm_configure(self, config: EchoConfig | None) -> dict[str, Any]:
        """Put the term on top of the actor's loss (None: leave it out), and say what this process now runs."""
        loss = self.loss_fn if config is None else partial(world_model_loss, base=self.loss_fn, config=config)
        self.actor.set_loss_fn(loss)
        return {"worker": type(self.actor).__name__, "term": world_model_term(self.actor.loss_fn)}


class WorldModelDetachActorWorker(WorldModelActorRolloutRefWorker, DetachActorWorker):
    """The same of the worker that can put its weights aside, which `separate_async` has."""


def world_model_term(loss: Any) -> bool:
    """Whether a worker's loss function is ours."""
    return getattr(loss, "func", None) is world_model_loss


def _values(column: torch.Tensor) -> torch.Tensor:
    return column.values() if column.is_nested else column
