"""Trajectories in every format, and what is made of them: transitions, training samples, and rows that TRL and verl read."""

from typing import TYPE_CHECKING

from wm_plugin._lazy import lazy

if TYPE_CHECKING:
    from wm_plugin.data.building import build
    from wm_plugin.data.constructions import documents, imitation, rft
    from wm_plugin.data.kinds import KINDS, samples
    from wm_plugin.data.readers import read
    from wm_plugin.data.sample import Sample
    from wm_plugin.data.schema import Trajectory, Transition, Turn
    from wm_plugin.data.transitions import expand, read_transitions

_MODULES = {
    "KINDS": "kinds",
    "Sample": "sample",
    "Trajectory": "schema",
    "Transition": "schema",
    "Turn": "schema",
    "build": "building",
    "documents": "constructions",
    "expand": "transitions",
    "imitation": "constructions",
    "read": "readers",
    "read_transitions": "transitions",
    "rft": "constructions",
    "samples": "kinds",
}

__all__ = [
    "KINDS",
    "Sample",
    "Trajectory",
    "Transition",
    "Turn",
    "build",
    "documents",
    "expand",
    "imitation",
    "read",
    "read_transitions",
    "rft",
    "samples",
]
__getattr__ = lazy(__name__, _MODULES)
