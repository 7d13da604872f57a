"""What verl's Megatron engine makes of a loss that has the term, by its own source, since Megatron is not installed here."""

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from on_verl.test_support import ACTOR, stock
from wm_plugin.errors import UserError
from wm_plugin.verl import support

(PACKAGE,) = importlib.util.find_spec("verl").submodule_search_locations
SOURCE = Path(PACKAGE) / "workers/engine/megatron/transformer_impl.py"
METHODS = {"_routed_num_tokens": "MegatronEngine", "postprocess_micro_batch_func": "MegatronEngineWithLMHead"}


def engine_methods() -> dict[str, Any]:
    """Two of the engine's methods without its module, which imports Megatron."""
    methods = [
        node
        for cls in ast.parse(SOURCE.read_text()).body
        if isinstance(cls, ast.ClassDef)
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and METHODS.get(node.name) == cls.name
    ]
    names = {"torch": torch, "tu": tu, "TensorDict": TensorDict, "detach_tree": lambda tree: tree}
    exec(compile(ast.Module(methods, []), str(SOURCE), "exec"), names)
    return names


def scale(ranks: list[list[list[int]]], *, per_token: bool, context: int) -> float:
    """By what a loss is multiplied until its gradient reaches the optimizer; 1: by nothing.

    The sums after the engine's own are Megatron's. Where it counts tokens it divides gradients by the count of all ranks (its
    `finalize_model_grads`), else by micro-batches (its schedule) and data-parallel ranks. The ranks of one context have each a
    part of the gradient and report the same count.

    Args:
        ranks: the lengths of the rows, by data-parallel rank and micro-batch.
        context: ranks that share a sequence.
    """
    methods = engine_methods()
    engine = SimpleNamespace(
        engine_config=SimpleNamespace(
            dynamic_context_parallel=False, use_remove_padding=True, context_parallel_size=context
        ),
        tf_config=SimpleNamespace(calculate_per_token_loss=per_token),
        prepare_model_outputs=lambda output, data: output,
        get_data_parallel_group=lambda: None,
    )
    engine._routed_num_tokens = lambda data: methods["_routed_num_tokens"](engine, data)
    total, tokens = 0.0, 0
    for rank in ranks:
        for lengths in rank:
            rows = torch.nested.as_nested_tensor([torch.zeros(length) for length in lengths], layout=torch.jagged)
            data = TensorDict({"input_ids": rows}, batch_size=len(lengths))
            routed = sum(length for rank in ranks for lengths in rank for length in lengths)
            tu.assign_non_tensor(data, num_micro_batch=len(rank), dp_size=len(ranks), routed_num_tokens=routed)
            share = torch.ones((), dtype=torch.float64) / len(rank)  # of the rank's loss, which is 1
            loss, *counted, _ = methods["postprocess_micro_batch_func"](
                engine, {}, data, False, lambda share=share, **_: (share, {})
            )
            if per_token:
                total, tokens = total + loss.item(), tokens + context * int(counted[0])
            else:
                total += loss.item() / len(rank) / len(ranks)
    return total / tokens if per_token else total


ODD = [[[5, 8], [7]], [[9], [4, 2, 6]]]


def test_without_context_parallelism_both_ways_to_scale_leave_the_loss_as_it_is():
    assert scale(ODD, per_token=False, context=1) == pytest.approx(1, rel=1e-15)
    assert scale(ODD, per_token=True, context=1) == pytest.approx(1, rel=1e-15)
    for per_token in ("true", "false"):
        override = f"+{ACTOR}.megatron.override_transformer_config.calculate_per_token_loss={per_token}"
        support.check_config(stock(f"{ACTOR}.strategy=megatron", override))


def test_context_parallelism_rounds_the_count_of_tokens_and_is_refused():
    """Each micro-batch of an odd number of tokens reports one token less than it has."""
    assert scale(ODD, per_token=True, context=2) == pytest.approx(41 / 38)
    assert scale([[[4]], [[6]]], per_token=True, context=2) == 1
    megatron = (f"{ACTOR}.strategy=megatron", f"+{ACTOR}.megatron.context_parallel_size=2")
    with pytest.raises(UserError, match="context_parallel_size is 2: .* set it to 1$") as error:
        support.check_config(stock(*megatron))
    assert "\n" not in str(error.value)
    support.check_config(stock(*megatron, "wm.coeff=0"))
    support.check_config(stock(*megatron, f"{ACTOR}.strategy=fsdp2"))
