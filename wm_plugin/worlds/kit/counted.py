"""The base class of our environments: counts turns up to a limit, and calls by their effect."""


class CountedEnvironment:
    """A subclass calls `_begin` in `reset` and `_take_turn` in every tool, counts a call in `_effective` or `_invalid`, and sets
    `_ended` at the end of the episode.

    A class whose episodes can be lost through no fault of the policy (a process died, a server is gone) sets `_lost = 0`.
    """

    irreversible: tuple[str, ...] = ()
    _lost: int | None = None

    def __init__(self) -> None:
        self.max_turns = 0  # so that the episode is over until the first reset
        self._begin()

    def _begin(self) -> None:
        self.turns, self._ended = 0, False
        self._effective = self._invalid = 0
        self._lost = None if self._lost is None else 0

    def _take_turn(self) -> None:
        if self.over:
            raise ValueError("The episode is over.")
        self.turns += 1

    def _lose(self) -> None:
        self._ended, self._lost = True, 1

    @property
    def over(self) -> bool:
        return self._ended or self.turns >= self.max_turns

    @property
    def metrics(self) -> dict[str, int]:
        """Counts of the episode so far: all actions, the effective ones (they changed the state or showed something new) and the
        invalid ones; and 0 or 1 for `lost`, if episodes of this class can be lost."""
        counts = {"actions": self.turns, "effective": self._effective, "invalid": self._invalid}
        return counts if self._lost is None else counts | {"lost": self._lost}
