"""Public names that are imported when they are first asked for, so that `import wm_plugin` takes a millisecond."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` that imports a public name's module when the name is first asked for.

    Args:
        package: the package's `__name__`.
        modules: public name -> the module below `package` that defines it.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return get
