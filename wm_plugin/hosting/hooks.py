"""What an adapter relies on in its host, checked by name before a run starts."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from packaging.version import Version

from wm_plugin.errors import install


class Hook(NamedTuple):
    """One thing that we override, call or read upstream.

    Attributes:
        module: where it is, e.g. `trl`.
        path: its dotted name in there: a class, a function, `Class.method`, or `Class.attribute` of the instances.
        parameters: those that we name when we call or override it.
    """

    module: str
    path: str
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}.{self.path}"


class VersionRange(NamedTuple):
    """The releases of a package that an adapter supports: `floor` <= version < `ceiling`."""

    package: str
    floor: Version
    ceiling: Version
    extra: str  # our extra that installs a release in the range

    def __contains__(self, version: object) -> bool:
        return self.floor <= Version(str(version)) < self.ceiling

    def problem(self, version: str) -> str | None:
        """Return what to say of a release that is not supported, and the way out; None for one that is."""
        if version in self:
            return None
        return f"{self.package} {version} is outside the supported range {self}; {self.mend}"

    @property
    def mend(self) -> str:
        return install(self.extra)

    def __str__(self) -> str:
        return f">={self.floor},<{self.ceiling}"


def missing_hooks(hooks: Iterable[Hook]) -> list[str]:
    """Return the hooks that the installed host lacks or has changed, by name, with what moved."""
    missing = []
    for hook in hooks:
        try:
            target = _resolve(hook)
        except (ImportError, AttributeError):
            missing.append(f"{hook} is gone")
            continue
        if lost := [name for name in hook.parameters if name not in inspect.signature(target).parameters]:
            missing.append(f"{hook} no longer takes {', '.join(lost)}")
    return missing


def _resolve(hook: Hook) -> Any:
    """Return what the hook names; None for an attribute that instances get when they are made."""
    owner: Any = importlib.import_module(hook.module)
    *parents, name = hook.path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    if not hasattr(owner, name) and inspect.isclass(owner) and name in assigned_attributes(owner):  # type: ignore[arg-type]
        return None
    return getattr(owner, name)


@cache
def assigned_attributes(cls: type) -> frozenset[str]:
    """Return the names that a class, or a class that it derives from, declares or assigns on `self`."""
    names: set[str] = set()
    for base in cls.__mro__[:-1]:
        names.update(vars(base).get("__annotations__", {}))
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # no source, e.g. a class of an extension module
            continue
        names.update(
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        )
    return frozenset(names)
