"""Callbacks for when a module has been imported.

verl swallows what goes wrong in a plug-in (it logs it at DEBUG), and a worker may import one of our modules before verl is
complete: importing verl's modules from the plug-in would then fail by a circular import, silently. So we wait until verl itself
imports them.
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
    """Finds nothing itself: it lets the finders behind it find the module, and adds the callbacks to its loader."""

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
            # taken out only now: who looks for a module need not import it
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
            raise RuntimeError(f"{name} is being imported at this moment: what comes after that cannot be asked for")
        callback(module)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.callbacks.setdefault(name, []).append(callback)
