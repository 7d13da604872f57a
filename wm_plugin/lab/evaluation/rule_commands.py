"""What the commands of an action read and write, as far as they are known: files, variables, and the rows of tables."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wm_plugin.data.schema import Action
from wm_plugin.rewards.json_match import NO_JSON
from wm_plugin.rewards.json_match import parse as parse_json

_LONGEST_COMMAND, _COMMANDS = 4_000, 50  # characters of a command that are read, and how many of an action
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
    """What a command of an action reads or writes, as far as it is known.

    Attributes:
        text: All of it.
        writes: (path, content, whether it is added to what is there), where all three are known.
        sets: (name, value).
        query: The text, if it is a query of a database.
        changes: (table, values) of a statement.
    """

    text: str
    read_file: str = ""
    read_variable: str = ""
    query: str = ""
    writes: tuple[str, str, bool] | None = None
    sets: tuple[str, str] | None = None
    changes: tuple[str, tuple[str, ...]] | None = None


def commands_of(action: Action) -> Iterator[Command]:
    """The commands of an action: of its calls' arguments, of JSON with keystrokes, or its text."""
    for name, arguments in _calls(action):
        path = next((arguments[key] for key in _PATHS if isinstance(arguments.get(key), str)), "")
        content = next((arguments[key] for key in _CONTENTS if isinstance(arguments.get(key), str)), None)
        if path and ("write" in name or "create" in name):
            writes = (path, content, False) if content is not None else None
            yield Command(f"{path}\n{content or ''}", writes=writes)
        elif path and ("read" in name or "view" in name or "cat" in name):
            yield Command(path, read_file=path)
        else:
            texts = [arguments[key] for key in _TEXTS if isinstance(arguments.get(key), str)]
            rest = json.dumps(arguments, default=str)[:_LONGEST_COMMAND] if not texts else ""
            yield from (_command(text) for text in texts or [rest])


def _calls(action: Action) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, arguments) of an action's calls, also of those that its text holds as JSON; a plain text is one command."""
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
    if words[:1] in (["echo"], ["printf"]) and len(words) >= 4 and words[-2] in (">", ">>"):
        content = " ".join(word for word in words[1:-2] if word not in ("-e", "-n"))
        plain = not any(sign in content for sign in "$`\\")
        return Command(text, writes=(words[-1], content, words[-2] == ">>") if plain else None)
    if words[:1] == ["export"] and len(words) == 2:
        name, equal, value = words[1].partition("=")
        known = equal and _NAME.fullmatch(name) and not any(sign in value for sign in "$`\\")
        return Command(text, sets=(name, value) if known else None)
    if words[:1] == ["cat"] and len(words) == 2:
        return Command(text, read_file=words[1])
    if words[:1] == ["printenv"] and len(words) == 2:
        return Command(text, read_variable=words[1])
    variable = _VARIABLE.fullmatch(words[1]) if words[:1] == ["echo"] and len(words) == 2 else None
    return Command(text, read_variable=(variable[1] or variable[2]) if variable else "")


def _words(line: str) -> list[str]:
    """The words and operators of a line of a shell; none of one that is not closed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:
        return []


def texts_of(action: Action) -> list[str]:
    """All that an action says, as text."""
    calls = [json.dumps(call.arguments, ensure_ascii=False, default=str) for call in action.calls[:_COMMANDS]]
    return [action.text, *calls]
