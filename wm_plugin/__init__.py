"""World-model objectives, rewards, data, environments and evaluation for TRL and verl, without forking them.

The names below are stable; `wm_plugin.trl` and `wm_plugin.verl` have those of the hosts. Everything else is internal.
"""

from typing import TYPE_CHECKING

from wm_plugin._lazy import lazy

if TYPE_CHECKING:
    from wm_plugin.data import Trajectory, Transition, Turn, build, expand, read, read_transitions
    from wm_plugin.hosting.tags import in_tags
    from wm_plugin.objectives import EchoConfig, GuardConfig, echo_loss
    from wm_plugin.rewards import (
        EmbeddingReward,
        ExactReward,
        HybridReward,
        JudgeReward,
        ReferenceReward,
        RougeReward,
        RubricReward,
        RuleReward,
        RwmlReward,
        TuringReward,
    )
    from wm_plugin.worlds import load, not_a_tool
    from wm_plugin.worlds.agents import play
    from wm_plugin.worlds.wrappers.control import controlled
    from wm_plugin.worlds.wrappers.rewarded import rewarded
    from wm_plugin.worlds.wrappers.simulated import simulated
    from wm_plugin.worlds.wrappers.verified import verified

_MODULES = {  # imported when a name is asked for: some bring torch, which `wm --help` must not wait for
    "EchoConfig": "objectives",
    "EmbeddingReward": "rewards",
    "ExactReward": "rewards",
    "GuardConfig": "objectives",
    "HybridReward": "rewards",
    "JudgeReward": "rewards",
    "ReferenceReward": "rewards",
    "RougeReward": "rewards",
    "RubricReward": "rewards",
    "RuleReward": "rewards",
    "RwmlReward": "rewards",
    "Trajectory": "data",
    "Transition": "data",
    "TuringReward": "rewards",
    "Turn": "data",
    "build": "data",
    "controlled": "worlds.wrappers.control",
    "echo_loss": "objectives",
    "expand": "data",
    "in_tags": "hosting.tags",
    "load": "worlds",
    "not_a_tool": "worlds",
    "play": "worlds.agents",
    "read": "data",
    "read_transitions": "data",
    "rewarded": "worlds.wrappers.rewarded",
    "simulated": "worlds.wrappers.simulated",
    "verified": "worlds.wrappers.verified",
}

__all__ = [
    "EchoConfig",
    "EmbeddingReward",
    "ExactReward",
    "GuardConfig",
    "HybridReward",
    "JudgeReward",
    "ReferenceReward",
    "RougeReward",
    "RubricReward",
    "RuleReward",
    "RwmlReward",
    "Trajectory",
    "Transition",
    "TuringReward",
    "Turn",
    "build",
    "controlled",
    "echo_loss",
    "expand",
    "in_tags",
    "load",
    "not_a_tool",
    "play",
    "read",
    "read_transitions",
    "rewarded",
    "simulated",
    "verified",
]
__getattr__ = lazy(__name__, _MODULES)
