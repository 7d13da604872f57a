"""The keys that this process holds, and how they are kept out of messages, logs, caches and reports.

A server may send back what it was sent, headers included: an error page that quotes the request, a proxy, a debugging reply. It
may write it in other ways, too: spaced, as escapes, in an encoding. `redact` is the one function that takes keys out of a text.
"""

import base64
import html
import json
import logging
import os
import re
import urllib.parse
from array import array
from collections.abc import Iterator
from typing import Any

from wm_plugin.untrusted import unescape

SHORTEST = 6  # characters of a key; shorter ones are placeholders such as EMPTY, which occur in ordinary text
MARK = "[key]"

Bare = tuple[bytes, re.Pattern[bytes]]

_forms: dict[str, None] = {}  # see `_forms_of`; in lower case, since a server may change the case
_pattern: re.Pattern[str] | None = None
_bare: tuple[re.Pattern[str] | None, list[Bare]] = (None, [])  # see `_bare_forms`, and of which pattern they are

# A character that is written by its number or name, however often this was done in a row: &amp;#115; %2573 \\\\u0073
_CODED = re.compile(
    r"(?<!\\)\\+(?:u([0-9a-f]{4})|u\{0*([0-9a-f]{1,6})\}|x([0-9a-f]{2})|([0-7]{3})|([nrtfvb]))"
    r"|%(?:25)*(?:u([0-9a-f]{4})|([0-9a-f]{2}))"
    r"|&(?:amp;)*(?:#x0*([0-9a-f]{1,6})|#0*([0-9]{1,7})|([a-z]{2,31}));?"
    r"|u\+([0-9a-f]{4})",
    re.IGNORECASE,
)
_MARKS = ("\\", "%", "&", "u+", "U+")  # what a character that is written otherwise begins with
_ROUNDS = 3  # of escapes within other escapes
_LARGEST = 1 << 20  # characters in which the places of a hidden key are looked for; of a longer text nothing is left
_SIGNS = bytes(code for code in range(128) if not chr(code).isalnum())
_GAPS = bytes([*range(33), ord("\\"), 127])
_END = re.compile(rb"[=+/_~-]*(?:[^a-z0-9=]{0,5}=)*")  # signs that a key or its base64 may end with
_SURE = 10  # letters and digits of a form that do not follow each other by chance, whatever signs stand between them
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x212A: ord("k"), 0x17F: ord("s")}

# Words of variables whose values are secrets.
_SECRET = {"KEY", "KEYS", "SECRETS", "PASSWD", "PASSPHRASE", "PAT", "JWT", "CREDENTIAL", "CREDENTIALS", "AUTH"}
_SECRET_ENDS = ("TOKEN", "SECRET", "PASSWORD", "APIKEY")


def hold(*keys: str | None) -> None:
    """Remember keys, for `redact`."""
    global _pattern
    known = len(_forms)
    for key in keys:
        if key and len(key) >= SHORTEST:
            _forms.update(dict.fromkeys(form.lower() for form in _forms_of(key)))
    if len(_forms) > known:
        _pattern = re.compile("|".join(map(re.escape, sorted(_forms, key=len, reverse=True))), re.IGNORECASE)


