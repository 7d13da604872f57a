"""The keys that this process holds, and how they are kept out of messages, logs, caches and reports.

A server may send back what it was sent, headers included: an error page that quotes the request, a proxy, a debugging reply.
"""

import base64
import html
import json
import logging
import re
import urllib.parse
from typing import Any

from wm_plugin.untrusted import unescape

SHORTEST = 6  # characters of a key; shorter ones are placeholders such as EMPTY, which occur in ordinary text
MARK = "[key]"

_forms: dict[str, None] = {}  # see `_forms_of`; in lower case, since a server may change the case
_pattern: re.Pattern[str] | None = None
_ESCAPE = re.compile(r"\\+(?:u([0-9a-f]{4})|x([0-9a-f]{2})|(.))", re.IGNORECASE | re.DOTALL)


def hold(*keys: str | None) -> None:
    """Remember keys, for `redact`."""
    global _pattern
    known = len(_forms)
    for key in keys:
        if key and len(key) >= SHORTEST:
            _forms.update(dict.fromkeys(form.lower() for form in _forms_of(key)))
    if len(_forms) > known:
        _pattern = re.compile("|".join(map(re.escape, sorted(_forms, key=len, reverse=True))), re.IGNORECASE)


def _forms_of(key: str) -> list[str]:
    """A key as text, in a URL, in JSON, in HTML, and in base64 wherever it begins in a group of three bytes."""
    in_json = json.dumps(key)[1:-1]
    forms = [key, in_json, in_json.replace("/", "\\/"), html.escape(key), html.escape(key, quote=False)]
    forms += [urllib.parse.quote(key, safe=safe, errors="replace") for safe in ("", "/")]
    forms.append(urllib.parse.quote_plus(key, errors="replace"))
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + key.encode(errors="replace")).decode().rstrip("=")
        whole = (before + len(key.encode(errors="replace"))) * 8 // 6  # signs that what follows the key has no part in
        forms.append(encoded[-(-before * 8 // 6) : whole])
        forms.append(forms[-1].replace("+", "-").replace("/", "_"))
    return forms


def is_hidden_in(text: str) -> bool:
    """Whether a key shows once escapes are read and spaces and invisible characters are left out."""
    if not _forms:
        return False
    for _ in range(2):  # JSON inside of JSON, or of a page
        text = unescape(urllib.parse.unquote(_ESCAPE.sub(_unescaped, text)))
        bare = _bare(text)
        if any(_bare(form) in bare for form in _forms):
            return True
    return False


def _bare(text: str) -> str:
    return "".join(filter(str.isprintable, text.lower())).replace(" ", "").replace("\\", "")


def _unescaped(escape: re.Match[str]) -> str:
    if code := escape[1] or escape[2]:
        return chr(int(code, 16))
    return "" if escape[3] in "nrt" else escape[3]


def redact(text: str) -> str:
    """The text without keys."""
    return text if _pattern is None else _pattern.sub(MARK, text)


class _Redacting(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(logging.Formatter().format(record)), ()
        record.exc_info = record.exc_text = record.stack_info = None  # they are in the message now
        return True


def guard_logs(*names: str) -> None:
    """Redact what the loggers of other libraries write, tracebacks included."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(known, _Redacting) for known in logger.filters):
            logger.addFilter(_Redacting())


def may_hold(received: bytes) -> bool:
    """Whether there may be a key in JSON; quick. Escapes can hide one."""
    if not _forms:
        return False
    lowered = received.lower()
    return b"\\" in lowered or any(form.encode(errors="replace") in lowered for form in _forms)


def redact_json(value: Any) -> Any:
    """A JSON value whose texts are without keys. Lists and objects are changed in place."""
    top = [value]
    containers: list[Any] = [top]
    while containers:
        container = containers.pop()
        if isinstance(container, dict):
            for name in [name for name in container if redact(name) != name]:
                container[redact(name)] = container.pop(name)
        for place, item in container.items() if isinstance(container, dict) else enumerate(container):
            if isinstance(item, str):
                container[place] = redact(item)
            elif isinstance(item, dict | list):
                containers.append(item)
    return top[0]
