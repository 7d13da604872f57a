"""The form of a real observation as rules, and predictions without a simulation, which a case's rules must refuse.

The form is what stays when the values go: keys of JSON, the number of lines, and how the two lines with the most signs are
written. Words of the action stand in it as they are: a prompt with its command, a header with the columns that were asked for.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from wm_plugin.rewards.json_match import parse as parse_json

WORD = re.compile(r"\w++")
_PART = re.compile(r"[0-9]++(?:[.,][0-9]++)*+(?!\w)|\w++|\s++|.", re.DOTALL)
_KEY = re.compile(r"(?<!\w)(\w++)[\"']?\s*+[:=]")
# a shell's user@host:/folder#
_PROMPT = re.compile(r"^[\w.()-]{0,60}[ ]?[\w.-]{1,60}@[\w.-]{1,60}[: ][^\n#$%>]{0,200}[#$%>]", re.MULTILINE)
_LETTER = r"[\w\x{80}-\x{10ffff}]"  # or digit; Unicode's classes would make large automata
_NUMBER, _WORDS = r"[0-9]+(?:[.,][0-9]+)*", rf"{_LETTER}+(?:,?[ \t]+{_LETTER}+)*"  # a list may have more of them
_END, _MORE = r"\s*$", r"[ \t\r]*\n"  # of a line
_KEYS, _LINES = 8, 2  # keys of JSON, and lines of a text, that a prediction must have
_FEW, _MOST = 5, 20  # up to so many lines all are needed; of more, at most so many
_LONGEST = 200  # characters of a line, and of its pattern
# What may be said of anything.
CONSTANTS = (
    *("", "Done.", "OK", "Success", "null", "{}", "[]", "Error", "Error: not found", "Permission denied"),
    *("Error: 401 Unauthorized", "Error: already exists", "Error: invalid argument", "syntax error"),
)


def form(text: str, known: Iterable[str]) -> list[Any]:
    """Return rules for predictions that keep a text's form.

    Args:
        known: words that the simulator has read in the action.
    """
    words = frozenset(known)
    value = parse_json(text)
    if isinstance(value, dict | list):
        paths = list(dict.fromkeys(_paths(value, "$", 3)))[:_KEYS]
        told = sorted((words & set(WORD.findall(text))) - fixed(text), key=len)[-_LINES:]
        return [*({"json": {"path": path}} for path in paths or ["$"]), *({"regex": re.escape(word)} for word in told)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = sorted(dict.fromkeys(lines), key=lambda line: -_signs(line, words))[:_LINES]
    if len(lines) <= _FEW:
        shapes = (_shape(line, words, "") if line in told else r"\S[^\n]*" for line in lines)
        return [{"regex": {"pattern": r"\s*\n\s*".join(shapes), "full": True}}]
    return [
        *({"regex": rf"(?m)^\s*{_shape(line, words, _END)}"} for line in told),
        {"regex": rf"(?:\S[^\n]*\n\s*){{{min(len(lines) // 2, _MOST)}}}\S"},
    ]


def first_line(text: str, known: Iterable[str]) -> str:
    """Return a pattern for texts whose first line has this one's form, and that go on."""
    line = text.strip().partition("\n")[0].strip()
    return rf"^\s*{_shape(line, frozenset(known), _MORE)}"


def top_keys(value: Mapping[str, Any]) -> list[str]:
    """Return the paths of an object's first keys."""
    return list(_paths(value, "$", 0))[:_KEYS]


def fixed(text: str) -> set[str]:
    """Return words that belong to a text's form, not to what an environment tells: of a shell's prompt, and keys."""
    return {word for prompt in _PROMPT.findall(text) for word in WORD.findall(prompt)} | set(_KEY.findall(text))


def unsimulated(copied: Iterable[str], seen: Iterable[str], action: str) -> Iterator[str]:
    """Yield predictions that copy words, repeat themselves or echo a text: wrong, unless they are right by chance.

    Args:
        copied: words that a case is about, as an instruction or an earlier action has them.
    """
    words = [word for word in dict.fromkeys(copied) if word]
    for said in (*CONSTANTS, *seen, action):
        yield said
        for word in words:
            yield f"{said}\n{word}".strip()
            yield f"{word}\n{said}".strip()
    for word in words:
        yield from (f"Error: {word}", json.dumps({"error": word}), json.dumps({"result": word}))
    for error in CONSTANTS if action else ():
        yield from (f"{error}: {action}", f"{error}\n{action}")
    yield from (" ".join(words), "\n".join(words))


def _paths(value: Any, path: str, depth: int) -> Iterator[str]:
    """Yield the paths of the keys in JSON, upper ones first; of a list, those in its first item."""
    if isinstance(value, dict):
        inner = [
            (f"{path}.{key}", item) for key, item in value.items() if re.fullmatch(r"[A-Za-z_]\w{0,60}", key, re.ASCII)
        ]
        yield from (where for where, _ in inner)
        for where, item in inner if depth else ():
            yield from _paths(item, where, depth - 1)
    elif isinstance(value, list) and value and depth:
        yield from _paths(value[0], f"{path}[0]", depth - 1)


def _signs(line: str, known: frozenset[str]) -> int:
    """Count what a line's form tells: its signs, numbers, and words of the action."""
    parts = _PART.findall(line[:_LONGEST])
    return sum(not part.isspace() and (part in known or not part.isidentifier()) for part in parts)


def _shape(line: str, known: frozenset[str], end: str) -> str:
    """Return a pattern for lines that are written as this one, with other numbers and other words, except known ones.

    Args:
        end: what follows a line that is not cut.
    """
    pieces: list[str] = []
    for part in _PART.findall(line[:_LONGEST]):
        if sum(map(len, pieces)) > _LONGEST:
            return "".join(pieces) + r"[^\n]*"
        is_word, is_number = part[0].isalnum() or part[0] == "_", not part.strip("0123456789.,")
        if part in known:
            pieces.append(re.escape(part))
        elif part.isspace():
            pieces.append(r"\s+")
        elif is_word and "." not in part and "," not in part and _joins(pieces):
            del pieces[pieces.index(_WORDS, -3) + 1 :]
        elif is_word:
            pieces.append(_NUMBER if is_number else _WORDS)
        else:
            pieces.append(re.escape(part))
    return "".join(pieces) + (end if len(line) <= _LONGEST else r"[^\n]*")


def _joins(pieces: Sequence[str]) -> bool:
    """Return whether a word continues a run of words: after a space, or a comma and a space."""
    return pieces[-2:] == [_WORDS, r"\s+"] or pieces[-3:] == [_WORDS, ",", r"\s+"]
