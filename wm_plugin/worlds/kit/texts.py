"""Whether an argument that a policy wrote is a text that an environment can take."""

from typing import Any


def unfit(text: Any, most: int) -> str | None:
    """Why an argument is no text of at most `most` characters that a tokenizer takes; None if it is one."""
    if not isinstance(text, str):
        return "must be text"
    if len(text) > most:
        return f"has {len(text)} characters; {most} are the most"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "is not Unicode"
    return None
