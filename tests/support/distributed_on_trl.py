"""Run by torchrun: a scripted training step a case on every rank; rank 0 compares with plain transformers on all batches.

Usage: distributed_on_trl.py OUT.json '[{"echo": {...}, "fields": {...}, "silent_rank": null}, ...]'
"""

import json
import sys

import torch
import torch.distributed as dist
from trl import GRPOTrainer

from support import reference as trl_reference
from support.on_trl import Batches, Scripted, config, dataset, make_model, run, write_and_leave
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer


class Stock(Batches, Scripted, GRPOTrainer):
    pass


class Ours(Batches, Scripted, WorldModelGRPOTrainer):
    pass


def often_equal(completions: list, **_: object) -> list[float]:
    return [float(len(str(completion)) % 2) for completion in completions]


def run_guard(guard: dict) -> dict:
    """What a guard made of some steps, on each rank, one of which has no environment tokens."""
    Ours.silent_rank = 1
    fields = {"max_steps": 4, "learning_rate": 1e-2, "eval_strategy": "steps", "eval_steps": 1}
    args = config(gradient_accumulation_steps=1, per_device_eval_batch_size=4, **fields)
    ours, _ = run(Ours, args=args, eval_dataset=dataset(2), world_model=EchoConfig(0.5, guard=guard))
    rows = [row for row in ours.state.log_history if "echo/coeff" in row]
    own = {"state": ours._wm_running[0].guard.state_dict(), "coefficients": [row["echo/coeff"] for row in rows]}
    ranks: list = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return {"ranks": ranks}


def run_case(options: dict) -> dict:
    """On rank 0 what came out; on the other nothing."""
    if "guard" in options:
        return run_guard(options["guard"])
    Stock.silent_rank = Ours.silent_rank = options["silent_rank"]
    fields = {"max_steps": 1, **options["fields"]}
    echo = EchoConfig(**options["echo"])
    if echo.refills:  # the same batch without the term
        rewards = {"reward_funcs": [often_equal]}
        _, before = run(Ours, args=config(**fields), world_model=echo.replace(coeff=0.0), **rewards)
    else:
        rewards = {}
        _, before = run(Stock, args=config(**fields))
    ours, after = run(Ours, args=config(**fields), world_model=echo, **rewards)
    tokenizer = ours.processing_class
    ranks: list = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, ours.batches)
    keys: list = [None] * dist.get_world_size()
    logged = {k: v for k, v in ours.state.log_history[0].items() if k.startswith(("echo", "wm/env"))}
    dist.all_gather_object(keys, logged)
    if dist.get_rank() != 0:
        return {}
    batches = [batch for rank in ranks for batch in rank]
    # every result of these tools is of one category
    ratio = echo.turn_information["action"] if echo.turn_information else 1.0
    masks = [ratio * trl_reference.weights(batch, tokenizer, None) for batch in batches]
    model = make_model(tokenizer, dtype=torch.float64)
    expected, tokens = trl_reference.term_gradient(model, batches, masks)
    difference = after[0].double() - before[0].double()
    expected = echo.coeff * expected
    return {
        "relative_error": ((difference - expected).norm() / expected.norm()).item(),
        "tokens": tokens,
        "tokens_by_rank": [
            sum(int((trl_reference.weights(b, tokenizer, None) != 0).sum()) for b in rank) for rank in ranks
        ],
        "counted": int(batches[0]["wm_num_tokens"]),
        "with_advantage": all(bool(batch["advantages"].all()) for batch in batches),
        "same_metrics": all(k == keys[0] for k in keys),
        "metrics": keys[0],
        "environment_tokens": sum(int((b["completion_mask"] * (1 - b["tool_mask"])).sum()) for b in batches)
        / sum(len(b["completion_mask"]) for b in batches),
    }


if __name__ == "__main__":
    write_and_leave(sys.argv[1], [run_case(case) for case in json.loads(sys.argv[2])])
