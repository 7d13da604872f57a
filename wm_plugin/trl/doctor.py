"""What `wm doctor` says about the installed TRL."""

from pathlib import Path
from typing import Any

import torch
import yaml
from packaging.version import Version

from wm_plugin.errors import UserError
from wm_plugin.hosting.checks import Check, check_hooks, check_range, installed
from wm_plugin.tokens.chat import Chat, make_locator
from wm_plugin.tokens.spans import SpanError, ToolBlock
from wm_plugin.trl import _compat, async_support, sharding, support
from wm_plugin.trl.templates import MEND, rollout_template
from wm_plugin.trl.versions import ASYNC_GONE, SUPPORTED, UNTESTED, untested

ENVIRONMENTS_TRANSFORMERS = Version("5.2")  # TRL's own floor for environment_factory
RESPONSE_TEMPLATES = Version("5.13")  # of transformers; before it, parsing a tool call needs jmespath


def checks() -> list[Check]:
    """Return whether the adapter works on the installed versions, and which claims need newer ones."""
    trl, transformers = (Version(support.versions()[name]) for name in ("trl", "transformers"))
    mend_trl = f"pip install -U 'trl>={_compat.EXACT_DAPO},<{SUPPORTED.ceiling}'"
    mend_async = f"pip install -U 'trl>={_compat.ASYNC_ROWS},<{ASYNC_GONE}'"
    return [
        _range(trl),
        check_hooks("trl", str(trl), support.HOOKS),
        _claim("dapo normalisation", trl >= _compat.EXACT_DAPO, f"exact in trl >= {_compat.EXACT_DAPO}", mend_trl),
        _claim(
            "environment_factory",
            trl >= _compat.ENVIRONMENT_POOLS and transformers >= ENVIRONMENTS_TRANSFORMERS,
            f"with get_reward on trl >= {_compat.ENVIRONMENT_POOLS} and transformers >= {ENVIRONMENTS_TRANSFORMERS}",
            f"{mend_trl} 'transformers>={ENVIRONMENTS_TRANSFORMERS},<6'",
        ),
        _claim(
            "Liger loss",
            trl >= _compat.LIGER_WITH_LOGPS,
            f"with the objective on trl >= {_compat.LIGER_WITH_LOGPS}",
            mend_trl,
        ),
        _async(mend_async),
        _claim(
            "tool calls",
            transformers >= RESPONSE_TEMPLATES or installed("jmespath"),
            f"parsed by transformers >= {RESPONSE_TEMPLATES}, or with jmespath",
            "pip install jmespath",
        ),
        _claim(
            "tokenizers",
            installed("tokenizers"),
            "the fast ones, which give the character offsets; wm doctor --tokenizer PATH checks one",
            "pip install tokenizers",
        ),
        *check_sharding(),
    ]


def check_tokenizer(tokenizer: Any) -> Check:
    """Return whether TRL takes this tokenizer's chat template for tools, and the content of their results can be located."""
    name = f"tokenizer {type(tokenizer).__name__} on trl"
    if not tokenizer.is_fast:
        return Check(name, "fail", "slow: it gives no character offsets", "load the fast one")
    try:
        template = rollout_template(tokenizer)
        contents = ("first result", "second\nresult")
        chat, locator = Chat(tokenizer, template), make_locator(tokenizer, template)
        for tools in (("tool",), ("tool", "other")):  # one call a turn, and two
            texts = contents[: len(tools)]
            locator.locate([ToolBlock(tools, texts, chat.result_ids(tools, texts))])
    except (UserError, SpanError) as error:
        return Check(name, "fail", str(error), MEND)
    which = "its own chat template" if template is None else "the training template that TRL takes for it"
    return Check(name, "ok", f"tool results can be located with {which}{chat.note_on_tools()}")


def _range(version: Version) -> Check:
    if text := untested(version):
        return Check("trl", "warn", text, f"pip install 'trl<{UNTESTED}'")
    return check_range(SUPPORTED, str(version))


def _async(mend: str) -> Check:
    """Return whether TRL's asynchronous trainer can carry the term."""
    detail = f"AsyncGRPOTrainer with the objective on trl >= {_compat.ASYNC_ROWS}, < {ASYNC_GONE}"
    return _claim("asynchronous training", async_support.problem() is None, detail, mend)


def _claim(name: str, holds: bool, detail: str, mend: str) -> Check:
    return Check(name, "ok", detail) if holds else Check(name, "warn", f"not here; {detail}", mend)


def check_sharding() -> list[Check]:
    """Return what `wm doctor` says of FSDP: nothing unless the launcher, or the file that it reads by default, asks for it."""
    if sharding.switched_on() == "FSDP":
        where, on_cpu = "ACCELERATE_USE_FSDP is set", False
    else:
        path = default_config()
        settings = _read(path)
        if settings.get("distributed_type") != "FSDP":
            return []
        where, on_cpu = f"in {path}, by which accelerate launch starts", settings.get("use_cpu") is True
    if not on_cpu and _has_gpu():
        return [Check("sharding", "ok", f"FSDP was asked for ({where}), and there is a GPU")]
    return [
        Check(
            "sharding",
            "warn",
            f"FSDP was asked for ({where}), DDP runs: accelerate leaves FSDP out on a CPU",
            "run on GPUs; on a CPU write use_cpu: true for the trainer, without which each process trains alone",
        )
    ]


def default_config() -> Path:
    """Return the file of settings that `accelerate launch` takes where it is given none."""
    from accelerate.commands.config.config_args import default_config_file

    return Path(default_config_file)


def _read(path: Path) -> dict[str, Any]:
    """Return a file of accelerate's settings; empty if it cannot be read, which accelerate says itself."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML, too
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _has_gpu() -> bool:
    """Return whether there is a device for which accelerate makes process groups: it has none for Apple's."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type != "mps"
