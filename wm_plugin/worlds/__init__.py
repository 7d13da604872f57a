"""Where rollouts come from: one environment a file, or a package where it has several parts.

Every environment is a class in the form that TRL's `environment_factory` takes, and that our verl agent loop drives too:

* `reset(**columns) -> str`: starts the episode that a dataset row describes and returns the first observation;
* every public method is a tool; it returns the next observation as text;
* `get_reward() -> float`: the outcome of the episode. A class may leave it to the trainer's rewards;
* `world_context() -> str`, marked by `@not_a_tool`: what only a world model may know before the first turn, such as where
  things lie. Worlds that show all of their state have none;
* the properties `over`, `success` and `turns`, and a mapping `metrics` with more figures, where it has them.

A simulated world may be a file instead: see `from_file`. `specs.py` lists the registered worlds. Importing this package imports
none of them.
"""

from typing import Any

from wm_plugin.registry import Registry
from wm_plugin.worlds.kit.protocol import not_a_tool
from wm_plugin.worlds.specs import SPECS, EnvironmentSpec, Needs


class _Environments(Registry):
    def get(self, name: str) -> Any:
        """Return the class of this name, at this dotted path, or of this file (see `from_file`)."""
        if not is_file(name):
            return super().get(name)
        from wm_plugin.worlds.from_file import world_of

        return world_of(name)


def is_file(name: str) -> bool:
    """Return whether an environment's name is the path of a file."""
    return name.endswith((".yaml", ".yml", ".json"))


ENVIRONMENTS = _Environments("environment", **{name: spec.path for name, spec in SPECS.items()})


def load(name: str) -> type:
    """Return the class of a registered environment, at a dotted path, or of a file: `load("maze")`."""
    environment: type = ENVIRONMENTS.get(name)
    return environment


__all__ = ["ENVIRONMENTS", "SPECS", "EnvironmentSpec", "Needs", "load", "not_a_tool"]
