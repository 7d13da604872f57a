"""Run by torchrun: scripted training steps on DDP and on engines that shard; rank 0 compares them with each other, and the term
with plain transformers on all batches.

Usage: ranks_on_trl.py OUT.json '[{"engine": "fsdp2", "fields": {...}, "silent_rank": null, "echo": {...}}, ...]'

An update by SGD at a learning rate of 1 is the gradient, also where an engine keeps the gradients for itself.
"""

import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from trl import GRPOTrainer

from support import foreseeing
from support import reference as trl_reference
from support.on_trl import Batches, Scripted, config, dataset, make_model, run, write_and_leave
from support.on_trl import make as make_trainer
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer

# what `accelerate launch` sets
ENGINES = {
    "ddp": {},
    "fsdp2": {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    },
    **{
        f"zero{stage}": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage)}
        for stage in (1, 2, 3)
    },
}


class Losses(Batches, Scripted):
    """Keeps the loss of every micro-batch."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().compute_loss(*args, **kwargs)
        self.losses = [*getattr(self, "losses", ()), loss.item()]
        return loss


class Stock(Losses, GRPOTrainer):
    pass


class Ours(Losses, WorldModelGRPOTrainer):
    pass


def often_equal(completions: list, **_: object) -> list[float]:
    return [float(len(str(completion)) % 2) for completion in completions]


def make(cls: type, engine: str, dtype: str, echo: EchoConfig, *, as_on_gpus: bool = False, **fields: Any) -> Any:
    for variables in ENGINES.values():
        for name in variables:
            os.environ.pop(name, None)
    os.environ.update(ENGINES[engine])
    args = config(**{"max_steps": 1, "learning_rate": 1.0, "optim": "sgd", **fields})
    if as_on_gpus:  # accelerate shards nothing in processes that it knows to be on a CPU; their device stays the CPU
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    more: dict[str, Any] = {"world_model": echo} if cls is Ours else {}
    if echo.refills:
        more["reward_funcs"] = [often_equal]
    trainer = make_trainer(cls, args=args, dtype=getattr(torch, dtype), **more)
    if engine == "zero3":  # parameters as small as these would stay whole
        settings = trainer.accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
        settings["stage3_param_persistence_threshold"] = 0
    return trainer


def train(cls: type, engine: str, case: dict, echo: EchoConfig) -> dict:
    """A training step: the update of all parameters, and of all ranks what they saw and what they logged."""
    Stock.silent_rank = Ours.silent_rank = case["silent_rank"]
    trainer = make(cls, engine, case.get("dtype", "float64"), echo, as_on_gpus=engine != "ddp", **case["fields"])
    before = {name: value.detach().double().clone() for name, value in trainer.model.named_parameters()}
    torch.manual_seed(11 + trainer.accelerator.process_index)
    trainer.train()
    logged = {
        k: v for k, v in trainer.state.log_history[0].items() if k.startswith(("echo", "wm/env")) or k == "grad_norm"
    }
    facts = facts_of(trainer)  # before parameters are put together
    parameters = dict(trainer.model.named_parameters())
    assert parameters.keys() == before.keys()
    with gathered(list(parameters.values())):
        update = torch.cat([(before[name] - full(value).double()).flatten() for name, value in parameters.items()])
    own = {"batches": trainer.batches, "losses": trainer.losses, "logged": logged, "facts": facts}
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return {"update": update, "tokenizer": trainer.processing_class, "ranks": ranks}


def facts_of(trainer: Any) -> dict:
    parameters = list(trainer.model.parameters())
    engine = getattr(trainer, "deepspeed", None)
    return {
        "distributed_type": trainer.accelerator.distributed_type.value,
        "processes": trainer.accelerator.num_processes,
        "kinds": sorted({type(parameter).__name__ for parameter in parameters}),
        "sharded": sorted({str(getattr(parameter, "placements", None)) for parameter in parameters}),
        "tied": trainer.model.lm_head.weight is trainer.model.model.embed_tokens.weight,
        # each parameter once: those of tied embeddings are one
        "numbers": sum(parameter.numel() for parameter in parameters),
        "numbers_here": sum(local(parameter).numel() for parameter in parameters),
        "stage": engine.zero_optimization_stage() if engine is not None else None,
    }


def full(parameter: torch.Tensor) -> torch.Tensor:
    value = parameter.detach()
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


@contextlib.contextmanager
def gathered(parameters: list[torch.Tensor]) -> Any:
    """ZeRO-3's parameters are empty outside of this."""
    if any(hasattr(parameter, "ds_id") for parameter in parameters):
        import deepspeed

        with deepspeed.zero.GatheredParameters(parameters):
            yield
    else:
        yield


def run_guard(guard: dict) -> dict:
    """What a guard made of some steps, on each rank, one of which has no environment tokens."""
    Ours.silent_rank = 1
    args = {"max_steps": 4, "learning_rate": 1e-2, "eval_strategy": "steps", "eval_steps": 1}
    args |= {"gradient_accumulation_steps": 1, "per_device_eval_batch_size": 4}
    ours, _ = run(Ours, args=args, eval_dataset=dataset(2), world_model=EchoConfig(0.5, guard=guard))
    rows = [row for row in ours.state.log_history if "echo/coeff" in row]
    own = {"state": ours._wm_running[0].guard.state_dict(), "coefficients": [row["echo/coeff"] for row in rows]}
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return {"ranks": ranks}


