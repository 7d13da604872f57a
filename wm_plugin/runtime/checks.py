"""What `wm doctor` finds, host by host."""

from dataclasses import dataclass
from importlib import metadata
from typing import Literal


@dataclass(frozen=True)
class Check:
    """One thing that holds or does not. `mend` says what to do about it, and is empty where it holds."""

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
