"""A world in a world model: rows, levels and tools of its spec, and predicted observations."""

import random
from dataclasses import dataclass, field

from wm_plugin.worlds.kit.protocol import Chooser
from wm_plugin.worlds.worlds import World, wander
from wm_plugin.worlds.wrappers.control import controlled
from wm_plugin.worlds.wrappers.simulated import simulated
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig


@dataclass(frozen=True)
class SimulatedWorld(World):
    """A world whose class is `simulated`, as `config` says. It has no expert, since experts look into their environment."""

    config: SimulationConfig = field(kw_only=True)

    @property
    def environment(self) -> type:
        """The class, whose observations are a world model's; control acts by instruction."""
        environment = simulated(self._object(self.spec.path), self.config)
        return environment if self.control is None else controlled(environment, self.control)

    def expert(self) -> Chooser | None:
        return None

    def wanderer(self, rng: random.Random) -> Chooser:
        """Return `wander`, as the world's own wanderer may look into the world."""
        return wander(rng)
