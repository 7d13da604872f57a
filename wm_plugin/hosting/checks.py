"""The checks of `wm doctor`."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from wm_plugin.hosting.hooks import Hook, VersionRange, missing_hooks


@dataclass(frozen=True)
class Check:
    """The result of one check. `mend` says how to fix it; it is empty if there is nothing to fix."""

    name: str
    state: Literal["ok", "info", "warn", "fail"]
    detail: str
    mend: str = ""


def installed(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_range(supported: VersionRange, version: str) -> Check:
    """Return whether a host's release is one that its adapter supports."""
    inside = version in supported
    detail = f"{version} is {'in' if inside else 'outside'} the supported range {supported}"
    return Check(supported.package, "ok" if inside else "fail", detail, "" if inside else supported.mend)


def check_hooks(host: str, version: str, hooks: Sequence[Hook]) -> Check:
    """Return whether a host has everything that its adapter overrides, calls or reads."""
    if missing := missing_hooks(hooks):
        return Check(
            f"{host} hooks", "fail", f"{host} {version}: {'; '.join(missing)}", f"install another version of {host}"
        )
    return Check(f"{host} hooks", "ok", f"all {len(hooks)} found")
