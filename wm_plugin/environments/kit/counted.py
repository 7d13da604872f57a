"""What our worlds count alike: turns up to a limit, and calls by what came of them."""


class CountedEnvironment:
    """Begin an episode with `_begin`, a call with `_take_turn`; count it in `_effective` or `_invalid`; end with `_ended`.

    Where an episode can be lost through no fault of the policy (a process died, a server is gone), `_lost` is a number.
    """

    irreversible: tuple[str, ...] = ()
    _lost: int | None = None

    def __init__(self) -> None:
        self.max_turns = 0  # over until the first reset
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
        """Counts of the episode so far: all actions, those that changed or showed something, those that the world did not take,
        and in worlds that may be lost whether this one was."""
        counts = {"actions": self.turns, "effective": self._effective, "invalid": self._invalid}
        return counts if self._lost is None else counts | {"lost": self._lost}
