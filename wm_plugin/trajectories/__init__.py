"""The data: anybody's rollouts as trajectories, and what is made of them."""

from wm_plugin.trajectories.expand import expand
from wm_plugin.trajectories.readers import read
from wm_plugin.trajectories.schema import Trajectory, Transition, Turn

__all__ = ["Trajectory", "Transition", "Turn", "expand", "read"]
