"""Agents in environments: trajectories of our own worlds, and what a trained world model is good for."""

from wm_plugin.agents.rollout import play, replay

__all__ = ["play", "replay"]
