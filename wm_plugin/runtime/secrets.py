"""Remember the keys that this process holds, and keep them out of messages, logs, caches and reports.

A server may send back what it was sent, headers included: an error page that quotes the request, a proxy, a debugging reply.
`redact` takes keys out of a text: as they are, as in a URL, as in base64 and as in hex. `redact_escaped` also finds those that a
server's other escapes hide.
"""

import base64
import json
import logging
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from wm_plugin import untrusted

SHORTEST = 6  # characters of a key; shorter ones are placeholders such as EMPTY, which occur in ordinary text
# Longer placeholders, and words for whether there is a key: ordinary text would be full of marks.
_NO_KEYS = {"default", "disabled", "enabled", "required", "optional", "placeholder", "unused", "password", "secret"}
MARK = "[key]"

_forms: set[str] = set()
_pattern: re.Pattern[str] | None = None

# Servers write JSON in several ways: "\\/", "\\u002B", and with more backslashes inside another text.
_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))?")
_QUOTED = 3  # levels of escapes that are taken off a text

# Words of variables whose values are secrets.
_SECRET = {"KEY", "KEYS", "SECRETS", "PASSWD", "PASSPHRASE", "PAT", "JWT", "CREDENTIAL", "CREDENTIALS", "AUTH"}
_SECRET_ENDS = ("TOKEN", "SECRET", "PASSWORD", "APIKEY")


def hold(*keys: str | None) -> None:
    """Remember keys, for `redact`."""
    global _pattern
    known = len(_forms)
    for key in keys:
        if key and len(key) >= SHORTEST and key.lower() not in _NO_KEYS:
            _forms.update(form for form in _forms_of(key) if len(form) >= SHORTEST)
    if len(_forms) > known:
        _pattern = re.compile("|".join(map(re.escape, sorted(_forms, key=len, reverse=True))), re.IGNORECASE)


def hold_environment() -> None:
    """Remember the values of variables that are named like secrets, which libraries send on their own.

    Names of files and numbers are not secrets. Where the name goes on after the word, as in TOKEN_TYPE, the value must look like
    one, too.
    """
    for name, value in os.environ.items():
        *words, last = name.upper().split("_")
        if not (last in _SECRET or last.endswith(_SECRET_ENDS)):
            looks_like_one = len(value) >= 12 and any(map(str.isdigit, value)) and any(map(str.isalpha, value))
            if not looks_like_one or not any(word in _SECRET or word.endswith(_SECRET_ENDS) for word in words):
                continue
        if not (value.isdecimal() and len(value) < 16) and not os.path.exists(value):
            hold(value.strip())


def _forms_of(key: str) -> Iterator[str]:
    """Yield a key as it is, as in JSON, as in a URL, as in hex, and as in base64 wherever it begins."""
    yield from (key, key.replace("\\", ""), key.encode(errors="replace").hex())  # without: `redact_escaped` drops them
    yield from (json.dumps(key)[1:-1], quote(key, safe="", errors="replace"), quote(key, errors="replace"))
    yield quote_plus(key, errors="replace")
    for encoded in {key.encode(encoding, errors="replace") for encoding in ("utf-8", "latin-1")}:
        for before in range(3):
            first, last = -(-before * 8 // 6), (before + len(encoded)) * 8 // 6  # signs that are the key's alone
            form = base64.b64encode(bytes(before) + encoded).decode()[first:last]
            yield from (form, form.replace("+", "-").replace("/", "_"))


def redact(text: str) -> str:
    """Return the text without keys, in the forms of `_forms_of` and in any case."""
    return text if _pattern is None else _pattern.sub(MARK, text)


def redact_escaped(text: str) -> str:
    """Do what `redact` does, also with keys in escapes of JSON, HTML and URLs, and in UTF-16.

    A text that had such a key is returned without escapes.
    """
    plain = kept = redact(text)
    for _ in range(_QUOTED):
        inner = unquote(untrusted.unescape(_ESCAPE.sub(_unescaped, plain.replace("\0", ""))))
        if inner == plain:
            break
        plain = redact(inner)
        if plain != inner:
            kept = untrusted.encodable(plain)
    return kept


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1] or escape[2], 16)) if escape[1] or escape[2] else ""


class _Redacting(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = logging.Formatter().format(record)
        except Exception:  # arguments that do not fit the message: the handler says so
            return True
        if (kept := redact(text)) != text:
            record.msg, record.args = kept, ()
            record.exc_info = record.exc_text = record.stack_info = None  # they are in the message now
        return True


def guard_logs(*names: str) -> None:
    """Redact what the loggers of other libraries write, tracebacks included."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(known, _Redacting) for known in logger.filters):
            logger.addFilter(_Redacting())


def may_hold(received: bytes) -> bool:
    """Return quickly whether there may be a key in JSON, whose escapes can hide one."""
    return _pattern is not None and (b"\\" in received or bool(_pattern.search(received.decode(errors="replace"))))


def redact_json(value: Any) -> Any:
    """Return a JSON value whose texts are without keys. Lists and objects are changed in place."""
    top = [value]
    containers: list[Any] = [top]
    while containers:
        container = containers.pop()
        if isinstance(container, dict):
            changed = {name: kept for name in container if (kept := redact(name)) != name}
            for name, kept in changed.items():
                container[kept] = container.pop(name)
        for place, item in container.items() if isinstance(container, dict) else enumerate(container):
            if isinstance(item, str):
                container[place] = redact(item)
            elif isinstance(item, dict | list):
                containers.append(item)
    return top[0]
