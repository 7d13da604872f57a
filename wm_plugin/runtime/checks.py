"""The checks of `wm doctor`."""

from dataclasses import dataclass
from importlib import metadata
from typing import Literal


@dataclass(frozen=True)
class Check:
    """The result of one check. `mend` says how to fix it; it is empty if there is nothing to fix."""

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    mend: str = ""


def installed(package: str) -> bool:
    """Whether a package is installed, without importing it."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
