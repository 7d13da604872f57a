"""What `wm doctor` says about the installed verl."""

import os
from importlib import metadata
from typing import Any

import verl

from wm_plugin.errors import UserError, install
from wm_plugin.hosting.checks import Check, check_hooks, check_range, installed
from wm_plugin.tokens.chat import Chat
from wm_plugin.verl import support

ENGINES = ("vllm", "sglang")  # of actor_rollout_ref.rollout.name

# Imported by verl 0.9, which does not declare them.
UNDECLARED = ("cachetools", "uvicorn", "fastapi", "TransferQueue", "pyzmq", "msgspec")


def checks() -> list[Check]:
    """Return whether the adapter works on the installed version, and whether verl will find it."""
    version = verl.__version__
    hooks = check_hooks("verl", version, support.HOOKS)
    return [check_range(support.SUPPORTED, version), hooks, _plugin(), _undeclared(), _engine()]


def check_tokenizer(tokenizer: Any, model_type: str | None = None) -> Check:
    """Return whether the content of tool results can be located with this tokenizer and its chat template, as verl joins turns.

    `model_type` is that of the model's config.json, by which verl chooses; None: verl's default.
    """
    name = f"tokenizer {type(tokenizer).__name__} on verl"
    try:
        support.check_tokenizer(tokenizer, None, {}, model_type)
    except UserError as error:
        try:
            support.check_tokenizer(tokenizer, None, {}, model_type, parallel=False)
        except UserError:
            mend = "use another chat template (actor_rollout_ref.model.custom_chat_template)"
            return Check(name, "fail", str(error), mend)
        mend = "actor_rollout_ref.rollout.multi_turn.max_parallel_calls=1"
        return Check(name, "warn", f"only the results of one call a turn can be located: {error}", mend)
    where = f"tool results can be located (model type {model_type or 'not given'})"
    return Check(name, "ok", where + Chat(tokenizer).note_on_tools())


def _plugin() -> Check:
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    if "wm_plugin.verl" in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","):
        return Check("verl plug-in", "ok", "loaded by VERL_USE_EXTERNAL_MODULES")
    entries = [entry for entry in metadata.entry_points(group="verl.plugins") if entry.value == "wm_plugin.verl"]
    mend = f"{install()} in verl's environment, or export VERL_USE_EXTERNAL_MODULES=wm_plugin.verl"
    if not entries:
        return Check("verl plug-in", "fail", "no entry point: verl will not find it", mend)
    if policy.strip().lower() != "auto" and entries[0].name not in policy.split(","):
        return Check("verl plug-in", "fail", f"VERL_USE_EXTERNAL_PLUGINS={policy} leaves it out", mend)
    return Check("verl plug-in", "ok", "found by its entry point, in each of verl's processes")


def _undeclared() -> Check:
    missing = [package for package in UNDECLARED if not installed(package)]
    if missing:
        return Check(
            "verl's needs",
            "fail",
            f"verl imports {', '.join(missing)}, which are not installed",
            support.SUPPORTED.mend,
        )
    return Check("verl's needs", "ok", f"{', '.join(UNDECLARED)} are installed")


def _engine() -> Check:
    there = [package for package in ENGINES if installed(package)]
    if there:
        return Check("rollout engine", "ok", f"{', '.join(there)}")
    text = f"neither {' nor '.join(ENGINES)} is installed, and main_ppo samples with one of them"
    mend = (
        "pip install the one that your verl supports; on a CPU none is needed: VERL_PLATFORM=cpu and '+wm=[echo,cpu]'"
    )
    return Check("rollout engine", "info", text, mend)
