"""Names for things that a config refers to. An entry is a dotted path, imported when it is first asked for."""

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from wm_plugin.errors import UserError, nearest


def import_object(path: str, *, field: str) -> Any:
    """Return the object at `package.module:name` or `package.module.name`. `field` names the setting in the error."""
    module_name, separator, name = path.partition(":")
    if not separator:
        module_name, _, name = path.rpartition(".")
    if not module_name or not name:
        raise UserError(f"{field}: {path!r} is not a dotted path; write 'package.module:name'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise UserError(
                f"{field}: there is no module {module_name!r} (in {path!r}); is it on the PYTHONPATH?"
            ) from None
        raise
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            own = vars(module)
            names = getattr(module, "__all__", dir(module))
            public = [key for key in names if key[0] != "_" and not isinstance(own.get(key), ModuleType)]
            raise UserError(f"{field}: {module_name} has no {part!r}{nearest(part, public)}")
        target = getattr(target, part)
    return target


class Registry:
    """A closed set of names of one kind. Refuses duplicates and names both sides."""

    def __init__(self, kind: str, **paths: str) -> None:
        self.kind = kind
        self._paths: dict[str, str] = {}
        for name, path in paths.items():
            self.register(name, path)

    def register(self, name: str, path: str) -> None:
        if self._paths.setdefault(name, path) != path:
            raise UserError(f"{self.kind} {name!r} is registered twice: {self._paths[name]} and {path}")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._paths))

    def get(self, name: str) -> Any:
        """Return the object called `name`, which may be a dotted path."""
        if name in self._paths:
            return import_object(self._paths[name], field=f"{self.kind} {name!r}")
        if "." in name or ":" in name:
            found = import_object(name, field=self.kind)
            if not callable(found):
                raise UserError(f"{self.kind}: {name!r} is an instance of {type(found).__name__}; name the class")
            return found
        raise UserError(f"{self.kind}: there is no {name!r}{nearest(name, self._paths)}")
