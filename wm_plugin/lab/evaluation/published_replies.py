"""Reads models' and judges' texts as AgentWorldBench's own evaluator does, bug for bug.

It is generous where our reading is strict: any JSON in the reply may be the verdict, and missing scores are left out of the mean.
Here it takes linear time. It finds no verdict in replies of over a million characters, behind 32 braces that nothing closes, and
beyond the bounds of `untrusted.loads` (250 levels, integers of 308 digits).
"""

import re
from bisect import bisect
from collections import deque
from dataclasses import dataclass
from typing import Any

from wm_plugin.rewards.rubric import DIMENSIONS
from wm_plugin.untrusted import BoundsError, loads

_NOTHING = "No output"  # what is judged without an output
_LONGEST = 1 << 20  # characters of a reply that is read

_MOST_OPEN = 32  # braces that nothing closes, until it gives up

_THOUGHT = re.compile("<(/?)think>", re.IGNORECASE)
_SIGN = re.compile(r'"(?:[^"\\]++|\\.?)*+(?:"|\Z)|[{}]', re.DOTALL)  # a string that is perhaps not closed, or a brace
_BRACE_OR_QUOTE = re.compile(r'[{}"]')
_COMMA_TOO_MANY = re.compile(r",(\s*+[}\]])")
_QUOTED_KEY = re.compile(r"'(\w++)'(\s*+:)")
_BARE_KEY = re.compile(r"([{,])\s*+(\w++)\s*+:")
_SCORES = re.compile(r'"scores"\s*+:\s*+\{')


@dataclass(frozen=True)
class Verdict:
    """A reply's scores, at most 5, 0 for a missing one; `total` is the mean of those above 0."""

    scores: dict[str, int]
    total: float


def prediction(text: str, tag: str) -> str:
    """Return what the evaluator takes for the prediction: the tag's last block, or the whole text without one."""
    text = without_thoughts(text, tag)
    block = _last_block(text, tag)
    return text.strip() or _NOTHING if block is None else block


def verdict(reply: str, tag: str) -> Verdict | None:
    """Return the scores that the evaluator reads from a reply, None if it finds none."""
    if len(reply) > _LONGEST:
        return None
    text = without_thoughts(reply.strip(), tag)
    text = (_last_block(text, tag) if tag else None) or text
    value = _object(_fenced(text) or _last_object(text) or _object_backwards(text))
    scores = value.get("scores") if value else None
    if not isinstance(scores, dict):
        return None
    try:
        read = {name: _score(scores.get(name, 0)) for name in DIMENSIONS}
    except (ValueError, OverflowError):  # NaN, an infinity
        return None
    above = [score for score in read.values() if score > 0]
    return Verdict(read, sum(above) / len(above) if above else 0)


def without_thoughts(text: str, tag: str) -> str:
    """Remove `<think>` blocks, what is before a lone closing mark, and what follows a lone opening one up to the next `<tag>`."""
    cuts: list[tuple[int, int]] = []
    opened: deque[int] = deque()
    for mark in _THOUGHT.finditer(text):
        if mark[1]:
            cuts.append((opened.popleft() if opened else 0, mark.end()))
        else:
            opened.append(mark.start())
    if not cuts and not opened:
        return text
    tags = [match.start() for match in re.finditer(f"<{re.escape(tag)}>", text, re.IGNORECASE)] if tag else []
    for start in opened:
        place = bisect(tags, start)
        cuts.append((start, tags[place] if place < len(tags) else len(text)))
    kept, end = [], 0
    for start, stop in sorted(cuts):
        kept.append(text[end:start] if start > end else "")
        end = max(end, stop)
    return "".join([*kept, text[end:]]).strip()


def _last_block(text: str, tag: str) -> str | None:
    opening = None
    for opening in re.finditer(f"<{re.escape(tag)}>", text, re.IGNORECASE):  # noqa: B007 - the last one
        pass
    if opening is None:
        return None
    closing = re.compile(f"</{re.escape(tag)}>", re.IGNORECASE).search(text, opening.end())
    return text[opening.end() : closing.start() if closing else len(text)].strip()


def _fenced(text: str) -> str | None:
    """Return the last fenced object, preferring one with scores."""
    blocks, place = [], text.find("```")
    while place >= 0:
        start = place + 3
        end = text.find("```", start + 4 if text.startswith("json", start) else start)
        if end < 0:
            break
        block = text[start:end].removeprefix("json").strip()
        blocks += [block] if block.startswith("{") and block.endswith("}") else []
        place = text.find("```", end + 3)
    scored = [block for block in blocks if '"scores"' in block]
    chosen = scored or blocks
    return chosen[-1] if chosen else None


def _last_object(text: str) -> str | None:
    """Return the last text between matching braces, preferring one with scores."""
    last = scored = None
    start, left = text.find("{"), _MOST_OPEN
    while start >= 0 and left:
        if end := _end(text, start):
            last = text[start:end]
            scored = last if '"scores"' in last else scored
        else:
            left -= 1
        start = text.find("{", end or start + 1)
    return scored or last


def _end(text: str, start: int) -> int | None:
    """Return where the object ends that begins at a brace, when reading starts at the brace."""
    depth = 0
    for match in _SIGN.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    return None


def _object_backwards(text: str) -> str | None:
    """Return the object that ends at the last brace, read from its end."""
    end = text.rfind("}") + 1
    depth, in_string = 0, False
    for match in reversed(list(_BRACE_OR_QUOTE.finditer(text, 0, end))):
        place, sign = match.start(), match[0]
        if sign == '"':
            in_string ^= place == 0 or text[place - 1] != "\\"
        elif not in_string:
            depth += 1 if sign == "}" else -1
            if sign == "{" and not depth:
                return text[place:end]
    return None


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    text = _BARE_KEY.sub(r'\1"\2":', _QUOTED_KEY.sub(r'"\1"\2', _COMMA_TOO_MANY.sub(r"\1", text)))
    try:
        try:
            value = loads(text)
        except BoundsError:
            return None
        except ValueError:
            scores = _scores_alone(text)
            value = loads(f"{{{scores}}}") if scores else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _scores_alone(text: str) -> str | None:
    place = text.find('"scores"')
    while place >= 0:
        if match := _SCORES.match(text, place):
            end = text.find("}", match.end())
            if end < 0:
                return None
            if end > match.end():
                return text[place : end + 1]
        place = text.find('"scores"', place + 1)
    return None


def _score(value: Any) -> int:
    """Return a score up to 5; a boolean counts as a number, and what is no number as 0."""
    if isinstance(value, float):
        value = round(value)  # half to even
    elif isinstance(value, str):
        try:
            value = int(value.split("/")[0].strip())
        except ValueError:
            value = 0
    return min(int(value), 5) if isinstance(value, int) else 0
