"""Puts texts for a judge between markers, so that nothing inside them can pass for instructions.

The judge's score trains the model that writes the predictions, so that model learns to write whatever pays. Each text therefore
stands between markers with a number that is a hash of all texts of the question. Writing the number into a text would change the
number, so no text can forge its end marker; and the number is the same in every run, which the cache needs. Anything that looks
like a marker, a verdict's tag or a chat template's token is changed visibly, and invisible characters become escapes. All texts
are changed in the same way, so that equal texts stay equal.
"""

import hashlib
import re
from collections.abc import Mapping

import orjson

from wm_plugin.rewards.verdict import TAG

# Control, format and surrogate characters, variation selectors and tags, without the line feed, tab and carriage return.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_PLAIN = bytes({*range(0x20, 0x7F), *b"\n\r\t"})  # nearly all texts have no other characters
_SPACED = r"[\s_-]*".join(TAG.split("_"))
_ANGLED = re.compile(
    rf"<(\s*(?:/\s*)?{_SPACED}[^<>\n]{{0,80}}"  # a verdict's tag
    r"|[|｜][^<>\n]{1,60}[|｜]"  # <|im_end|>, <｜User｜>
    r"|\s{0,9}/?\s{0,9}(?:think|thinking|thoughts?|reasoning)\s{0,9}"  # marks of a judge's thoughts
    r"|/?(?:s|bos|eos|pad|start_of_turn|end_of_turn))>",
    re.IGNORECASE,
)
_SQUARE = re.compile(
    r"\[(\s*/?INST|/?(?:SYSTEM_PROMPT|TOOL_RESULTS|THINK)|\[\s*(?:begin|end)\b[^\]\n]{0,80}\])\]?", re.IGNORECASE
)
_UNCLOSED = re.compile(rf"<(?=\s*(?:/\s*)?{_SPACED})", re.IGNORECASE)


def neutral(text: str) -> tuple[str, int]:
    r"""Replace markers, verdict tags and chat-template tokens; return the text and the number of passages changed.

    `<final_evaluation>` becomes `‹final_evaluation›`, `[INST]` becomes `⟦INST⟧`, a zero-width space `\\u200b`.
    """
    if not text.isascii() or text.encode().translate(None, _PLAIN):  # several times faster than searching
        text = _UNSEEN.sub(_escape, text)
    count = 0
    for pattern, bracket, replacement in ((_ANGLED, "<", r"‹\1›"), (_UNCLOSED, "<", "‹"), (_SQUARE, "[", r"⟦\1⟧")):
        if bracket in text:  # most texts have none
            text, changes = pattern.subn(replacement, text)
            count += changes
    return text, count


def fenced(texts: Mapping[str, str]) -> tuple[str, int]:
    """Put a question's texts between markers with their names; return the result and the number of passages changed."""
    safe: dict[str, str] = {}
    changes = 0
    for name, text in texts.items():
        safe[name], count = neutral(text)
        changes += count
    number = hashlib.blake2b(orjson.dumps(list(safe.items())), digest_size=8).hexdigest()
    blocks = [f"[[begin {name} {number}]]\n{text}\n[[end {name} {number}]]" for name, text in safe.items()]
    return "\n\n".join(blocks), changes


def windows(texts: Mapping[str, str], max_chars: int) -> tuple[dict[str, str], str]:
    """Cut the equal beginning of long texts, so that a judge sees where they differ.

    Returns:
        The texts, and a line that says what is left out there and at the ends; empty if nothing is.
    """
    if all(len(text) <= max_chars for text in texts.values()):
        return dict(texts), ""
    shortest = min(map(len, texts.values()))
    same = next(
        (place for place, chars in enumerate(zip(*texts.values(), strict=False)) if len({*chars}) > 1), shortest
    )
    start = same - max_chars // 2 if same >= max_chars and len(set(texts.values())) > 1 else 0
    shown = {
        name: f"(cut here: {start} characters before)\n{text[start:]}" if start else text
        for name, text in texts.items()
    }
    rests = {text[max_chars:] for text in shown.values()}
    names = ", ".join(f"`{name}`" for name in texts)
    before = f"Their first {start} characters are the same. " if start else ""
    after = "the same" if len(rests) == 1 else "not the same"
    return shown, f"Not all of {names} is shown. {before}What follows after the parts that are shown is {after}."


def shortened(text: str, length: int) -> str:
    """Cut a text to a number of characters, with a note at the cut."""
    return text if len(text) <= length else f"{text[:length]}\n(cut here: {len(text) - length} characters more)"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
