"""The base class of the worlds: counts turns up to a limit, and calls by their effect."""

from typing import Any


class CountedEnvironment:
    """A world with a limit of turns.

    A subclass calls `_begin` in `reset` and `_take_turn` in every tool, counts a call in `_effective` or `_invalid`, and at the
    end of an episode sets `_ended` and `_reward`. If episodes can be lost without the policy's fault (a process dies, a server
    disappears), it sets `_lost = 0`.
    """

    refusals: tuple[str, ...] = ("Invalid: ",)
    irreversible: tuple[str, ...] = ()
    _last_line = "The episode is over."
    _lost: int | None = None

    def __init__(self) -> None:
        self.max_turns = 0  # so that the episode is over until the first reset
        self._begin()

    def _begin(self) -> None:
        self.turns, self._ended, self._reward = 0, False, 0.0
        self._effective = self._invalid = 0
        self._lost = None if self._lost is None else 0
        self._calls: set[tuple[str, ...]] = set()

    def _take_turn(self, most: int = 0, **texts: Any) -> str:
        """Count a turn. Return "", or the refusal of the first text that `unfit` refuses."""
        if self.over:
            raise ValueError("The episode is over.")
        self.turns += 1
        for name, text in texts.items():
            if problem := unfit(text, most):
                return self._refuse(f"{name} {problem}")
        return ""

    def _refuse(self, why: str) -> str:
        self._invalid += 1
        return self._observe(f"{self.refusals[0]}{why}.")

    def _observe(self, text: str) -> str:
        return f"{text}\n{self._last_line}" if self.over else text

    def _note(self, good: bool, *call: str) -> None:
        """Record a call; it is effective if it is `good` and new."""
        self._effective += good and call not in self._calls
        self._calls.add(call)

    def _lose(self) -> None:
        self._ended, self._lost, self._reward = True, 1, 0.0

    def get_reward(self) -> float:
        return self._reward

    @property
    def success(self) -> bool:
        return self._reward == 1.0  # a wrapper may pay another reward

    @property
    def over(self) -> bool:
        return self._ended or self.turns >= self.max_turns

    @property
    def metrics(self) -> dict[str, Any]:
        """Counts of the episode so far: actions, the effective ones (which changed the state or showed something new) and the
        invalid ones; and `lost`, 0 or 1, if episodes can be lost."""
        counts = {"actions": self.turns, "effective": self._effective, "invalid": self._invalid}
        return counts if self._lost is None else counts | {"lost": self._lost}


def unfit(text: Any, most: int) -> str:
    """Return why an argument is no text of at most `most` characters that a tokenizer takes, or ""."""
    if not isinstance(text, str):
        return "must be text"
    if len(text) > most:
        return f"has {len(text)} characters; {most} are the most"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "is not Unicode"
    return ""


def one_line(text: Any, most: int) -> str:
    """Return an argument on one line, or "" if it is no text or longer than `most` characters."""
    if not isinstance(text, str) or len(text) > most:
        return ""
    return " ".join(text.encode(errors="replace").decode().split())
