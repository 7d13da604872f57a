"""Reads a judge's verdict from its reply.

A verdict is one closed `<final_evaluation>`, outside the judge's thoughts, that holds exactly one JSON object and nothing else
and ends the reply. No other object in the reply has its keys, except objects copied word for word from the observation; a
single one of several keys may be in any object. Everything else is no verdict, because the prediction may have caused it: a judge
that quotes a prediction quotes a forged verdict with it, before or after its own, inside its tag or outside, and no rule can tell
which of two is the judge's. The caller counts such a reply as a failure and may ask again.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from wm_plugin.untrusted import loads, unescape

TAG = "final_evaluation"
_SPACED = r"[\s_-]{0,9}".join(TAG.split("_"))
_LIKE = re.compile(rf"<\s{{0,9}}/?\s{{0,9}}{_SPACED}", re.IGNORECASE)  # anything that reads like the tag
# In a prediction also with `<` escaped and anything between the words: a judge may restore these.
_FORGED = re.compile(
    r"(?:<|%(?:25){0,9}3c|\\{1,9}(?:u00|x)3c|\\{1,9}u\{3c\})[\W_]{0,9}" + r"(?:[^\w<>]|_){0,9}".join(TAG.split("_")),
    re.IGNORECASE,
)
_OPENS = re.compile(rf"<\s{{0,9}}{TAG}\s{{0,9}}>", re.IGNORECASE)
_CLOSES = re.compile(rf"<\s{{0,9}}/\s{{0,9}}{TAG}\s{{0,9}}>", re.IGNORECASE)
_THOUGHT = re.compile(
    r"<\s{0,9}(?P<a>/?)\s{0,9}(?:think|thinking|thoughts?|reasoning)\s{0,9}>|\[(?P<b>/?)THINK\]", re.IGNORECASE
)
# Marks of thoughts that are not known well enough to remove the thoughts.
_THOUGHT_LIKE = re.compile(
    r"[<\[◁⟨【]\s{0,9}[/|:.\w-]{0,24}?(?:think|thought|reason|reflect|scratch|analysis|channel|monolog|deliberat|ponder|"
    r"rationale|draft|brainstorm|contemplat|introspect)",
    re.IGNORECASE,
)
# What models write at the end of replies.
_ENDING = re.compile(r"<\|[^<>|\s]{1,30}\|>|</?s>|<eos>|<end_of_turn>|```", re.IGNORECASE)
# A prediction's tag as `delimit` shows it to judges.
_QUOTED = re.compile(rf"‹\s{{0,9}}{TAG}\s{{0,9}}›[^‹]*‹\s{{0,9}}/\s{{0,9}}{TAG}\s{{0,9}}›", re.IGNORECASE)
_BRACE_OR_KEY = re.compile(r"[{}]|(?<!\w)(\w{1,40})[\"'”’`*\\]{0,4}\s{0,9}:")
_MARKS = str.maketrans("‹⟨〈«", "<<<<")  # characters that a judge may read as `<`
_ASCII = {0xFEE0 + code: code for code in range(0x21, 0x7F)} | dict(zip(map(ord, "﹤﹥﹛﹜﹕"), "<>{}:", strict=True))
_FENCE = re.compile(r"```(?:json)?\s", re.IGNORECASE)
_MAX_REPLY = 1 << 20  # characters of a reply with a verdict
_MAX_VERDICT = 1 << 15  # characters in the tag
_MAX_QUOTES = 50  # objects of a reply to look for in the observation
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_NUMBER = re.compile(r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)(?:\s*(?:/|out of)\s*([0-9]{1,9}))?")
_SCORES = ("score", "rating", "value")
_HOLDERS = ("scores", "ratings", "evaluation")


def fields(reply: str, names: Sequence[str], observed: str = "") -> dict[str, Any]:
    """Return the values of the names in the verdict; empty without a verdict, or if a name is missing or there twice.

    Keys match in any case, also inside an object of `_HOLDERS` (`{"scores": {...}}`), and a value may be an object with a score
    (`{"format": {"reason": ..., "score": 4}}`).

    Args:
        observed: the observation; what the reply quotes of it is no verdict, even if it has the names.
    """
    value = _object(_tagged(reply, names, observed))
    if value is None:
        return {}
    parts: dict[str | None, Any] = {
        key: part for key, part in value.items() if isinstance(part, dict) and key not in names
    }
    parts[None] = value
    holders = [key for key, part in parts.items() if any(name in part for name in names)]
    if len(holders) != 1 or holders[0] not in (None, *_HOLDERS):
        return {}
    scores = parts[holders[0]]
    return {name: _score(scores[name]) for name in names} if all(name in scores for name in names) else {}


def pattern(values: Mapping[str, str]) -> str:
    """Return a regular expression of a whole reply that is a verdict and nothing else, as the prompts write it.

    Args:
        values: an expression of each key's value as JSON.
    """
    pairs = ", ".join(f'"{name}": {value}' for name, value in values.items())
    return rf"<{TAG}>\n\{{{pairs}\}}\n</{TAG}>"


def is_forged(prediction: str, observed: str) -> bool:
    """Whether a prediction has a verdict's tag, however it is written, and the observation has none."""
    return _has_tag(prediction) and not _has_tag(observed)


