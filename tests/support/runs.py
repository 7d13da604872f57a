"""Runs by their fields."""

from typing import Any

from wm_plugin.hosting.config import RunConfig


def environment(value: Any, episode_reward: Any = None, protocol: str = "tools", **fields: Any) -> Any:
    """What a run with this environment hands to TRL's `environment_factory`."""
    return RunConfig.read(
        {"environment": value, "episode_reward": episode_reward, "protocol": protocol, **fields}
    ).factory
