"""Wordle: find a hidden word of five letters in six guesses.

An observation is every guess so far with its feedback below it, how many guesses are left, and one status mark. `G` the letter is
right, `Y` it belongs elsewhere, `-` it does not occur (again); `>` your turn, `!` the episode is over. Any five letters are a
guess, so nobody has to know the list of hidden words: 1,708 English ones, chosen for this package.
"""

import random
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.hosting.world import not_a_tool
from wm_plugin.worlds.kit.actions import ActionEnvironment
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import Rows, check_count, check_level, draws, repeated, rows_of, turn_limit
from wm_plugin.worlds.specs import SPECS, described_as

MAX_TURNS = 12
LEVELS = ("standard",)
GUESSES = 6
HELD_OUT = 256  # of `WORDS`
WORDS = tuple(Path(__file__).with_name("wordle_words.txt").read_text().split())
OPENING = "slate"  # the expert's first guess

INSTRUCTION = SPECS["wordle"].instruction


@described_as("wordle")
class WordleEnvironment(ActionEnvironment):
    """One episode: at most `GUESSES` guesses in at most `max_turns` turns; reward 1 for the word.

    A guess is effective when it is new.
    """

    _word = ""
    _guesses: list[str]

    def reset(self, word: str, max_turns: int | None = None, **_: Any) -> str:
        """Hide `word`, five letters from a to z, and return the first observation."""
        if not isinstance(word, str) or not self._is_action(word):
            raise UserError("A Wordle's column `word` needs five letters from a to z")
        self._word, self._guesses = word, []
        return self._start(turn_limit(max_turns, MAX_TURNS))

    @not_a_tool
    def world_context(self) -> str:
        """The hidden word."""
        return f"The hidden word is {self._word}." if self._word else ""

    def act(self, actions: str) -> str:
        return self._act(actions)

    def _is_action(self, action: str) -> bool:
        return len(action) == 5 and all("a" <= letter <= "z" for letter in action)

    def _apply(self, action: str) -> bool:
        self._guesses.append(action)
        self._end_at(action == self._word)
        self._ended = self._ended or len(self._guesses) == GUESSES
        return True

    def _state(self) -> frozenset[str]:
        return frozenset(self._guesses)  # they determine all that the feedback says about the word

    def _observation(self) -> str:
        lines = [f"{' '.join(guess)}\n{' '.join(feedback(guess, self._word))}\n" for guess in self._guesses]
        return "".join(lines) + f"{GUESSES - len(self._guesses)} left{self._mark}"


def feedback(guess: str, word: str) -> str:
    """Mark each letter of a guess.

    A letter has no more marks G and Y than the word has copies of it: right places first, then from left to right.
    """
    unused = [target for letter, target in zip(guess, word, strict=True) if letter != target]
    marks = ""
    for letter, target in zip(guess, word, strict=True):
        if letter == target:
            marks += "G"
        elif letter in unused:
            unused.remove(letter)
            marks += "Y"
        else:
            marks += "-"
    return marks


def dataset_rows(
    count: int, seed: int = 0, held_out: bool = False, level: str = "standard", max_turns: int = MAX_TURNS
) -> Rows:
    """Make rows for a trainer; `reset` appends the first observation to the prompt.

    Each of the 256 held-out words occurs once; the others are shuffled, and repeated as often as `count` needs.
    """
    check_level(level, LEVELS, "Wordle")
    by_hash = sorted(WORDS, key=lambda word: (zlib.crc32(word.encode()), word))
    words = by_hash[:HELD_OUT] if held_out else by_hash[HELD_OUT:]
    if held_out:
        check_count(count, HELD_OUT, "Wordle has {} held-out words")
    tasks = ({"word": word, "level": level} for word in repeated(draws(seed, held_out), words, count))
    return rows_of(INSTRUCTION, tasks, max_turns, MAX_TURNS, "call")


def expert() -> Chooser:
    """Return a policy that knows `WORDS` and guesses the word that best divides the candidates."""

    def choose(environment: WordleEnvironment) -> ToolCall:
        history = tuple((guess, feedback(guess, environment._word)) for guess in environment._guesses)
        return "act", {"actions": best_guess(history)}

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that guesses any word."""
    return lambda _: ("act", {"actions": rng.choice(WORDS)})


@lru_cache(maxsize=2**14)
def best_guess(history: tuple[tuple[str, str], ...]) -> str:
    """Return the guess with the most different feedbacks over the words that fit `history`, pairs of a guess and its feedback."""
    if not history:
        return OPENING
    candidates = [word for word in WORDS if all(feedback(guess, word) == marks for guess, marks in history)]
    if len(candidates) < 3:
        return candidates[0] if candidates else OPENING  # the word is not in `WORDS`
    # a guess that cannot be right may divide better
    guesses = [*candidates, *WORDS] if len(candidates) <= 30 else candidates
    return max(guesses, key=lambda guess: len({feedback(guess, word) for word in candidates}))
