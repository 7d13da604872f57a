"""The worlds by their names in configs."""

from typing import Any

from wm_plugin.registry import Registry
from wm_plugin.worlds.specs import SPECS


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
