"""Texts that no observation may show, found in whatever writing: the rule behind `withhold`, on real and on predicted texts.

A text is compared by its letters and digits alone, after Unicode's compatibility forms (NFKC), without case, accents and
whatever stands between: `P-a-r-i-s`, `ＰＡＲＩＳ` and `pàris` all hold `Paris`. A text of fewer than four letters and digits
counts only where no other letter or digit stands beside it. Longer ones are also found backwards, in ROT13, base64, hexadecimal
and character codes, with the escapes of JSON, HTML and URLs: what a server writes that obeys an agent who asks for the answer in
another form. Not found are translations, descriptions, and an answer in parts over several observations.

Time and memory are linear in the text: a fixed number of searches per withheld text, in at most `ROUNDS` rounds.
"""

import base64
import codecs
import html
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

MARK = "…"  # in the place of what is withheld; it has neither letters nor digits
# Texts of an episode, and their characters: further ones, and the rest of a text, are not looked for.
MOST, LONGEST = 64, 500
# Letters and digits: fewer must stand alone; texts of fewer or more are looked for in no other form.
SHORT, LONG = 4, 100
ROUNDS = 3  # what stands around a place that was taken out may spell the text anew; after them nothing of it is shown


@dataclass(frozen=True)
class Withheld:
    """Texts to withhold: `Withheld.of(values)`. Empty if there are none.

    Attributes:
        needles: what to look for, as letters and digits, the shortest first.
        alone: of them those that must stand alone.
        signs: texts without a letter or digit, which are looked for as they are.
    """

    needles: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Iterable[str]) -> "Withheld":
        """Return the answers to withhold; those without a visible character are left out."""
        return _withheld(tuple(dict.fromkeys(value[:LONGEST] for value in values))[:MOST])

    def __bool__(self) -> bool:
        return bool(self.needles or self.alone or self.signs)

    def first(self, text: str) -> int:
        """Return where the first of the texts begins; -1 if none is there."""
        spans = self._spans(text)
        return spans[0][0] if spans else -1

    def without(self, text: str) -> str:
        """Return the text with `MARK` in the place of all that is withheld. Nothing of it is left, or nothing of the text."""
        for _ in range(ROUNDS):
            spans = self._spans(text)
            if not spans:
                return text
            pieces, end = [], 0
            for start, stop in spans:
                pieces += [text[end:start], MARK]
                end = stop
            text = "".join([*pieces, text[end:]])
        return MARK if self._spans(text) else text

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Return where the text shows something withheld: (start, end) in order, apart from each other."""
        found: list[tuple[int, int]] = []
        if self.needles or self.alone:
            letters, places = _letters(text)
            for needle in self.needles:
                if len(needle) > len(letters):  # and so are all others: short lines are many
                    break
                for start in _places(letters, needle):
                    found.append((places[start], places[start + len(needle) - 1] + 1))
            for needle in self.alone:
                for start in _places(letters, needle):
                    first, last = places[start], places[start + len(needle) - 1]
                    if not _is_letter(text, first - 1) and not _is_letter(text, last + 1):
                        found.append((first, last + 1))
        for sign in self.signs:
            found += [(start, start + len(sign)) for start in _places(text, sign)]
        return _joined(sorted(found))


def texts_of(value: Any) -> list[str]:
    """Return the texts in a row's column: a text, a number, or a list or mapping of these, at most `MOST`, each of them once."""
    texts: dict[str, None] = {}
    level = [value]
    while level and len(texts) < MOST:
        inner: list[Any] = []
        for item in level[: MOST * 4]:
            if isinstance(item, Mapping):
                inner += item.values()
            elif isinstance(item, list | tuple | set | frozenset):
                inner += item
            elif isinstance(item, str) and item.strip():
                texts[item] = None
            elif isinstance(item, int | float) and not isinstance(item, bool):
                try:
                    texts[str(item)] = None
                except ValueError:  # an integer of more digits than Python writes
                    continue
        level = inner
    return list(texts)[:MOST]


@lru_cache(maxsize=256)  # of the episodes that run
def _withheld(values: tuple[str, ...]) -> Withheld:
    needles: dict[str, None] = {}
    alone: dict[str, None] = {}
    signs: dict[str, None] = {}
    for value in values:
        letters = _letters(value)[0]
        if not letters:
            if value.strip():
                signs[value.strip()] = None
        elif len(letters) < SHORT:
            alone[letters] = None
        else:
            needles[letters] = None
            if len(letters) <= LONG:
                needles |= dict.fromkeys(_forms(value, letters))
    return Withheld(tuple(sorted(needles, key=len)), tuple(alone), tuple(signs))


def _forms(value: str, letters: str) -> Iterator[str]:
    """Yield other ways to write a text, as letters and digits. They are at least as long as the text itself."""
    yield letters[::-1]
    for spelling in dict.fromkeys((value, value.lower(), value.upper(), value.title(), letters)):
        for write in (lambda text: codecs.encode(text, "rot13"), html.escape):
            yield _letters(write(spelling))[0]
        data = spelling.encode(errors="replace")
        yield _letters(quote(data))[0]
        yield data.hex()
        yield from (prefix.join(["", *(f"{byte:02x}" for byte in data)]) for prefix in ("x", "0x"))
        codes = [ord(character) for character in spelling]
        yield "".join(map(str, codes))  # 80 97 114; &#80;&#97;&#114;
        yield "".join(f"x{code:x}" for code in codes)  # &#x50;&#x61;
        yield "".join(f"u{code:04x}" for code in codes)
        for shift in range(3):  # of the text within a longer one
            encoded = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
            whole = encoded[(0, 2, 3)[shift] : len(encoded) - bool((shift + len(data)) % 3)]  # of the text's bits alone
            if len(core := _letters(whole)[0]) >= SHORT:
                yield core


def _letters(text: str) -> tuple[str, list[int]]:
    """Return the letters and digits of a text as they are compared, and the place of each in it."""
    kept: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        folded = _folded(character)
        if folded:
            kept.append(folded)
            places += [place] * len(folded)
    return "".join(kept), places


@lru_cache(maxsize=1 << 16)
def _folded(character: str) -> str:
    """Return a character as it is compared: "" if it is no letter and no digit."""
    forms = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", character).casefold())
    return "".join(one for one in forms if one.isalnum())


def _is_letter(text: str, place: int) -> bool:
    return 0 <= place < len(text) and bool(_folded(text[place]))


def _places(text: str, needle: str) -> Iterator[int]:
    start = text.find(needle)
    while start >= 0:
        yield start
        start = text.find(needle, start + len(needle))


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
