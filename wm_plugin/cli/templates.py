"""A tokenizer with the chat template that a command names, and what the installed hosts say of it."""

import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from wm_plugin.cli.rollouts import read_text
from wm_plugin.errors import MissingExtraError
from wm_plugin.runtime.checks import Check
from wm_plugin.tokens.tokenizer import load_tokenizer, model_type


def load_with_template(name: str, template: str | None) -> Any:
    """The tokenizer of `--tokenizer`, with the chat template of `--chat-template` if there is one.

    Raises:
        UserError: one of them cannot be loaded.
    """
    tokenizer = load_tokenizer(name, field="--tokenizer")
    if template is not None:
        try:
            from wm_plugin.trl.templates import put_template, read_template
        except MissingExtraError:  # without TRL there are no names of templates
            tokenizer.chat_template = read_text(Path(template).expanduser(), "--chat-template")
        else:
            put_template(tokenizer, read_template(template, "--chat-template"))
    return tokenizer


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
