# ruff: noqa: ARG002 - a method has the arguments of all perturbations
"""Perturbations of how a result is shown: in pages, late, in another form."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from wm_plugin.options import Names, Number, Whole, option
from wm_plugin.worlds.wrappers.control.base import OTHERS, Episode, Perturbation, pick
from wm_plugin.worlds.wrappers.control.items import Items, dumps, read_items, read_json

AGAIN = "the same call again shows the next page"
Page = Callable[[], str]


class Paginate(Perturbation):
    """Long results come page by page; the same call again shows the next page. For lookups: such a call reaches no world."""

    of_episode = True
    preserves = True

    name: Literal["paginate"]
    tools: Names = option(  # type: ignore[misc]  # pydantic takes fields in any order
        "The lookups whose results have pages.",
        min_length=1,
        write="the lookups whose results have pages: the same call again turns the page",
    )
    size: Whole = option("Items of a list, or lines, that a page has.", default=5, ge=1)

    def takes(self, tool: str, call: int, irreversible: Collection[str]) -> bool:
        return tool in self.tools and tool not in irreversible

    def for_episode(self, episode: Episode, rate: float) -> str:
        return (
            f"{self._results().capitalize()} with more than {self.size} items or lines come in pages of {self.size}. A page ends "
            f"with its number and how many there are, as in `page: 1 of 3 ({AGAIN})`: {AGAIN}."
        )

    def pages(self, text: str) -> list[Page]:
        """The text in pages; one, as it is, if it is short.

        A page is written when it is asked for: what stands around a list is on each, and all pages together may be as long as
        the square of the text.
        """
        found = read_items(text, lines=True)
        count = 0 if found is None else -(-len(found.items) // self.size)
        if found is None or count < 2:
            return [lambda: text]
        return [partial(self._page, found, number, count) for number in range(count)]

    def _page(self, found: Items, number: int, count: int) -> str:
        note = f"{number + 1} of {count}" + (f" ({AGAIN})" if number + 1 < count else "")
        return found.write(found.items[number * self.size : (number + 1) * self.size], {"page": note})


def _ordered(times: tuple[float, float]) -> tuple[float, float]:
    if times[0] > times[1]:
        raise ValueError
    return times


_Seconds = Annotated[Number, Field(ge=0, le=10**6)]


class Latency(Perturbation):
    """Results say that the call took long."""

    of_episode = False
    preserves = True

    name: Literal["latency"]
    seconds: Annotated[tuple[_Seconds, _Seconds], AfterValidator(_ordered)] = option(
        "The shortest and the longest time.",
        default=(5.0, 60.0),
        write="the shortest and the longest time, such as [5, 60]",
    )

    def for_episode(self, episode: Episode, rate: float) -> str:
        return f"Some {self._of()} are answered late, {self._some(rate)}. {OTHERS}"

    def for_turn(self, draw: str) -> str:
        return f"This call is answered late. The result begins with the line `{self._line(draw)}`."

    def change(self, text: str, draw: str, episode: Episode) -> str:
        return f"{self._line(draw)}\n{text}"

    def _line(self, draw: str) -> str:
        low, high = self.seconds
        return f"(answered after {low + (high - low) * pick(draw, 1001) / 1000:.1f} s)"


class Style(Perturbation):
    """Results are written in another form, with the same content."""

    of_episode = True
    preserves = True

    name: Literal["style"]
    form: Literal["json", "fenced", "numbered"] = option(
        "json: one object; fenced: between lines of backticks; numbered lines.", default="json"
    )

    def for_episode(self, episode: Episode, rate: float) -> str:
        return f"{self._results().capitalize()} are written so: {_FORMS[self.form]}"

    def change(self, text: str, draw: str, episode: Episode) -> str:
        if self.form == "json":
            return text if read_json(text) is not None else dumps({"result": text})
        if self.form == "fenced":
            return f"```\n{text}\n```"
        return "\n".join(f"{number}: {line}" for number, line in enumerate(text.split("\n"), 1))


_FORMS = {
    "json": "a JSON object whose field `result` is the whole text; what is a JSON object or list already stays as it is.",
    "fenced": "the text between two lines of three backticks.",
    "numbered": "each line begins with its number, counted from 1, a colon and a space.",
}
