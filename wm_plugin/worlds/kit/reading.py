"""The base class of worlds in which an agent searches, reads pages by their lines, and gives an answer that ends the task."""

import re
from collections.abc import Sequence

from wm_plugin.worlds.kit.counted import CountedEnvironment

MAX_ARGUMENT = 1000  # characters
MAX_HITS, MAX_LINES, MAX_LINE = 20, 60, 160  # lines of a scan and of an opening; characters of a line


class ReadingEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` tool calls; reward 1 for the right answer.

    A call is effective when it has a result and is not a repetition; the answer always is.
    """

    observer = "tool"
    irreversible = ("finish",)
    answer_tool = "finish"

    def _begin(self) -> None:
        super()._begin()
        self._answer = ""

    def _hits(self, lines: Sequence[str], numbers: Sequence[int]) -> list[str]:
        """Return the lines of these numbers as a scan shows them."""
        shown = [numbered(lines, number) for number in numbers[:MAX_HITS]]
        if len(numbers) > MAX_HITS:
            shown.append(f"(the first {MAX_HITS} of {len(numbers)} lines)")
        return shown or ["no such line"]

    def _open(self, page: str, lines: Sequence[str], wanted: str) -> str:
        """Answer a call that opens the lines of a page, all or a range such as "40-80"."""
        numbers = re.fullmatch(r"\s*([0-9]{1,6})\s*+(?:-\s*([0-9]{1,6}))?\s*", wanted or f"1-{MAX_LINES}")
        if not numbers:
            return self._refuse('lines must be like "40-80"')
        first, last = int(numbers[1]), min(int(numbers[2] or numbers[1]), len(lines))
        if not 1 <= first <= last:
            return self._refuse(f"{page} has lines 1 to {len(lines)}")
        self._note(True, "open_lines", page, str(first), str(last))
        end = min(last, first + MAX_LINES - 1)
        return self._observe("\n".join(numbered(lines, number) for number in range(first, end + 1)))

    def _finish(self, right: bool) -> str:
        self._ended, self._reward = True, float(right)
        self._effective += 1
        return f"The answer is {'right' if right else 'wrong'}. The episode is over."


def cut(line: str, most: int = MAX_LINE) -> str:
    """Return a line of at most `most` characters, and an ellipsis if it is cut."""
    return line if len(line) <= most else f"{line[:most]}..."


def numbered(lines: Sequence[str], number: int) -> str:
    """Return a line with its number, from 1."""
    return f"{number}: {cut(lines[number - 1])}"
