"""verl's replay buffer with additions for rewards: their figures in the metrics of training, and errors that stop the run.

    trainer.v1.sampler.custom_sampler.path=pkg://wm_plugin.verl.sampler trainer.v1.sampler.custom_sampler.name=reward_sampler

The group `wm=reward` sets both. verl does not pass `algorithm.filter_groups` and `sync_refill_failed_groups` on to a custom
sampler. If you need one of them, set `trainer.v1.sampler.custom_sampler.path=null`; figures are then logged in validation only.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from wm_plugin.errors import UserError
from wm_plugin.objectives import EchoConfig
from wm_plugin.rewards.empty import EmptyRewardMonitor
from wm_plugin.rewards.hosted import FIGURES
from wm_plugin.verl.config import with_coeff
from wm_plugin.verl.rewards import stop_reason

SILENCE = ("on_silence", "silent_batches")  # of the block wm

logger = logging.getLogger(__name__)


def reward_sampler(trainer_mode: str, **settings: Any) -> Any:
    """verl's replay buffer for this trainer mode, with the two additions."""
    kind = RewardReplayBuffer if trainer_mode == "sync" else RewardReplayBufferAsync
    return kind(trainer_mode=trainer_mode, **settings)


if TYPE_CHECKING:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer as _Host
else:
    _Host = object


class _RewardMixin(_Host):
    _wm_silence: EmptyRewardMonitor | None = None

    def _sync_metadata_from_transfer_queue(self) -> None:
        super()._sync_metadata_from_transfer_queue()
        # the groups in which a trajectory failed for any reason, in all partitions
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
        own = figures(row.get("reward_extra_info") or {} for row in extra)
        if self.refill_fn is not None:
            self._watch(own, self.refill_fn.__self__, global_steps)
        return batch, {**metrics, **own}

    def _watch(self, own: Mapping[str, float], trainer: Any, global_steps: int) -> None:
        """Warn of rewards that score nothing, or stop the run.

        Args:
            own: the figures of a step's rewards.
            trainer: verl's, whose method asks for further prompts.
        """
        block = trainer.config.get("wm") or {}
        names = [name for name in ("coeff", "preset", *SILENCE) if name in block]
        objective = EchoConfig.read(with_coeff({name: block[name] for name in names}), "wm")
        if self._wm_silence is None:
            self._wm_silence = EmptyRewardMonitor(stop=objective.on_silence == "stop", batches=objective.silent_batches)
        text = self._wm_silence.record(own)
        if global_steps >= trainer.total_training_steps:
            try:
                text = self._wm_silence.at_end() or text
            except UserError as error:
                if not objective.active:
                    raise
                text = str(error)  # and the last step trains on environment tokens
        if text is not None:
            logger.warning(text)


class RewardReplayBuffer(_RewardMixin, ReplayBuffer):
    """For verl's synchronous trainer and for the trainer mode `world_model`."""


class RewardReplayBufferAsync(_RewardMixin, ReplayBufferAsync):
    """For verl's asynchronous trainers."""


def reward_workers() -> list[Any]:
    """Return the Ray actors of verl's reward workers in this run, found by their names."""
    workers: list[Any] = []
    while True:
        try:
            workers.append(ray.get_actor(f"reward_loop_worker_{len(workers)}"))
        except ValueError:
            return workers


def figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each figure over the rows that have it, without NaN."""
    values = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if name.startswith(FIGURES) and not math.isnan(value):
                values[name].append(value)
    return {name: sum(column) / len(column) for name, column in values.items()}
