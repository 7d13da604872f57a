"""The actor's workers: they count the tokens of a whole mini-batch before it is split, and add the term to the loss."""

from functools import partial
from typing import Any

import torch
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from wm_plugin.objectives.run import Objectives, column
from wm_plugin.verl.loss import world_model_loss
from wm_plugin.verl.names import COUNTS, NUM_TOKENS, SENT, SILENT


class WorldModelTrainingWorker(TrainingWorker):
    """verl's training worker of the actor, whatever its engine."""

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False)
    def train_batch(self, data: Any) -> Any:
        """`data` is this rank's part of a mini-batch, one optimizer step: only here can N be counted."""
        if objectives := objectives_of(self.loss_fn):
            names = [column(one, name) for one in SENT for name in objectives]
            missing = [name for name in names if name not in data.keys()]  # noqa: SIM118
            if missing:
                raise RuntimeError(
                    f"wm: the actor's batch has no {', '.join(missing)}: what the trainer wrote did not arrive, and training on "
                    "would leave the world-model term out; report it with your verl version"
                )
            own = [_values(data[column(COUNTS, name)]).sum() for name in objectives]
            counts = torch.stack([*own, torch.count_nonzero(_values(data["advantages"]))]).to(self.device_name)
            group = self.engine.get_data_parallel_group()
            if group is not None:
                torch.distributed.all_reduce(counts, group=group)
            *num_tokens, with_advantage = counts.tolist()
            values = {column(NUM_TOKENS, name): count for name, count in zip(objectives, num_tokens, strict=True)}
            tu.assign_non_tensor(data, **values, **{SILENT: float(with_advantage == 0)})
        return super().train_batch(data)


class WorldModelActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's hybrid worker with our training worker for the actor. Without `wm_configure` it does what verl's does."""

    actor_worker_cls = WorldModelTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wm_configure(self, objectives: Objectives) -> dict[str, Any]:
        """Put the objectives' terms on top of the actor's loss, and return what this process now runs."""
        loss = partial(world_model_loss, base=self.loss_fn, objectives=objectives) if objectives else self.loss_fn
        self.actor.set_loss_fn(loss)
        return {"worker": type(self.actor).__name__, "objectives": list(objectives_of(self.actor.loss_fn))}


class WorldModelDetachActorWorker(WorldModelActorRolloutRefWorker, DetachActorWorker):
    """The same of the worker that can put its weights aside, which `separate_async` has."""


def objectives_of(loss: Any) -> Objectives:
    """Return the objectives of a worker's loss function; none if it is not ours."""
    return loss.keywords["objectives"] if getattr(loss, "func", None) is world_model_loss else Objectives()


def _values(column: torch.Tensor) -> torch.Tensor:
    return column.values() if column.is_nested else column
