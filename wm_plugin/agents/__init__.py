"""Agents in environments: policies, their rollouts as trajectories, and data made by trying other actions."""

from wm_plugin.agents.rollout import play, replay

__all__ = ["play", "replay"]
