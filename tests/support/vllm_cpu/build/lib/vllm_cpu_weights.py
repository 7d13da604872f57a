"""vLLM's CPU backend packs the weights of linear layers once they are loaded, and empties `layer.weight`: they could not be
loaded again, which is how a trainer hands over its policy. Loaded by vLLM in each of its processes, this keeps torch's linear,
which is vLLM's own fallback."""

from typing import Any


def keep() -> None:
    import torch
    from vllm.model_executor.layers import utils

    def keep_weight(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep_weight
