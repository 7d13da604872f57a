"""verl on a CPU: `VERL_PLATFORM=cpu` in the environment and the Hydra group `wm: cpu` run its stock `main_ppo` without a GPU.

For trying things out with small models, and for tests: generation is by plain transformers, in one process. This package brings
what verl 0.9 lacks for it: the platform `cpu`, the rollout `hf_cpu`, and replacements for what only works on CUDA. Each piece
waits until verl has imported the module that it belongs to. Nothing of it is loaded on other platforms.
"""

import functools
import os
from typing import Any

from wm_plugin.verl.after_import import on_import
from wm_plugin.verl.names import CPU_ROLLOUT, TINY_PARSER

POLL_SECONDS = 0.05


def arm() -> None:
    """Ask for the pieces to be put into verl; `wm_plugin.verl` calls it where VERL_PLATFORM is cpu."""
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")  # the engines are registered for CUDA, and need nothing of it
    on_import("verl.plugin.platform", _register_platform)
    on_import("verl.workers.rollout.replica", _register_replica)
    on_import("verl.workers.rollout.base", _register_weight_sender)
    on_import("verl.experimental.agent_loop.tool_parser", _register_parser)
    on_import("verl.utils.distributed", _name_gloo_once)
    on_import("verl.workers.engine.fsdp.transformer_impl", _reference_without_pinned_memory)
    on_import("verl.utils.model", _value_head_without_flash_attention)
    on_import("verl.trainer.ppo.v1.replay_buffer", _poll_often)


def _register_platform(module: Any) -> None:
    from wm_plugin.verl.cpu.platform import CpuPlatform

    module.PlatformRegistry.register(platform="cpu")(CpuPlatform)


def _register_replica(module: Any) -> None:
    def load() -> type:
        from wm_plugin.verl.cpu.rollout import Replica

        return Replica

    module.RolloutReplicaRegistry.register(CPU_ROLLOUT, load)


def _register_weight_sender(module: Any) -> None:
    module._ROLLOUT_REGISTRY[CPU_ROLLOUT, "async"] = "wm_plugin.verl.cpu.rollout.WeightSender"


def _register_parser(module: Any) -> None:
    """The tool calls of the tiny policy of the recipes: U, D, L or R calls `move`, anything else is a final answer."""
    import json

    from wm_plugin.worlds.grid import MOVES

    @module.ToolParser.register(TINY_PARSER)
    class TinyToolParser(module.ToolParser):
        async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[Any]]:
            text = self.tokenizer.decode(responses_ids)
            if text not in MOVES:
                return text, []
            return "", [module.FunctionCall(name="move", arguments=json.dumps({"direction": text}))]


def _name_gloo_once(module: Any) -> None:
    """verl asks for `cpu:gloo,<device>:<backend>`, which torch refuses where the device is the CPU as well."""
    module.initialize_global_process_group_ray = functools.partial(
        module.initialize_global_process_group_ray, backend="cpu:gloo"
    )
    # the SFT trainer's takes no backend; what else it does is for devices with a number
    module.initialize_global_process_group = module.initialize_global_process_group_ray


def _reference_without_pinned_memory(module: Any) -> None:
    """verl always offloads the reference policy to pinned memory, which needs CUDA; on a CPU there is nowhere to offload to."""
    module.CPUOffloadPolicy = lambda **_: None


def _value_head_without_flash_attention(module: Any) -> None:
    """verl loads the critic's model with flash attention whatever the config says."""

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load_valuehead_model


def _poll_often(module: Any) -> None:
    """verl's trainer looks for finished trajectories every 2 seconds, longer than a small model's step takes."""
    module.ReplayBuffer.__init__ = functools.partialmethod(module.ReplayBuffer.__init__, poll_interval=POLL_SECONDS)
