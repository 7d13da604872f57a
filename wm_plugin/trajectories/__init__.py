"""Rollouts of any format as trajectories, and their transitions: (history, action, next observation)."""

from wm_plugin.trajectories.expand import expand
from wm_plugin.trajectories.readers import read
from wm_plugin.trajectories.schema import Trajectory, Transition, Turn

__all__ = ["Trajectory", "Transition", "Turn", "expand", "read"]
