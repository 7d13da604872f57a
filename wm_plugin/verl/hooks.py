"""Callbacks for the import of a module.

verl loads plug-ins inside `import verl`, when its own modules are not complete, and swallows what goes wrong there (it logs at
DEBUG). Importing verl's modules from the plug-in would be a circular import that fails silently. So the plug-in waits until verl
imports them.
"""

import sys
from collections.abc import Callable
from types import ModuleType

from wm_plugin.errors import MissingExtraError


def on_import(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call `callback(module)` once the module `name` has been imported, or now if it already has. Callbacks run in order, once.

    Raises:
        RuntimeError: the module is being imported at this moment.
        MissingExtraError: wrapt is not installed.
    """
    try:
        import wrapt  # here, where the plug-in reports errors, because verl hides those of its import
    except ModuleNotFoundError:
        raise MissingExtraError("wm_plugin.verl", "wrapt", "verl") from None
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if getattr(spec, "_initializing", False):  # wrapt would hand over the incomplete module
        raise RuntimeError(f"{name} is being imported at this moment: it is too late for a callback")
    wrapt.register_post_import_hook(callback, name)
