"""Controlled simulation (Qwen-AgentWorld, section 6.1.2): failures, pages, withheld answers and other conditions of an episode.

The same perturbation is an instruction for a world model and a rule for a real world's texts. `controlled(World, config)` is a
class for hosts; `ControlEpisode` is the control of one episode, for whoever runs it alone; `recorded` perturbs recorded
trajectories, so that world models learn to obey the instructions.
"""

from wm_plugin.worlds.wrappers.control.config import ControlConfig
from wm_plugin.worlds.wrappers.control.episode import ControlEpisode, Plan
from wm_plugin.worlds.wrappers.control.perturbations import PERTURBATIONS
from wm_plugin.worlds.wrappers.control.worlds import config_of, control_of, controlled

__all__ = ["PERTURBATIONS", "ControlConfig", "ControlEpisode", "Plan", "config_of", "control_of", "controlled"]
