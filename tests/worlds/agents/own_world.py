"""The README's environment of one class, and one that breaks. Child processes import this file by its name."""

import asyncio
import os
import random
import time

from wm_plugin.untrusted import LARGEST


class GuessEnvironment:
    """Find a number from 1 to 100 in seven guesses."""

    observer = "environment"
    irreversible = ("guess",)

    def __init__(self):
        self.turns, self.over, self.success = 0, True, False

    def reset(self, seed: int = 0, **_):
        self._number = random.Random(seed).randint(1, 100)
        self.turns, self.over, self.success = 0, False, False
        return "Guess a number from 1 to 100."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: From 1 to 100.

        Returns:
            Whether the number is higher or lower.
        """
        if self.over:
            raise ValueError("The episode is over.")
        self.turns += 1
        self.over = self.turns == 7
        if not isinstance(number, int):
            return "That is no number."
        self.success = number == self._number
        self.over = self.over or self.success
        return "Right!" if self.success else "Higher." if number < self._number else "Lower."

    def get_reward(self) -> float:
        return float(self.success)


class BareEnvironment:
    """A door that is always locked; the least that a host takes for an environment."""

    def reset(self, **_):
        return "A locked door."

    def push(self, strength: int) -> str:
        """Push the door.

        Args:
            strength: How much.

        Returns:
            What happens.
        """
        return "It stays shut."


class FragileEnvironment(GuessEnvironment):
    """Dies, hangs or fails with some seeds."""

    def reset(self, seed: int = 0, **_):
        if seed % 10 == 3:
            os._exit(9)
        if seed % 10 == 5:
            time.sleep(3600)
        if seed % 10 == 7:
            raise RuntimeError("no such world")
        return super().reset(seed)


class OddEnvironment(GuessEnvironment):
    """Answers, with some seeds, what no file can hold or what is no text."""

    def reset(self, seed: int = 0, **_):
        self._seed, self.metrics = seed, {"actions": float("nan") if seed == 3 else 1.0}
        return super().reset(seed)

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: From 1 to 100.

        Returns:
            Whether the number is higher or lower.
        """
        super().guess(number)
        if self._seed == 4:
            raise asyncio.CancelledError
        return {1: "Higher\ud800.", 2: "x" * (LARGEST + 1)}.get(self._seed, "Lower.")

    def get_reward(self) -> float:
        return float("nan") if self._seed == 5 else 1.0


class SloppyEnvironment(GuessEnvironment):
    """Remembers what it should forget, and answers after its end."""

    def __init__(self):
        super().__init__()
        self._episodes = 0

    def reset(self, seed: int = 0, **_):
        self._episodes += 1
        return f"{super().reset(seed)} (episode {self._episodes})"

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: From 1 to 100.

        Returns:
            Whether the number is higher or lower.
        """
        return "It is over." if self.over else super().guess(number + 0)
