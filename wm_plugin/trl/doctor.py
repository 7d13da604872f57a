"""What `wm doctor` says about the installed TRL, and which chat template its trainer would take."""

from typing import Any

from packaging.version import Version

from wm_plugin.errors import UserError
from wm_plugin.runtime.checks import Check, check_hooks, check_range, installed
from wm_plugin.tokens.chat import Chat, make_locator
from wm_plugin.tokens.spans import SpanError, ToolBlock
from wm_plugin.trl import _compat, sharding, support

ENVIRONMENTS_TRANSFORMERS = Version("5.2")  # TRL's own floor for environment_factory
RESPONSE_TEMPLATES = Version("5.13")  # of transformers; before it, parsing a tool call needs jmespath


def checks() -> list[Check]:
    """Whether the adapter works on the installed versions, and which claims need newer ones."""
    trl, transformers = (Version(support.versions()[name]) for name in ("trl", "transformers"))
    mend_trl = f"pip install -U 'trl>={_compat.EXACT_DAPO},<{support.SUPPORTED.ceiling}'"
    return [
        check_range(support.SUPPORTED, str(trl)),
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
        *sharding.checks(),
    ]


def check_tokenizer(tokenizer: Any) -> Check:
    """Whether the content of tool results can be located with this tokenizer and its chat template."""
    name = f"tokenizer {type(tokenizer).__name__}"
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
        return Check(name, "fail", str(error), "use another chat template (tokenizer.chat_template)")
    which = "its own chat template" if template is None else "the training template that TRL takes for it"
    return Check(name, "ok", f"tool results can be located with {which}")


def rollout_template(tokenizer: Any) -> str | None:
    """The chat template that TRL takes for rollouts with tools; None: the tokenizer's own.

    Raises:
        UserError: the tokenizer's own cannot be followed, and TRL has no variant of it.
    """
    from trl.chat_template_utils import get_training_chat_template, is_chat_template_prefix_preserving

    try:
        if is_chat_template_prefix_preserving(tokenizer):
            return None
        template: str | None = get_training_chat_template(tokenizer)
    except Exception as error:  # the template is the user's program
        raise UserError(
            f"the chat template cannot be used for tool calls ({type(error).__name__}: {error}); pass a template that writes "
            "earlier messages the same way whatever follows"
        ) from error
    return template


def _claim(name: str, holds: bool, detail: str, mend: str) -> Check:
    return Check(name, "ok", detail) if holds else Check(name, "warn", f"not here; {detail}", mend)