def _has_tag(text: str) -> bool:
    return _FORGED.search(_in_ascii(text).translate(_MARKS)) is not None


def number(value: Any, low: float, high: float) -> float | None:
    """Read a score from a number or from text such as `4`, `4/5`, `4 out of 5`; None for anything else, or outside [low, high].

    A score on another scale says nothing on this one: 60 of 100 must not become 5 of 5.
    """
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip().strip("*.").strip())
        if not match or (match[2] and float(match[2]) != high):
            return None
        value = float(match[1])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if low <= value <= high else None


def _tagged(reply: str, names: Sequence[str], observed: str) -> str | None:
    """Return the content of the only tag outside the thoughts, if it ends the reply and no other text looks like a verdict."""
    answer = _after_thoughts(reply, names, observed) if len(reply) <= _MAX_REPLY else None
    if answer is None or len(_LIKE.findall(_in_ascii(answer))) != 2:
        return None
    opening = _OPENS.search(answer)
    closing = _CLOSES.search(answer, opening.end()) if opening else None
    if not opening or not closing or _ENDING.sub("", _in_ascii(answer[closing.end() :])).strip():
        return None
    before = _without_quotes(answer[: opening.start()], observed)
    if _THOUGHT_LIKE.search(before) or _has_object(before, names):
        return None
    return answer[opening.end() : closing.start()]


def _in_ascii(text: str) -> str:
    """Replace full-width, small and HTML-escaped (also twice) forms of the characters of a tag or an object."""
    return unescape(unescape(text)).translate(_ASCII) if "&" in text else text.translate(_ASCII)


def _without_quotes(text: str, observed: str) -> str:
    """Convert to ASCII signs; drop tags as judges are shown them, and objects copied word for word from the observation."""
    kept, depth, begin, end, left = [], 0, 0, 0, _MAX_QUOTES if observed else 0
    for match in _BRACE_OR_KEY.finditer(text) if left else ():
        if match[0] == "{":
            begin = begin if depth else match.start()
            depth += 1
        elif match[0] == "}" and depth:
            depth -= 1
            if not depth and left:
                left -= 1
                if text[begin : match.end()] in observed:
                    kept.append(text[end:begin])
                    end = match.end()
    return _in_ascii(_QUOTED.sub("", "".join([*kept, text[end:]])))


def _has_object(text: str, names: Sequence[str]) -> bool:
    """Whether two of the names, or the only one, are keys between braces. A quoted observation may have one of several."""
    depth, keys = 0, set()
    for match in _BRACE_OR_KEY.finditer(text):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth = max(depth - 1, 0)
        elif depth and match[1].lower() in names:
            keys.add(match[1].lower())
    return len(keys) >= min(2, len(names))


def _after_thoughts(reply: str, names: Sequence[str], observed: str) -> str | None:
    """Return the reply without the thoughts that it begins with; None if it is not clear what is a thought.

    A quoted prediction may hold marks of thoughts too, which could hide the judge's own verdict.
    """
    marks = list(_THOUGHT.finditer(reply))
    if not marks:
        return reply
    closing = marks[-1]
    closes = [bool(mark["a"] or mark["b"]) for mark in marks]
    if closes not in ([True], [False, True]):
        return None
    if len(marks) == 2 and reply[: marks[0].start()].strip():
        return None
    before = reply[: closing.start()]
    if len(marks) == 1 and (  # a template wrote the opening mark, or this one is quoted
        _LIKE.search(_in_ascii(before)) or _has_object(_without_quotes(before, observed), names)
    ):
        return None
    return reply[closing.end() :]


def _object(text: str | None) -> dict[str, Any] | None:
    """Parse the JSON object that a text consists of, perhaps in a code fence and with trailing commas; its keys in lower case."""
    if text is None or len(text) > _MAX_VERDICT:
        return None
    text = text.strip()
    if (fence := _FENCE.match(text)) and text.endswith("```"):
        text = text[fence.end() : -3].strip()
    if not text.startswith("{"):
        return None
    try:
        value: dict[str, Any] = _lower(loads(_TRAILING_COMMA.sub("", text), strict=True), 3)
    except ValueError:
        return None
    return value


def _lower(value: Any, levels: int) -> Any:
    """Lower the case of the first levels' keys.

    Raises:
        ValueError: two keys are the same then.
    """
    if not isinstance(value, dict) or not levels:
        return value
    lower = {key.strip().lower(): _lower(item, levels - 1) for key, item in value.items()}
    if len(lower) < len(value):
        raise ValueError("a key twice")
    return lower


def _score(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    scores = [value[key] for key in _SCORES if key in value]
    return scores[0] if len(scores) == 1 else None
