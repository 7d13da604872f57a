"""Whether an observation reports an error, and of which kind.

A heuristic over the output of tools, shells and interpreters. The first sign decides, so a text that lists all kinds of errors
has one kind, not all.
"""

import re
from typing import Any

from wm_plugin.rewards.json_match import NO_JSON, parse

_WINDOW = 2000  # characters from an error's first sign to search for its kind
# The words of error messages by kind.
_KINDS = {
    "not_found": r"not found|no such|does(?: not|n't) exist|(?:cannot|could not) find|unknown (?:command|tool|function)"
    r"|unrecognized command|FileNotFoundError|ModuleNotFoundError|KeyError|no module named|\b404\b|\bENOENT\b",
    "permission": r"permission denied|not permitted|access denied|forbidden|read-only file system|PermissionError|\b403\b"
    r"|\bEACCES\b",
    "authentication": r"unauthori[sz]ed|not authenticated|authentication|invalid (?:api[ _-]?key|token|credentials)"
    r"|not logged in|\b401\b",
    "timeout": r"timed?[ -]?out|TimeoutError|deadline exceeded|\b408\b|\b504\b",
    "rate_limit": r"rate.?limit|too many requests|quota|\b429\b",
    "connection": r"connection|could not resolve|unreachable|ConnectionError|\b50[23]\b",
    "exists": r"already exists|FileExistsError|duplicate|UNIQUE constraint|\b409\b",
    "invalid": r"invalid|missing (?:\d{1,3} )?required|required (?:argument|parameter|field)|bad request|must be|illegal"
    r"|unexpected (?:keyword )?argument|ValueError|TypeError|constraint failed|\b400\b|\b422\b",
    "syntax": r"syntax error|SyntaxError|IndentationError|parse error|near \"|unexpected (?:token|EOF|end of)",
    "memory": r"out of memory|MemoryError|cannot allocate|no space left",
}
_KIND = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _KINDS.items()), re.IGNORECASE)
KINDS = (*_KINDS, "other")
# At the beginning of a line, after a name or two ("bash: line 1: ", "Tool "), or as a phrase that only errors use.
_SIGN = re.compile(
    r"^[ \t>*#\[(]{0,8}(?:[\w./-]{1,60}: ){0,3}(?:\(?\w{1,40}\)? )?(?:errors?|fatal|panic|exception|failure)\b\]?\)?"
    r"(?=[ \t]*[:!\n-]|[ \t]+\w{1,40}ing\b|$)"
    r"|^Traceback \(most recent call last\)"
    r"|^(?:[\w.]{1,80}\.)?[A-Z]\w{0,60}(?:Error|Exception)\b"
    r"|(?:exit (?:code|status)|returned non-zero exit status)[ :=]{1,3}[1-9]"
    r"|: command not found\b|: No such file or directory\b|: Permission denied\b|^HTTP/[\d.]{1,3} [45]\d\d\b"
    r"|^Segmentation fault\b|: not found$",
    re.IGNORECASE | re.MULTILINE,
)
_FIELDS = ("error", "errors", "error_message", "exception", "error_code")


def error_kind(text: str) -> str | None:
    """Return one of `KINDS`, or None if the text reports no error.

    In a JSON object only its own fields decide (`error`, `status`, `success`, ...), not its other values.
    """
    value = parse(text)
    if isinstance(value, dict):
        message = _object_error(value)
    elif value is not NO_JSON and not isinstance(value, str):
        message = None
    else:
        plain = value if isinstance(value, str) else text
        sign = _SIGN.search(plain)
        message = plain[sign.start() : sign.start() + _WINDOW] if sign else None
    if message is None:
        return None
    kind = _KIND.search(message)
    return kind.lastgroup if kind else "other"


def _object_error(value: dict[str, Any]) -> str | None:
    """Return an object's error message, None if it reports no error."""
    lower = {str(key).lower(): item for key, item in value.items()}
    messages = [lower[name] for name in _FIELDS if lower.get(name)]
    status = lower.get("status", lower.get("status_code", lower.get("code")))
    failed = status in ("error", "failed", "failure") or (type(status) is int and 400 <= status < 600)
    failed = failed or any(lower.get(name) is False for name in ("success", "ok")) or lower.get("iserror") is True
    failed = failed or lower.get("type") == "error"
    if not messages and not failed:
        return None
    return str([*messages, lower.get("message", ""), lower.get("detail", ""), status])[:_WINDOW]
