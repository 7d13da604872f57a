"""Read from the texts of an observation whether an episode is over, won, or rewarded.

A tool's result has no mark of success, so an imagined result is read as an agent reads it. Worlds with a board show the outcome
in their symbols; for any other world, name the texts.
"""

from dataclasses import dataclass
from typing import ClassVar

from wm_plugin.options import Options, option

_NUMBER = 24  # characters of a number that are read
_LARGEST = 1e100  # a reward; sums and squares of many stay within a float's range


class Marks(Options):
    """The texts to read outcomes by; "" where a world says no such thing."""

    example: ClassVar[str] = "{over: ..., won: ..., lacks: ..., reward: ...}"

    over: str = option("An episode is over where an observation ends in this text.", default="")
    won: str = option(
        "It is won where the observation has this text (and is over, if there is a text for that).", default=""
    )
    lacks: str = option(
        "It is not won where the observation has one of these characters, such as B, a box without a goal.", default=""
    )
    reward: str = option("The number behind this text is the reward of the turn, e.g. 'Reward:'.", default="")

    @property
    def tells_success(self) -> bool:
        return bool(self.won or self.lacks)

    def outcome(self, text: str) -> "Outcome":
        """Return what an observation says."""
        over = bool(self.over) and text.rstrip().endswith(self.over)
        won = self.tells_success and self.won in text and not set(self.lacks).intersection(text)
        won = won and (over or not self.over)
        return Outcome(over or won, won, self._reward(text))

    def _reward(self, text: str) -> float:
        """Return the number behind the last `reward` text; 0 where there is none."""
        if not self.reward or (place := text.rfind(self.reward)) < 0:
            return 0.0
        start = place + len(self.reward)
        words = text[start : start + _NUMBER].split(None, 1)
        try:
            value = float(words[0].rstrip(".,;")) if words else 0.0
        except ValueError:
            return 0.0
        return bounded(value)


def bounded(reward: float) -> float:
    """Return a reward that others wrote, for arithmetic; 0 where it is NaN, infinite or beyond all measure."""
    return reward if abs(reward) <= _LARGEST else 0.0


@dataclass(frozen=True)
class Outcome:
    """What a turn's observation says."""

    over: bool = False
    won: bool = False
    reward: float = 0.0


# Of our worlds whose board shows it, in their plain views.
MARKS = {
    "grid": Marks(over="!", won="P"),
    "maze": Marks(over="!", won="P"),
    "taxi": Marks(over="!", won="T/P/D"),
    "sokoban": Marks(over="!", won="*", lacks="B"),
}
