"""A world as an agent finds it in a world model: rows, levels and tools of its spec, observations that are predicted."""

import random
from dataclasses import dataclass, field

from wm_plugin.worlds.kit.protocol import Chooser
from wm_plugin.worlds.worlds import World, wander
from wm_plugin.worlds.wrappers.control import controlled
from wm_plugin.worlds.wrappers.simulated import simulated
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig


@dataclass(frozen=True)
class SimulatedWorld(World):
    """A world whose class is `simulated`. It has no expert: an expert looks into its environment, and there is none to look into.

    Args:
        config: who plays the world, and what decides an episode.
    """

    config: SimulationConfig = field(kw_only=True)

    @property
    def environment(self) -> type:
        """The class, whose observations are a world model's; under control, by instruction."""
        environment = simulated(self._object(self.spec.path), self.config)
        return environment if self.control is None else controlled(environment, self.control)

    def expert(self) -> Chooser | None:
        """None."""
        return None

    def wanderer(self, rng: random.Random) -> Chooser:
        """Fills in arguments by their types: the world's own wanderer may look into it."""
        return wander(rng)
