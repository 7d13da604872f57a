"""Names that mean nothing: made of syllables by a seed, so that no model has read of who bears them."""

import random
from collections.abc import Callable

_ONSETS = (
    *("b", "br", "c", "d", "dr", "f", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pl", "qu"),
    *("r", "s", "sk", "st", "t", "th", "tr", "v", "vr", "w", "y", "z"),
)
_VOWELS = ("a", "e", "i", "o", "u", "ae", "ea", "io", "ou")
_CODAS = ("", "", "", "l", "m", "n", "r", "v", "nd", "rk", "lm", "rn")
# What names of companies end in, and places sometimes.
TRADES = ("Works", "Group", "Brothers", "Union", "Makers", "Partners", "House", "and Sons")
_ENDINGS = ("mouth", "holt", "wick", "stead", "fell", "haven", "ford", "mere")
_LEAST, _MOST_TRIES = 6, 1000  # letters of a root, and draws of one


class Names:
    """Draws names for one world. No two have the same root, so that none is a part of another.

    Args:
        taken: words in lower case that are no names here, such as those of the documents.
    """

    def __init__(self, rng: random.Random, taken: set[str]) -> None:
        self._rng, self._taken = rng, set(taken)
        self._styles: dict[str, Callable[[], str]] = {
            "place": lambda: self.root(2) + rng.choice(_ENDINGS) if rng.random() < 0.5 else self.root(),
            "company": lambda: f"{self.root()} {rng.choice(TRADES)}",
            "person": lambda: f"{self.root()} {self.root()}",
            "model": lambda: f"{self.root()} {rng.randint(11, 98)}",
            "code": lambda: f"{self.root()[:5].upper()}-{rng.randint(1000, 9999)}",
        }

    def draw(self, style: str) -> str:
        """A name in one of `spec.NAMES`, unlike those before."""
        while True:
            name = self._styles[style]()
            if name.casefold() not in self._taken:
                self._taken.add(name.casefold())
                return name

    def root(self, syllables: int = 0) -> str:
        """A word of syllables, with a capital letter."""
        for _ in range(_MOST_TRIES):
            count = syllables or self._rng.choice((2, 2, 3))
            text = "".join(
                self._rng.choice(_ONSETS) + self._rng.choice(_VOWELS) + self._rng.choice(_CODAS) for _ in range(count)
            )
            if (len(text) >= _LEAST or syllables) and len(text) <= 12 and text not in self._taken:
                self._taken.add(text)
                return text.capitalize()
        return self.root(4)  # pragma: no cover  # a world has far fewer names than there are roots
