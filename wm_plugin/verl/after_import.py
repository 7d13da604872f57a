"""Callbacks for the import of a module.

verl loads plug-ins inside `import verl`, when its own modules are not complete, and swallows what goes wrong there (it logs it at
DEBUG). Importing verl's modules from the plug-in would be a circular import that fails silently. So the plug-in waits until verl
imports them.

wrapt has post-import hooks too, but importing it takes longer (10 ms) than all of the plug-in, which each of verl's processes
loads, and it hands over modules that are only half imported.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class _AfterImport(importlib.abc.MetaPathFinder):
    """A finder that leaves the search to the finders behind it, and adds the callbacks to the loader that they return."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callback]] = {}
        self._searching = False

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.callbacks or self._searching:
            return None
        self._searching = True  # the search below comes by here again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # only now: a module that was looked for need not be imported
            for callback in self.callbacks.pop(name, []):
                callback(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one module's loader
        return spec


_FINDER = _AfterImport()


def on_import(name: str, callback: Callback) -> None:
    """Call `callback(module)` once the module `name` has been imported; at once if it already is."""
    module: Any = sys.modules.get(name)
    if module is not None:
        if getattr(module.__spec__, "_initializing", False):
            raise RuntimeError(f"{name} is being imported at this moment: it is too late for a callback")
        callback(module)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.callbacks.setdefault(name, []).append(callback)
