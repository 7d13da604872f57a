"""A tokenizer with the chat template that a command names, and what the installed hosts say of it."""

import sys
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError, install
from wm_plugin.hosting.checks import Check
from wm_plugin.options import Options, option
from wm_plugin.runtime.texts import read_text
from wm_plugin.tokens.tokenizer import load_tokenizer, model_type


class TokenizerFlags(Options):
    """A tokenizer with its chat template."""

    tokenizer: str | None = option("A tokenizer's folder, or its name on the Hub.", default=None)
    chat_template: str | None = option(
        "The chat template in place of the tokenizer's: a file, or the name of one that TRL ships.", default=None
    )

    def load(self) -> Any:
        return load_with_template(self.tokenizer or "", self.chat_template)


def load_with_template(name: str, template: str | None, *, field: str = "--tokenizer") -> Any:
    """The tokenizer of the flag `field`, with the chat template of `--chat-template` if there is one."""
    tokenizer = load_tokenizer(name, field=field)
    if template is not None:
        try:
            from wm_plugin.trl.templates import put_template, read_template
        except MissingExtraError:  # without TRL there are no names of templates
            tokenizer.chat_template = read_text(Path(template).expanduser(), "--chat-template")
        else:
            put_template(tokenizer, read_template(template, "--chat-template"))
    return tokenizer


def training_template(tokenizer: Any) -> str | None:
    """The template that training would use: the tokenizer's own (None), or the one that TRL takes in its place.

    Raises:
        UserError: no results of tools can be located with it.
    """
    from wm_plugin.tokens.chat import Chat
    from wm_plugin.tokens.spans import SpanError

    template, mend = None, "pass --chat-template NAME, one that TRL ships, or FILE"
    try:
        from wm_plugin.trl.templates import rollout_template
    except Exception:  # TRL is not installed, or not in working order
        mend = f"pass --chat-template FILE, or install TRL, which knows such templates: {install('trl')}"
    else:
        with suppress(UserError):  # a refusal is a note
            template = rollout_template(tokenizer)
    try:
        Chat(tokenizer, template).result_ids(["tool"], ["result"])
    except (SpanError, UserError) as unusable:
        raise UserError(f"{unusable}; {mend}") from None
    return template


def tokenizer_checks(tokenizer: Any, name: str) -> list[Check]:
    """What each installed host says of a tokenizer and its chat template; `name` is its folder or its name on the Hub."""
    checks = []
    for host in ("trl", "verl"):
        try:
            with redirect_stdout(
                sys.stderr
            ):  # what a host prints while it is imported is no part of a command's output
                module = import_module(f"wm_plugin.{host}.doctor")
        except Exception:  # it is not installed, or not in working order, which is another check of `wm doctor`
            continue
        model = [model_type(name)] if host == "verl" else []
        checks.append(module.check_tokenizer(tokenizer, *model))
    return checks
