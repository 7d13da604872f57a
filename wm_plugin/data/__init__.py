"""Trajectories in every format, and what is made of them: transitions, training samples, and rows that TRL and verl read.

A file becomes rows in this order: `files` yields its records, a module of `readers` makes trajectories of them, `filter` and
`transitions` choose among them, `kinds` writes samples with `prompts`, and `rows` writes a host's columns. `building` does all of
it; each step is a generator, and only the last one writes.
"""

from typing import TYPE_CHECKING

from wm_plugin._lazy import lazy

if TYPE_CHECKING:
    from wm_plugin.data.building import build as build
    from wm_plugin.data.constructions import documents as documents
    from wm_plugin.data.constructions import imitation as imitation
    from wm_plugin.data.constructions import rft as rft
    from wm_plugin.data.kinds import KINDS as KINDS
    from wm_plugin.data.kinds import samples as samples
    from wm_plugin.data.readers import read as read
    from wm_plugin.data.sample import Sample as Sample
    from wm_plugin.data.schema import Trajectory as Trajectory
    from wm_plugin.data.schema import Transition as Transition
    from wm_plugin.data.schema import Turn as Turn
    from wm_plugin.data.transitions import expand as expand
    from wm_plugin.data.transitions import read_transitions as read_transitions

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

__all__ = list(_MODULES)
__getattr__ = lazy(__name__, _MODULES)
