"""Chat templates as TRL's trainer takes them for tools: which it refuses, which it replaces, and those that it ships."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trl
from trl.chat_template_utils import add_response_schema, get_training_chat_template, is_chat_template_prefix_preserving

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.tokens.chat import Chat
from wm_plugin.trl import _compat

MEND = (
    "chat_template: NAME in wm train's file takes one that TRL ships, such as qwen2_5; one of your own needs a response_template "
    "in the tokenizer, by which calls are parsed"
)
_FOLDER = Path(trl.__file__).parent / "chat_templates"
# The parts of a call that a template has to write, each with letters and digits that it leaves as they are.
_PARTS = {
    "names of tools": "wmName7Zk3Vx9Lp2",
    "names of arguments": "wmArgument7Zk3Vx9Lp2",
    "values of arguments": "wmValue7Zk3Vx9Lp2",
    "results of tools": "wmResult7Zk3Vx9Lp2",
}


def rollout_template(tokenizer: Any) -> str | None:
    """Return the chat template that TRL takes for rollouts with tools; None: the tokenizer's own.

    It asks what the trainer asks when it is made, in the same order.

    Raises:
        UserError: TRL refuses the tokenizer's own, and has no variant of it; one line says why.
    """
    try:
        if not _compat.supports_tool_calling(tokenizer):
            raise UserError(_problem(tokenizer))
        if not any(getattr(tokenizer, name, None) for name in ("response_template", "response_schema")):
            add_response_schema(SimpleNamespace(chat_template=tokenizer.chat_template))
        if is_chat_template_prefix_preserving(tokenizer):
            return None
        template: str | None = get_training_chat_template(tokenizer)
    except Exception as error:  # a template is a program of the user's, and may raise anything
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        if not isinstance(error, UserError | ValueError):
            reason = f"{type(error).__name__}: {reason}"
        raise UserError(f"TRL refuses the chat template for tool calls: {reason}") from error
    return template


def _problem(tokenizer: Any) -> str:
    """Return why a template does not fit tool calls."""
    if tokenizer.chat_template is None:
        return "the tokenizer has none"
    name, argument, value, result = _PARTS.values()
    call = {"type": "function", "function": {"name": name, "arguments": {argument: value}}}
    text = Chat(tokenizer).render(
        [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": name, "content": result},
        ]
    )
    return f"it leaves out the {', '.join(part for part, mark in _PARTS.items() if mark not in text)}"


def read_template(value: str, field: str) -> str:
    """Return the text of a chat template: of a file, or of the one of this name that TRL ships.

    Args:
        field: the setting that names it, for messages.

    Raises:
        UserError: there is neither, or the file cannot be read.
    """
    path = Path(value).expanduser()
    # TRL takes the training variant of a template by itself, and parses no calls of one that it is given
    names = [file.stem for file in _FOLDER.glob("*.jinja") if not file.stem.endswith("_training")]
    if not path.is_file() and value in names:
        path = _FOLDER / f"{value}.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{field}: {value!r} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(
            f"{field} is {shown(value)}, which cannot be read ({error.strerror}), and TRL ships no template of this name"
            f"{nearest(value, names)}"
        ) from None


def put_template(tokenizer: Any, template: str) -> None:
    """Give a tokenizer another chat template, with the way of parsing calls that TRL has for it, if TRL knows the template."""
    tokenizer.chat_template = template
    with suppress(ValueError):  # of another template TRL knows none: the tokenizer's own stays
        add_response_schema(SimpleNamespace(chat_template=template))
        tokenizer.response_template = tokenizer.response_schema = None  # the trainer puts TRL's in
