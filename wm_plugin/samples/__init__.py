"""Training samples made of trajectories: prompts, samples, and rows that TRL and verl read."""

from wm_plugin.samples.build import build
from wm_plugin.samples.constructions import documents, imitation, rft
from wm_plugin.samples.kinds import KINDS, samples
from wm_plugin.samples.sample import Sample

__all__ = ["KINDS", "Sample", "build", "documents", "imitation", "rft", "samples"]
