"""Run by torchrun: a step of TRL's asynchronous trainer a case on two ranks, compared with plain transformers on all samples.

Usage: async_distributed_on_trl.py OUT.json '[{"fields": {...}}, ...]'
"""

import json
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from trl.experimental.async_grpo import AsyncGRPOTrainer

from support.async_on_trl import config, naive_term, on_a_cpu, run
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelAsyncGRPOTrainer

COEFF = 0.37


class Watched(WorldModelAsyncGRPOTrainer):
    seen: list

    def training_step(self, model, inputs, *args, **kwargs):
        self.seen = [*getattr(self, "seen", []), int((inputs["wm_weights"] != 0).sum())]
        return super().training_step(model, inputs, *args, **kwargs)


def run_case(options: dict, folder: Path) -> dict:
    """On rank 0 what came out; on the other nothing."""
    fields, count = {"max_steps": 1, **options["fields"]}, 2
    _, before, _ = run(AsyncGRPOTrainer, folder, args=config(**fields), rollouts={"ready": 48})
    trainer, after, samples = run(
        Watched, folder, args=config(**fields), rollouts={"ready": 48}, world_model=EchoConfig(COEFF)
    )
    logged = {name: value for name, value in trainer.state.log_history[0].items() if name.startswith("echo")}
    ranks: list = [None] * count
    dist.all_gather_object(ranks, (logged, trainer.seen))
    if dist.get_rank() != 0:
        return {}
    taken = samples[: trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps * count]
    expected, tokens = naive_term(taken, trainer.processing_class)
    difference = after[0].double() - before[0].double()
    return {
        "relative_error": ((difference - COEFF * expected).norm() / (COEFF * expected).norm()).item(),
        "tokens": tokens,
        "tokens_by_rank": [sum(counts) for _, counts in ranks],
        "logged": [figures for figures, _ in ranks],
    }


def main(out: str, cases: list[dict]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        on_a_cpu(patch)
        results = [run_case(case, Path(out).parent / "model") for case in cases]
    if dist.get_rank() == 0:
        with open(out, "w") as file:
            json.dump(results, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
