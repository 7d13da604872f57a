"""What is installed, what of it works together, and what to do about the rest: the checks of `wm doctor`."""

import importlib
import platform
import shlex
from importlib import metadata, resources
from typing import Any

from wm_plugin.errors import UserError, install
from wm_plugin.hosting.checks import Check
from wm_plugin.hosting.tried import check_tried
from wm_plugin.runtime import patches

_PACKAGES = (
    "wm-plugin",
    "torch",
    "trl",
    "transformers",
    "tokenizers",
    "accelerate",
    "datasets",
    "peft",
    "liger-kernel",
    "vllm",
    "verl",
    "ray",
)
_HOSTS = ("trl", "verl")


def versions() -> dict[str, str | None]:
    """Return the installed versions, read without importing anything; None where a package is not installed."""
    installed: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed[package] = None
    return installed


def check_hosts(installed: dict[str, str | None]) -> list[Check]:
    if not installed["trl"] and not installed["verl"]:
        return [Check("hosts", "fail", "neither trl nor verl is installed", f"{install('trl')}; or {install('verl')}")]
    checks: list[Check] = []
    for host in _HOSTS:
        checks += _host(host, installed[host])
    return checks


def _host(name: str, version: str | None) -> list[Check]:
    if not version:
        (other,) = set(_HOSTS) - {name}
        return [
            Check(name, "info", f"not installed, nor needed beside {other}: each host wants an environment of its own")
        ]
    try:
        checks: list[Check] = [
            *importlib.import_module(f"wm_plugin.{name}.doctor").checks(),
            check_tried(name, version),
        ]
    except UserError as error:  # its version, and the way out
        return [Check(name, "fail", str(error))]
    except Exception as error:  # a host of an unknown version may fail in any way while it is imported
        reason = str(error).strip().partition("\n")[0]
        detail = f"{version} is installed, but cannot be used ({type(error).__name__}: {reason})"
        return [Check(name, "fail", detail, install(name))]
    return checks


def check_recipes() -> Check:
    try:
        names = sorted(_yaml_names(resources.files("wm_plugin.recipes")))
    except ModuleNotFoundError:
        return Check("recipes", "warn", "not found: this is a checkout on the PYTHONPATH", install())
    if not names:
        return Check("recipes", "warn", "this installation has none", f"{install()} --force-reinstall --no-deps")
    return Check("recipes", "ok", ", ".join(names))


def check_patches(installed: dict[str, str | None]) -> list[Check]:
    """Return the patches that are applied to the installed hosts, and those worth applying. Nothing is applied here."""
    checks: list[Check] = []
    others: list[str] = []
    for patch in patches.load():
        site = patches.site_of(patch.package) if installed[patch.package] else None
        if site is None:
            continue
        state, name, problem = patch.state(site), f"patch {patch.name}", patch.header["Problem"]
        if state == "applied":
            checks.append(Check(name, "info", f"applied: {problem}"))
        elif state == "fits" and patch.hits(installed):
            command = f"patch -p1 -d {shlex.quote(str(site))} < {shlex.quote(patch.path)}"
            mend = f"worth it for {patch.header['Hits'].rstrip('.')}: {command}"
            checks.append(Check(name, "info", f"not applied: {problem}", mend))
        else:
            others.append(f"{patch.name} (for {patch.where})")
    if others:
        checks.append(Check("patches", "info", f"nothing to mend here: {', '.join(others)}"))
    return checks


def _yaml_names(folder: Any, prefix: str = "") -> list[str]:
    names = []
    for entry in folder.iterdir():
        if entry.is_dir():
            names += _yaml_names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".yaml", ".yml")):
            names.append(prefix + entry.name)
    return names
