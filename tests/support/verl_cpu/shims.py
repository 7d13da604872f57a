"""What is put into verl, and where. Each piece waits until verl itself has imported the module that it belongs to."""

import functools
from types import ModuleType

from wm_plugin.verl.after_import import on_import

ROLLOUT = "hf_cpu"  # actor_rollout_ref.rollout.name
PARSER = "wm_tiny"  # actor_rollout_ref.rollout.multi_turn.format
POLL_SECONDS = 0.05


def arm() -> None:
    on_import("verl.plugin.platform", _register_platform)
    on_import("verl.workers.rollout.replica", _register_replica)
    on_import("verl.workers.rollout.base", _register_adapter)
    on_import("verl.experimental.agent_loop.tool_parser", _register_parser)
    on_import("verl.utils.distributed", _name_gloo_once)
    on_import("verl.workers.engine.fsdp.transformer_impl", _reference_without_pinned_memory)
    on_import("verl.utils.model", _value_head_without_flash_attention)
    on_import("verl.trainer.ppo.v1.replay_buffer", _poll_often)


def _register_platform(module: ModuleType) -> None:
    from support.verl_cpu.platform import CpuPlatform

    module.PlatformRegistry.register(platform="cpu")(CpuPlatform)


def _register_replica(module: ModuleType) -> None:
    def load() -> type:
        from support.verl_cpu.rollout import Replica

        return Replica

    module.RolloutReplicaRegistry.register(ROLLOUT, load)


def _register_adapter(module: ModuleType) -> None:
    module._ROLLOUT_REGISTRY[ROLLOUT, "async"] = "support.verl_cpu.rollout.WeightSender"


def _register_parser(module: ModuleType) -> None:
    from support.verl_cpu.parser import TinyToolParser

    module.ToolParser.register(PARSER)(TinyToolParser)


def _name_gloo_once(module: ModuleType) -> None:
    """verl asks for `cpu:gloo,<device>:<backend>`, which torch refuses where the device is the CPU as well."""
    module.initialize_global_process_group_ray = functools.partial(
        module.initialize_global_process_group_ray, backend="cpu:gloo"
    )
    # of the SFT trainer, which takes no backend; what else it does is for devices that have a number
    module.initialize_global_process_group = module.initialize_global_process_group_ray


def _reference_without_pinned_memory(module: ModuleType) -> None:
    """The reference policy is always offloaded to pinned memory, which needs CUDA; on a CPU there is nowhere to offload to."""
    module.CPUOffloadPolicy = lambda **_: None


def _value_head_without_flash_attention(module: ModuleType) -> None:
    """The critic's model is loaded with flash attention whatever the config says."""

    def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load_valuehead_model


def _poll_often(module: ModuleType) -> None:
    """The trainer looks for finished trajectories every 2 seconds, longer than a tiny step takes."""
    module.ReplayBuffer.__init__ = functools.partialmethod(module.ReplayBuffer.__init__, poll_interval=POLL_SECONDS)
