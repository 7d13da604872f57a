"""Reads what the commands of an action read and write, as far as it can be known: files, variables, and the rows of tables."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wm_plugin.data.schema import Action
from wm_plugin.rewards.json_match import NO_JSON
from wm_plugin.rewards.json_match import parse as parse_json

_LONGEST_COMMAND, _COMMANDS = 4_000, 50  # characters of a command that are read, and commands of an action
_LITERAL = re.compile(r"'([^'\n]{1,200})'|(?<![\w.])(\d{3,12})(?![\w.])")
_TABLE = re.compile(
    r"\s*+(?:insert\s++(?:or\s++\w++\s++)?into|replace\s++into|update)\s++[\"`\[]?(\w++)", re.IGNORECASE
)
_SELECT = re.compile(r"\s*+(?:select|with)\b", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w{0,80}")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w{0,80})\}|([A-Za-z_]\w{0,80}))")
_TEXTS = ("keystrokes", "command", "cmd", "query", "sql", "code", "input")  # arguments that are commands
_PATHS, _CONTENTS = ("path", "file_path", "filename", "file"), ("content", "contents", "text", "file_text", "data")


@dataclass(frozen=True)
class Command:
    """What a command reads or writes, as far as it is known."""

    text: str  # all of it
    read_file: str = ""
    read_variable: str = ""
    query: str = ""  # the text, if it is a database query
    writes: tuple[str, str, bool] | None = None  # (path, content, whether it is appended), if all three are known
    sets: tuple[str, str] | None = None  # (name, value)
    changes: tuple[str, tuple[str, ...]] | None = None  # (table, values) of a statement


def commands_of(action: Action) -> Iterator[Command]:
    """Yield the commands in an action's calls, in JSON with keystrokes, or in its text."""
    for name, arguments in _calls(action):
        path = _first(arguments, _PATHS) or ""
        if path and ("write" in name or "create" in name):
            content = _first(arguments, _CONTENTS)
            yield Command(f"{path}\n{content or ''}", writes=None if content is None else (path, content, False))
        elif path and ("read" in name or "view" in name or "cat" in name):
            yield Command(path, read_file=path)
        else:
            texts = [arguments[key] for key in _TEXTS if isinstance(arguments.get(key), str)]
            rest = json.dumps(arguments, default=str)[:_LONGEST_COMMAND] if not texts else ""
            yield from (_command(text) for text in texts or [rest])


def _first(arguments: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((arguments[name] for name in names if isinstance(arguments.get(name), str)), None)


def _calls(action: Action) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (name, arguments) of an action's calls, or of those that its text holds as JSON; a plain text is one command."""
    calls: list[tuple[str, Mapping[str, Any]]] = []
    for call in action.calls[:_COMMANDS]:
        values = call.arguments
        calls.append((call.name.lower(), values if isinstance(values, dict) else {"command": str(values)}))
    if calls:
        return calls
    value = parse_json(action.text) if action.text.lstrip()[:1] in ("{", "[") else NO_JSON
    items = value if isinstance(value, list) else [value]
    for item in items[:_COMMANDS]:
        if isinstance(item, dict):
            inner = item.get("arguments", item.get("parameters"))
            calls.append((str(item.get("name", "")).lower(), inner if isinstance(inner, dict) else item))
    return calls or [("", {"command": action.text})]


def _command(text: str) -> Command:
    text = text.strip()[:_LONGEST_COMMAND]
    if table := _TABLE.match(text):
        values = tuple(a or b for a, b in _LITERAL.findall(text))
        return Command(text, changes=(table[1].lower(), values))
    if _SELECT.match(text):
        return Command(text, query=text)
    first, _, rest = text.partition("\n")
    words = _words(first)
    if words[:1] == ["cat"] and ">" in words and "<<" in words and rest:
        end = words[words.index("<<") + 1 :][:1]
        path = words[words.index(">") + 1 :][:1]
        content, closed, _ = f"{rest}\n".partition(f"\n{end[0]}\n") if end else ("", "", "")
        return Command(text, writes=(path[0], content, False) if path and closed else None)
    if rest or any(word in ("|", "&&", "||", ";", "&", "<", "<<", "(", ")") for word in words):
        return Command(text)
    match words:
        case ["echo" | "printf", *_, ">" | ">>", target] if len(words) >= 4:
            content = " ".join(word for word in words[1:-2] if word not in ("-e", "-n"))
            return Command(text, writes=(target, content, words[-2] == ">>") if _is_plain(content) else None)
        case ["export", setting]:
            name, equal, value = setting.partition("=")
            known = equal and _NAME.fullmatch(name) and _is_plain(value)
            return Command(text, sets=(name, value) if known else None)
        case ["cat", source]:
            return Command(text, read_file=source)
        case ["printenv", name]:
            return Command(text, read_variable=name)
        case ["echo", word] if variable := _VARIABLE.fullmatch(word):
            return Command(text, read_variable=variable[1] or variable[2])
    return Command(text)


def _is_plain(text: str) -> bool:
    return not any(sign in text for sign in "$`\\")


def _words(line: str) -> list[str]:
    """Split a shell's line into words and operators; return none if a quote is not closed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:
        return []


def texts_of(action: Action) -> list[str]:
    """Return all that an action says, as text."""
    calls = [json.dumps(call.arguments, ensure_ascii=False, default=str) for call in action.calls[:_COMMANDS]]
    return [action.text, *calls]
