"""Agents that play worlds: rollouts, and policies that are scripts, servers or local models."""

from wm_plugin.worlds.agents.rollout import play, replay

__all__ = ["play", "replay"]
