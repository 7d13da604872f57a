"""What verl's replay buffer does not do for rewards: their figures in the metrics of training, and a run that they can stop.

    trainer.v1.sampler.custom_sampler.path=pkg://wm_plugin.verl.sampler trainer.v1.sampler.custom_sampler.name=reward_sampler

The group `wm=reward` says so. verl gives a custom sampler nothing of `algorithm.filter_groups` and `sync_refill_failed_groups`:
who needs one of these sets `trainer.v1.sampler.custom_sampler.path=null`, and has figures in validation only.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from wm_plugin.errors import UserError
from wm_plugin.verl.micro_batch import FIGURES
from wm_plugin.verl.rewards import stop_reason


def reward_sampler(trainer_mode: str, **settings: Any) -> Any:
    """verl's replay buffer for this trainer mode, with the two additions."""
    kind = RewardReplayBuffer if trainer_mode == "sync" else RewardReplayBufferAsync
    return kind(trainer_mode=trainer_mode, **settings)


if TYPE_CHECKING:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer as _Host
else:
    _Host = object


class _RewardMixin(_Host):
    def _sync_metadata_from_transfer_queue(self) -> None:
        super()._sync_metadata_from_transfer_queue()
        # groups of all partitions in which a trajectory failed, for whatever reason
        if any(self.failure_keys.values()):
            for worker in reward_workers():
                if reason := ray.get(worker.__ray_call__.remote(stop_reason)):
                    raise UserError(reason)

    def sample(self, global_steps: int, partition_id: str, *args: Any, **settings: Any) -> tuple[Any, dict[str, Any]]:
        batch, metrics = super().sample(global_steps, partition_id, *args, **settings)
        if partition_id == "val" or not batch.keys:
            return batch, metrics
        fields = tq.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=["extra_fields"])
        extra = [getattr(value, "data", value) or {} for value in fields["extra_fields"]]
        return batch, {**metrics, **figures(row.get("reward_extra_info") or {} for row in extra)}


class RewardReplayBuffer(_RewardMixin, ReplayBuffer):
    """For verl's synchronous trainer, and for ours."""


class RewardReplayBufferAsync(_RewardMixin, ReplayBufferAsync):
    """For verl's asynchronous trainers."""


def reward_workers() -> list[Any]:
    """verl's reward workers of this run, by the names that it gives them."""
    workers: list[Any] = []
    while True:
        try:
            workers.append(ray.get_actor(f"reward_loop_worker_{len(workers)}"))
        except ValueError:
            return workers


def figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The means of rewards' figures over the rows that have them; a NaN is left out."""
    values = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if name.startswith(FIGURES) and not math.isnan(value):
                values[name].append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}
