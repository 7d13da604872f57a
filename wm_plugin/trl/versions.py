"""The releases of TRL that the adapter is for, told without importing trl: one that is too old may not even import."""

from importlib import metadata

from packaging.version import Version

from wm_plugin.errors import UserError
from wm_plugin.hosting.hooks import VersionRange

SUPPORTED = VersionRange("trl", Version("1.0.0"), Version("2"), "trl")
UNTESTED = Version("1.17")  # the first release that was not tested
ASYNC_GONE = Version(
    "1.18"
)  # 1.17 announces that the submodules of trl.experimental.async_grpo, which the term needs, go away


def refuse_old() -> None:
    """Raises:
    UserError: the installed trl is older than the floor.
    """
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError:  # on the path, and not installed
        return
    if Version(version) < SUPPORTED.floor and (problem := SUPPORTED.problem(version)):
        raise UserError(problem)


def of_release(version: Version) -> Version:
    """Return the release that a version is of: 1.17 of 1.17.0.dev0, which would come before it."""
    return Version(version.base_version)


def untested(version: Version) -> str | None:
    """Return what to warn of in a release that is newer than those that were tested; None in others."""
    if of_release(version) < UNTESTED or version not in SUPPORTED:
        return None
    return f"trl {version} is newer than the releases that were tested (before {UNTESTED}); all that the term needs is there"
