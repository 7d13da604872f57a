"""What worlds share in which an agent searches, reads pages by their lines, and gives an answer that ends the task."""

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.rows import check_count, draws, repeated

MAX_ARGUMENT = 1000  # characters
MAX_HITS, MAX_LINES, MAX_LINE = 20, 60, 160  # lines of a scan and of an opening; characters of a line
Question = TypeVar("Question")


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

    def _results(self, tool: str, queries: Sequence[str], find: Callable[[str], Iterable[str]]) -> str:
        """Answer a call that searches for several queries; `find` returns the results of one."""
        blocks, found = [], False
        for query in (" ".join(query.split()) for query in queries):
            lines = list(find(query))
            found |= bool(lines)
            blocks.append("\n".join([f"# {cut(query)}", *(lines or ["nothing found"])]))
        self._note(found, tool, *queries)
        return self._observe("\n".join(blocks))

    def _hits(self, about: str, lines: Sequence[str], numbers: Sequence[int], *call: str) -> str:
        """Answer a call that scans a page, with the lines of these numbers."""
        shown = [numbered(lines, number) for number in numbers[:MAX_HITS]]
        if len(numbers) > MAX_HITS:
            shown.append(f"(the first {MAX_HITS} of {len(numbers)} lines)")
        self._note(bool(numbers), "scan_page", *call)
        return self._observe("\n".join([about, *(shown or ["no such line"])]))

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


def check_answer(answer: Any, is_right: Callable[[str, str], bool], whose: str) -> None:
    """Raise a UserError if the answer in a row is no text, or an empty answer would be right."""
    if not isinstance(answer, str) or is_right("", answer):
        raise UserError(f"{whose} column `answer` needs a text, and not of quotes or dots alone")


def drawn(
    count: int, seed: int, part: str, every: list[Question], there_are: str, about: Callable[[Question], str] | None
) -> list[Question]:
    """Draw the questions of a split. Those of train are repeated as often as `count` needs; each of the others occurs once.

    Args:
        there_are: for the error about a count that is too large.
        about: a text by which a tenth of the questions is kept from training, as the others split; None: all are of the split.
    """
    if about is not None:
        every = [one for one in every if (zlib.crc32(about(one).encode()) % 10 == 0) == (part != "train")]
    if not every or part != "train":
        check_count(count, len(every), there_are)
    return repeated(draws(seed, part), every, count)
