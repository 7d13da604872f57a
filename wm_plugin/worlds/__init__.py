"""Where rollouts come from: one world a file, or a package where it has several parts.

Every world is a class in the form that TRL's `environment_factory` takes, and that our verl agent loop drives too:

* `reset(**columns) -> str`: starts the episode that a dataset row describes and returns the first observation;
* every public method is a tool; it returns the next observation as text;
* `get_reward() -> float`: the outcome of the episode. A class may leave it to the trainer's rewards;
* `world_context() -> str`, marked by `@not_a_tool`: what only a world model may know before the first turn, such as where
  things lie. Worlds that show all of their state have none;
* the properties `over`, `success` and `turns`, and a mapping `metrics` with more figures, where it has them.

A simulated world may be a file instead: see `from_file`. `specs.py` lists the registered worlds. Importing this package imports
none of them.
"""

from typing import TYPE_CHECKING

from wm_plugin._lazy import lazy
from wm_plugin.hosting.world import not_a_tool

if TYPE_CHECKING:
    from wm_plugin.worlds.specs import ENVIRONMENTS, SPECS, EnvironmentSpec, Needs, load

_NAMES = ("ENVIRONMENTS", "SPECS", "EnvironmentSpec", "Needs", "load")
__all__ = ["ENVIRONMENTS", "SPECS", "EnvironmentSpec", "Needs", "load", "not_a_tool"]
__getattr__ = lazy(__name__, dict.fromkeys(_NAMES, "specs"))
