"""The rollout `hf_cpu`: a Ray actor that generates with transformers, and the part of the trainer that sends it weights."""

import asyncio
import os
from typing import Any

import ray
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from wm_plugin.verl.cpu.generation import Generator, Request

GATHER_SECONDS = 0.005  # how long a batch waits for the other trajectories of the same turn


class Server:
    """What verl's client and replica call on a generation server."""

    def __init__(self, path: str, dtype: str, seed: int, prompt_length: int, response_length: int) -> None:
        self.generator = Generator(path, dtype, seed)
        self.prompt_length, self.response_length = prompt_length, response_length
        self.waiting: list[tuple[Request, asyncio.Future[None]]] = []

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_media: Any
    ) -> TokenOutput:
        room = self.prompt_length + self.response_length - len(prompt_ids)
        max_tokens = sampling_params.get("max_tokens") or max(1, min(self.response_length, room))
        request = self.generator.request(prompt_ids, sampling_params, max_tokens)
        done = asyncio.get_running_loop().create_future()
        self.waiting.append((request, done))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._run)
        await done
        return TokenOutput(
            token_ids=request.token_ids,
            log_probs=request.log_probs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.generator.version},
        )

    def _run(self) -> None:
        batch, self.waiting = self.waiting, []
        try:
            self.generator.run([request for request, _ in batch])
        except Exception as error:
            for _, done in batch:
                done.set_exception(error)
        else:
            for _, done in batch:
                done.set_result(None)

    async def load(self, weights: dict[str, Any], global_steps: int | None) -> None:
        self.generator.load(weights, global_steps)

    async def _nothing(self, *_: Any, **__: Any) -> None: ...

    # On a CPU nothing is released, and nothing cached between requests.
    wake_up = sleep = abort_all_requests = resume_generation = _nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


def server_name(replica_rank: int) -> str:
    return f"hf_cpu_{replica_rank}"


class Replica(RolloutReplica):
    """One server; verl's manager makes as many as the config has."""

    async def launch_servers(self) -> None:
        name = server_name(self.replica_rank)
        self._server_handle = (
            ray.remote(num_cpus=0)(Server)
            .options(name=name)
            .remote(
                self.model_config.path,
                self.config.dtype,
                self.config.seed + self.replica_rank,
                self.config.prompt_length,
                self.config.response_length,
            )
        )
        self._server_address = name
        self.servers = [self._server_handle]


class WeightSender(BaseRollout):
    """Runs in each process of the trainer, or of a rollout elsewhere; the first rank of a replica sends the weights."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int | None = None) -> None:
        super().__init__(config, model_config, device_mesh)
        rank, size = int(os.environ["RANK"]), self.config.tensor_model_parallel_size
        # a rank of a rollout elsewhere is one of the replica's
        self.replica_rank = rank // size if replica_rank is None else replica_rank
        self.sends = rank % size == 0

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **options: Any) -> None:
        # Every rank walks through the weights: gathering a sharded one is a collective.
        gathered = {name: tensor.detach().cpu().clone() async for name, tensor in ensure_async_iterator(weights)}
        if self.sends:
            server = ray.get_actor(server_name(self.replica_rank))
            await server.load.remote(gathered, options.get("global_steps"))
