"""What `wm doctor` says about the installed verl."""

import os
from importlib import metadata
from typing import Any

import verl
from packaging.version import Version

from wm_plugin.errors import UserError
from wm_plugin.runtime.checks import Check, installed
from wm_plugin.verl import support

# Imported by verl 0.9, which does not declare them.
UNDECLARED = ("cachetools", "uvicorn", "fastapi", "TransferQueue", "pyzmq", "msgspec")
MEND = "pip install 'wm-plugin[verl]'"


def checks() -> list[Check]:
    """Whether the adapter works on the installed version, and whether verl will find it."""
    return [_range(), _hooks(), _plugin(), _undeclared()]


def check_tokenizer(tokenizer: Any, model_type: str | None = None) -> Check:
    """Whether the content of tool results can be located with this tokenizer and its chat template, as verl joins turns.

    `model_type` is that of the model's config.json, by which verl chooses; None: verl's default.
    """
    name = f"tokenizer {type(tokenizer).__name__} on verl"
    try:
        support.check_tokenizer(tokenizer, None, {}, model_type)
    except UserError as error:
        return Check(name, "fail", str(error), "use another chat template (tokenizer.chat_template)")
    return Check(name, "ok", f"tool results can be located (model type {model_type or 'not given'})")


def _range() -> Check:
    version = Version(verl.__version__)
    inside = support.FLOOR <= version < support.CEILING
    detail = f"{version} is {'in' if inside else 'outside'} the supported range >={support.FLOOR},<{support.CEILING}"
    return Check("verl", "ok", detail) if inside else Check("verl", "fail", detail, MEND)


def _hooks() -> Check:
    if moved := support.missing_hooks():
        detail = f"verl {verl.__version__}: {'; '.join(moved)}"
        return Check("verl hooks", "fail", detail, "install another version of verl")
    return Check("verl hooks", "ok", f"all {len(support.HOOKS)} found")


def _plugin() -> Check:
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    if "wm_plugin.verl" in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","):
        return Check("verl plug-in", "ok", "loaded by VERL_USE_EXTERNAL_MODULES")
    found = [entry for entry in metadata.entry_points(group="verl.plugins") if entry.value == "wm_plugin.verl"]
    mend = "pip install wm-plugin in verl's environment, or export VERL_USE_EXTERNAL_MODULES=wm_plugin.verl"
    if not found:
        return Check("verl plug-in", "fail", "no entry point: verl will not find it", mend)
    if policy.strip().lower() != "auto" and found[0].name not in policy.split(","):
        return Check("verl plug-in", "fail", f"VERL_USE_EXTERNAL_PLUGINS={policy} leaves it out", mend)
    return Check("verl plug-in", "ok", "found by its entry point, in each of verl's processes")


def _undeclared() -> Check:
    missing = [package for package in UNDECLARED if not installed(package)]
    if missing:
        return Check("verl's needs", "fail", f"verl imports {', '.join(missing)}, which are not installed", MEND)
    return Check("verl's needs", "ok", f"{', '.join(UNDECLARED)} are installed")
