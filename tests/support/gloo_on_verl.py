"""The checkpoint engine `gloo_cpu`: the trainer's first rank broadcasts its weights to a rollout in other processes.

`actor_rollout_ref.rollout.checkpoint_engine.backend=gloo_cpu` and `custom_backend_module=support.gloo_on_verl` beside it.
"""

import pickle
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

TIMEOUT = timedelta(seconds=120)


@CheckpointEngineRegistry.register("gloo_cpu")
class GlooCheckpointEngine(CheckpointEngine):
    """Ranks that neither send nor receive have the rank -1, and no group."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self.store: TCPStore | None = None
        self.group: ProcessGroupGloo | None = None

    def prepare(self) -> Any:
        if not self.is_master:
            return None
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        return self.store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {
                "rank": ranks,
                "world_size": [1 + rollout_world_size] * len(ranks),
                "port": [metadata[0]] * len(ranks),
            }

        senders = [0] + [-1] * (actor_wg_world_size - 1)
        return arguments(senders), arguments([1 + rank for rank in range(rollout_world_size)])

    def init_process_group(self, rank: int, world_size: int, port: int) -> None:
        if rank > 0:
            self.store = TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
        if rank >= 0:
            self.group = ProcessGroupGloo(self.store, rank, world_size, TIMEOUT)

    def finalize(self) -> None:
        self.store = self.group = None

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, Any]:
        # every rank walks through them: gathering a sharded one is a collective
        whole = [(name, tensor.detach().cpu().contiguous()) for name, tensor in weights]
        if self.group is not None:
            self.store.set("weights", pickle.dumps([(name, tensor.shape, tensor.dtype) for name, tensor in whole]))
            for _, tensor in whole:
                self._broadcast(tensor)
        return {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        for name, shape, dtype in pickle.loads(self.store.get("weights")):
            tensor = torch.empty(shape, dtype=dtype)
            self._broadcast(tensor)
            yield name, tensor

    def _broadcast(self, tensor: torch.Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self.group.broadcast([tensor], options).wait()