def hold_environment() -> None:
    """Remember the values of variables with names of secrets, which libraries send on their own.

    Names of files are none, nor are numbers. If the name goes on after the word, as in TOKEN_TYPE, the value must look like one.
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
    """A key as text, in a URL, in JSON, in HTML, as the numbers of its bytes, and in base64 and base32 wherever it begins."""
    in_json = json.dumps(key)[1:-1]
    yield from (key, in_json, in_json.replace("/", "\\/"), html.escape(key), html.escape(key, quote=False))
    yield from (urllib.parse.quote(key, safe=safe, errors="replace") for safe in ("", "/"))
    yield urllib.parse.quote_plus(key, errors="replace")
    encoded = key.encode(errors="replace")
    yield encoded.hex()
    yield " ".join(map(str, encoded))
    yield " ".join(map(hex, encoded))
    for bits, size, encode in ((6, 3, base64.b64encode), (5, 5, base64.b32encode)):
        for before in range(size):
            whole = (before + len(encoded)) * 8 // bits  # signs that what follows the key has no part in
            form = encode(bytes(before) + encoded).decode().rstrip("=")[-(-before * 8 // bits) : whole]
            yield form
            yield form.replace("+", "-").replace("/", "_")


def _bare_forms() -> list[Bare]:
    """What may stand between the letters of forms, and these without it."""
    global _bare
    if _bare[0] is not _pattern:
        forms, kinds = [_without_gaps(form) for form in _forms], []
        for signs in (_SIGNS, _GAPS):
            if bare := {form for form, without in forms if without is signs and len(form) >= SHORTEST}:
                kinds.append((signs, re.compile(b"|".join(map(re.escape, sorted(bare, key=len, reverse=True))))))
        _bare = _pattern, kinds
    return _bare[1]


def _without_gaps(form: str) -> tuple[bytes, bytes]:
    """A form without signs, if what is left is long enough to be told from other text, else without white space."""
    encoded = form.encode("ascii", "ignore")
    letters = encoded.translate(None, _SIGNS)
    return (letters, _SIGNS) if len(letters) >= _SURE else (encoded.translate(None, _GAPS), _GAPS)


def redact(text: str) -> str:
    """The text without keys, however they are written: see `_forms_of`; spaced, as escapes, with signs between their letters."""
    if _pattern is None or len(text) < SHORTEST:
        return text
    text = _pattern.sub(MARK, text)
    if not _hides(text):
        return text
    return MARK if len(text) > _LARGEST else _without_hidden(text)


def _hides(text: str) -> bool:
    """Whether a key shows once escapes are read and what may stand between its letters is left out."""
    for _ in range(_ROUNDS):
        lowered = _lowered(text)
        if any(pattern.search(lowered.translate(None, signs)) for signs, pattern in _bare_forms()):
            return True
        if not any(mark in text for mark in _MARKS):
            break
        text, before = _CODED.sub(_plain, text), text
        if text == before:
            break
    return False


def _without_hidden(text: str) -> str:
    plain, starts = text, array("L", range(len(text) + 1))  # of each character, where it begins in the text
    hidden: list[tuple[int, int]] = []
    for _ in range(_ROUNDS):
        hidden += [(starts[start], starts[end]) for start, end in _places(plain)]
        plain, starts = _read(plain, starts)
    kept, end = [], 0
    for start, stop in sorted(hidden):
        if start >= end:
            kept += [text[end:start], MARK]
        end = max(end, stop)
    return "".join([*kept, text[end:]]) if kept else MARK


def _places(text: str) -> Iterator[tuple[int, int]]:
    """Where keys begin and end in a text, whatever stands between their letters."""
    lowered = "".join(sign if sign.isascii() else " " for sign in text.translate(_FULL_WIDTH)).lower().encode()
    for signs, pattern in _bare_forms():
        places = [place for place, code in enumerate(lowered) if code not in signs]
        for match in pattern.finditer(lowered.translate(None, signs)):
            end = places[match.end() - 1] + 1
            tail = _END.match(lowered, end)
            yield places[match.start()], tail.end() if tail else end


def _read(text: str, starts: "array[int]") -> "tuple[str, array[int]]":
    """The text with its escapes read, and where each of its characters began."""
    pieces, places, end = [], array("L"), 0
    for match in _CODED.finditer(text):
        plain = _plain(match)
        pieces += [text[end : match.start()], plain]
        places += starts[end : match.start()]
        places.extend([starts[match.start()]] * len(plain))
        end = match.end()
    return "".join([*pieces, text[end:]]), places + starts[end:]


def _plain(coded: re.Match[str]) -> str:
    """The character that is meant; a name that none has stays."""
    u, braced, x, octal, control, percent_u, percent, hexadecimal, decimal, name, point = coded.groups()
    if control:
        return " "
    if name:
        plain = unescape(f"&{name};")
        return coded[0] if plain.startswith("&") and plain != "&" else plain
    base = 8 if octal else 10 if decimal else 16
    digits = u or braced or x or octal or percent_u or percent or hexadecimal or decimal or point
    code = int(digits, base)
    return chr(code) if code < 0x110000 else " "


def _lowered(text: str) -> bytes:
    if not text.isascii():
        text = text.translate(_FULL_WIDTH)
    return text.encode("ascii", "ignore").lower()


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
    """Whether there may be a key in JSON; quick. Escapes can hide one, and so can signs."""
    if not _forms:
        return False
    if not received.isascii() or any(mark.encode() in received for mark in _MARKS):
        return True
    lowered = received.lower()
    return any(pattern.search(lowered.translate(None, signs)) for signs, pattern in _bare_forms())


def redact_json(value: Any) -> Any:
    """A JSON value whose texts are without keys. Lists and objects are changed in place."""
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