def run_asynchronously(folder: Path) -> dict:
    """A step of TRL's asynchronous trainer, one rank of which collates for both."""
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    from support import async_on_trl
    from wm_plugin.trl import WorldModelAsyncGRPOTrainer

    class Watched(WorldModelAsyncGRPOTrainer):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen = getattr(self, "seen", 0) + int((inputs["wm_weights"] != 0).sum())
            return super().training_step(model, inputs, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        async_on_trl.on_a_cpu(patch)
        given = {"args": async_on_trl.config(max_steps=1), "rollouts": {"ready": 48}}
        _, before, _ = async_on_trl.run(AsyncGRPOTrainer, folder, **given)
        trainer, after, samples = async_on_trl.run(Watched, folder, world_model=EchoConfig(0.37), **given)
    logged = {name: value for name, value in trainer.state.log_history[0].items() if name.startswith("echo")}
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, (logged, trainer.seen))
    if dist.get_rank() != 0:
        return {}
    size = trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps * len(ranks)
    expected, tokens = async_on_trl.naive_term(samples[:size], trainer.processing_class)
    difference = after[0].double() - before[0].double()
    return {
        "relative_error": error(difference, 0.37 * expected),
        "tokens": tokens,
        "tokens_by_rank": [count for _, count in ranks],
        "logged": [figures for figures, _ in ranks],
    }


def run_with_predictions() -> dict:
    """A step on one group of four, half of it on each rank: what was played, and what the scores added to each token."""
    fields = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "num_generations": 4}
    torch.manual_seed(11 + dist.get_rank())
    trainer, _ = foreseeing.trained({"coeff": foreseeing.COEFF}, **fields)
    (batch,) = trainer.batches
    own = {
        "dialogues": [messages for messages, *_ in trainer.played],
        "ids": [list(ids) for _, ids, _ in trainer.played],
        "sampled": batch["tool_mask"].tolist(),
        "added": batch["wm_turns"].tolist(),
        "completions": [
            ids[mask.bool()].tolist()
            for ids, mask in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
        ],
    }
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return {"ranks": ranks}


def run_case(case: dict, folder: Path) -> dict:
    """On rank 0 what came out; on the other nothing."""
    if "predictions" in case:
        return run_with_predictions()
    if "guard" in case:
        return run_guard(case["guard"])
    if "asynchronous" in case:
        return run_asynchronously(folder)
    echo, engine = EchoConfig(**case.get("echo", {"coeff": 0.37})), case.get("engine", "ddp")
    # where groups are refilled, the same batch without the term
    stock = train(Ours, engine, case, echo.replace(coeff=0.0)) if echo.refills else train(Stock, engine, case, echo)
    ours = train(Ours, engine, case, echo)
    ddp = ours if engine == "ddp" else train(Ours, "ddp", case, echo)
    if dist.get_rank() != 0:
        return {}
    tokenizer = ours["tokenizer"]
    by_rank = [[trl_reference.weights(batch, tokenizer, None) for batch in rank["batches"]] for rank in ours["ranks"]]
    batches = [batch for rank in ours["ranks"] for batch in rank["batches"]]
    # every result of these tools is of one category
    ratio = echo.turn_information["action"] if echo.turn_information else 1.0
    model = make_model(tokenizer, dtype=torch.float64)
    masks = [ratio * mask for masks in by_rank for mask in masks]
    expected, tokens = trl_reference.term_gradient(model, batches, masks)
    environment = sum(int((b["completion_mask"] * (1 - b["tool_mask"])).sum()) for b in batches)
    return {
        "same_batches": same_batches(ours, ddp) and same_batches(ours, stock),
        "term_error": error(unclipped(ours, case) - unclipped(stock, case), echo.coeff * expected),
        "update_error": error(ours["update"], ddp["update"]),
        "update_norm": ours["update"].norm().item(),
        "losses": [[rank["losses"] for rank in run["ranks"]] for run in (ours, ddp)],
        "logged": [[rank["logged"] for rank in run["ranks"]] for run in (ours, ddp)],
        "facts": [rank["facts"] for rank in ours["ranks"]],
        "ddp_facts": ddp["ranks"][0]["facts"],
        "tokens": tokens,
        "tokens_by_rank": [sum(int((mask != 0).sum()) for mask in masks) for masks in by_rank],
        "counted": int(batches[0]["wm_num_tokens"]),
        "with_advantage": all(bool(batch["advantages"].all()) for batch in batches),
        "environment_tokens": environment / sum(len(batch["completion_mask"]) for batch in batches),
    }


def unclipped(run: dict, case: dict) -> torch.Tensor:
    """The gradient before it was clipped, by the norm that was logged."""
    norm, limit = run["ranks"][0]["logged"]["grad_norm"], case["fields"].get("max_grad_norm")
    return run["update"] if limit is None else run["update"] * (norm + 1e-6) / limit


def error(value: torch.Tensor, expected: torch.Tensor) -> float:
    return ((value - expected).norm() / expected.norm()).item()


def same_batches(one: dict, other: dict) -> bool:
    pairs = [
        (a["completion_ids"], b["completion_ids"])
        for rank, beside in zip(one["ranks"], other["ranks"], strict=True)
        for a, b in zip(rank["batches"], beside["batches"], strict=True)
    ]
    return all(torch.equal(a, b) for a, b in pairs)


def left_out(**fields: Any) -> dict:
    """What accelerate makes of FSDP on a CPU, unless it is told otherwise, and what our trainer says of it."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("wm_plugin.trl.sharding")
    logger.addHandler(handler)
    try:
        trainer = make(Ours, "fsdp2", "float32", EchoConfig(0.37), **fields)
    finally:
        logger.removeHandler(handler)
    return {"distributed_type": trainer.accelerator.distributed_type.value, "messages": messages}


def main(out: str, cases: list[dict]) -> None:
    results: dict[str, Any] = {"cases": [run_case(case, Path(out).parent / "model") for case in cases]}
    if cases[0].get("engine") == "fsdp2":
        results["left_out"] = [left_out(use_cpu=True), left_out(use_cpu=False)]
    write_and_leave(out, results)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
