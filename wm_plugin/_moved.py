"""Old names of modules that have moved: importing one warns and gives what its new place has. For one release only.

An import that fails everywhere else is looked up in `MOVED`. So there are no stub modules in the rooms, and no room imports one
above it for the sake of an old name. With release 0.2 this file goes, and the line of `wm_plugin/__init__.py` that imports it.
"""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

LAST_RELEASE = "0.1"  # that has the old names

# Old module -> the modules that have its names now.
MOVED: dict[str, tuple[str, ...]] = {
    "wm_plugin.environments.actions": (
        "wm_plugin.environments.kit.actions",
        "wm_plugin.environments.kit.planning",
        "wm_plugin.environments.kit.rows",
    ),
    "wm_plugin.environments.commands": ("wm_plugin.environments.kit.commands",),
    "wm_plugin.server": ("wm_plugin.runtime.server",),
    "wm_plugin.trajectories.constructions": ("wm_plugin.samples.constructions", "wm_plugin.agents.alternatives"),
    "wm_plugin.trajectories.prompts": ("wm_plugin.samples.prompts",),
    "wm_plugin.trajectories.prompts.file": ("wm_plugin.samples.prompts.file",),
    "wm_plugin.trajectories.reflection": ("wm_plugin.agents.reflection",),
}


class MovedModules(Loader):
    """A finder and loader of the modules in `MOVED`."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        if name not in MOVED:
            return None
        return spec_from_loader(name, cls(), is_package=any(other.startswith(f"{name}.") for other in MOVED))

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and copy the public names of the new modules."""
        old, new = module.__name__, MOVED[module.__name__]
        warnings.warn(
            f"{old} has moved to {' and '.join(new)}; {LAST_RELEASE} is the last release with the old name",
            DeprecationWarning,
            stacklevel=2,
        )
        for name in new:
            public = {key: value for key, value in vars(import_module(name)).items() if not key.startswith("_")}
            vars(module).update(public)


sys.meta_path.append(MovedModules)  # last, so it is asked only for modules that no other finder has
