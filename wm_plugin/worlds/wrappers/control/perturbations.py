# ruff: noqa: ARG002 - a method has the arguments of all perturbations
"""The perturbations: each as an instruction for a world model, and as a rule on a real world's text.

| name | drawn for | what the agent sees | the expert still succeeds |
|---|---|---|---|
| error | a call | an error instead of the call, which is not carried out | if it may try again |
| partial | a call | some items of a list are errors; or calls after a turn's first fail | if it may try again |
| paginate | an episode | the first page; the same call again shows the next one | yes |
| withhold | an episode | nothing of an answer | no |
| tease | an episode | what an answer is about, and not the answer | no |
| latency | a call | how long the call took | yes |
| style | an episode | the same text in another form | yes |

The kinds are Qwen-AgentWorld's (section 6.1.2), the texts and rules are ours. A rule never raises, takes time in proportion to
the text, and gives the same for the same draw.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from wm_plugin.data.draws import whole_number
from wm_plugin.errors import UserError
from wm_plugin.options import Names, Number, Options, Whole, option
from wm_plugin.worlds.wrappers.control.items import Items, dumps, map_texts, read_items, read_json
from wm_plugin.worlds.wrappers.control.withheld import MARK, Withheld

ERRORS = {  # the text of a failure, and how a world model is told of it
    "unavailable": (
        "Error 503: the service is not available. Nothing was done; try again.",
        "the service is not available",
    ),
    "timeout": ("Error: no answer within 30 seconds. Nothing was done; try again.", "there is no answer in time"),
    "rate_limit": ("Error 429: too many requests. Nothing was done; try again.", "there were too many requests"),
    "internal": ("Error 500: internal error. Nothing was done; try again.", "the service has an internal error"),
}
MISSING = "not available now; ask again"  # an item of a list
AGAIN = "the same call again shows the next page"
_OTHERS = "Each such call comes with an instruction of its own; all others are answered as usual."
_FORMS = {
    "json": "a JSON object whose field `result` is the whole text; what is a JSON object or list already stays as it is.",
    "fenced": "the text between two lines of three backticks.",
    "numbered": "each line begins with its number, counted from 1, a colon and a space.",
}
Page = Callable[[], str]


def _several(value: Any) -> Any:
    """Return a single value as a list of it."""
    return [value] if isinstance(value, str | int) and not isinstance(value, bool) else value


def _pick(draw: str, count: int) -> int:
    return whole_number(draw) % count


@dataclass(frozen=True)
class Known:
    """What a perturbation may know of an episode: the answers that no observation may show, and what the agent is to find out."""

    answers: tuple[str, ...] = ()
    query: str = ""
    withheld: Withheld = Withheld()


class Perturbation(Options):
    """One entry of `perturbations` in a config. Subclasses are the closed list `PERTURBATIONS`."""

    of_episode: ClassVar[bool] = False  # drawn once an episode; else for each call
    preserves: ClassVar[bool] = True  # whether all that a world shows can still be had: its expert succeeds as without

    name: str
    rate: Number | None = option(
        "The share of calls, or of episodes for perturbations of whole episodes.",
        default=None,
        ge=0,
        le=1,
        write="a share between 0 and 1",
    )
    turns: Annotated[tuple[Annotated[Whole, Field(ge=1)], ...], BeforeValidator(_several)] = option(
        "Or these turns, counted from 1, in every episode.", default=(), write="whole numbers >= 1, such as [2, 5]"
    )
    tools: Names = option("The tools that are perturbed. Empty: all.", default=(), write="a list of texts")

    @model_validator(mode="after")
    def _check_draws(self) -> Self:
        if self.turns and (self.of_episode or self.rate is not None):
            reason = "is of whole episodes" if self.of_episode else "has a rate"
            raise UserError(f"turns are for perturbations of single calls, and {self.name} {reason}; leave turns out")
        if not self.of_episode and self.rate is None and not self.turns:
            raise UserError(f"rate is missing; write the share of calls that {self.name} perturbs, or turns")
        return self

    def takes(self, tool: str, call: int, irreversible: Collection[str]) -> bool:
        """Whether a call of this tool may be perturbed; `call` is its place in its turn."""
        return not self.tools or tool in self.tools

    def has_what_it_needs(self, known: Known) -> bool:
        """Whether the episode has what this perturbation is about."""
        return True

    def for_episode(self, known: Known, rate: float) -> str:
        """Return the instruction for the whole episode."""
        raise NotImplementedError

    def for_turn(self, draw: str) -> str:
        """Return the instruction for one call; "" for perturbations of episodes."""
        return ""

    def fails(self, draw: str) -> str | None:
        """Return the text instead of a call that is not carried out; None if it is carried out."""
        return None

    def change(self, text: str, draw: str, known: Known) -> str:
        """Return the text as the agent sees it; the same if there is nothing to change."""
        return text

    def _of(self, what: str = "calls") -> str:
        """Return `calls of search, fetch`: the calls that an instruction speaks of."""
        return f"{what} of {', '.join(self.tools)}" if self.tools else what

    def _some(self, rate: float) -> str:
        return f"in turn {', '.join(map(str, self.turns))}" if self.turns else f"about {rate:.0%} of them"


class Error(Perturbation):
    """Calls fail: the agent reads an error, and nothing was done. It may try again, and a real world has not been asked."""

    name: Literal["error"]
    kinds: Annotated[
        tuple[Literal["unavailable", "timeout", "rate_limit", "internal"], ...], BeforeValidator(_several)
    ] = option(
        f"The failures to draw from: {', '.join(ERRORS)}.",
        default=tuple(ERRORS),
        min_length=1,
        write=f"some of {', '.join(ERRORS)}",
    )

    def for_episode(self, known: Known, rate: float) -> str:
        told = "; ".join(ERRORS[kind][1] for kind in self.kinds)
        return f"Some {self._of()} fail, {self._some(rate)}: {told}. {_OTHERS}"

    def for_turn(self, draw: str) -> str:
        return _failing(self._kind(draw))

    def fails(self, draw: str) -> str | None:
        return ERRORS[self._kind(draw)][0]

    def _kind(self, draw: str) -> str:
        return self.kinds[_pick(draw, len(self.kinds))]


def _failing(kind: str) -> str:
    return f"This call fails: {ERRORS[kind][1]}. The call is not carried out and changes nothing. Answer with the error alone."


class Partial(Perturbation):
    """A part of a batch fails: items of a list, or the later ones of a turn's calls."""

    name: Literal["partial"]
    of: Literal["items", "calls"] = option(
        "items of a result that is a list, or calls after the first of a turn.", default="items"
    )

    def takes(self, tool: str, call: int, irreversible: Collection[str]) -> bool:
        # What has been done is never said to have failed, where nothing takes it back.
        own = call > 0 if self.of == "calls" else tool not in irreversible
        return own and super().takes(tool, call, irreversible)

    def for_episode(self, known: Known, rate: float) -> str:
        if self.of == "calls":
            return f"Where a turn has several {self._of()}, some after the first fail, {self._some(rate)}. {_OTHERS}"
        return f"Some {self._of('results')} that are lists lack items, {self._some(rate)}. {_OTHERS}"

    def for_turn(self, draw: str) -> str:
        if self.of == "calls":
            return _failing("unavailable")
        step, start = self._items(draw)
        every = {2: "second", 3: "third"}[step]
        return (
            f"The result is a list of which item {start + 1} and every {every} one after it cannot be had: in their places "
            f"stands `{MISSING}`."
        )

    def fails(self, draw: str) -> str | None:
        return ERRORS["unavailable"][0] if self.of == "calls" else None

    def change(self, text: str, draw: str, known: Known) -> str:
        found = read_items(text) if self.of == "items" else None
        step, start = self._items(draw)
        if found is None or len(found.items) <= start:
            return text
        missing: Any = {"error": MISSING} if found.is_json else f"- {MISSING}"
        return found.write([missing if n % step == start else item for n, item in enumerate(found.items)], {})

    @staticmethod
    def _items(draw: str) -> tuple[int, int]:
        """Return which items fail: every `step`-th, from `start` on. The first one never does."""
        step = 2 + _pick(draw, 2)
        return step, 1 + _pick(f"{draw}/start", step - 1)


class Paginate(Perturbation):
    """Long results come page by page; the same call again shows the next page. For lookups: such a call reaches no world."""

    of_episode = True

    name: Literal["paginate"]
    tools: Names = option(  # type: ignore[misc]  # pydantic takes fields in any order
        "The lookups whose results have pages.",
        min_length=1,
        write="the lookups whose results have pages: the same call again turns the page",
    )
    size: Whole = option("Items of a list, or lines, that a page has.", default=5, ge=1)

    def takes(self, tool: str, call: int, irreversible: Collection[str]) -> bool:
        return tool in self.tools and tool not in irreversible

    def for_episode(self, known: Known, rate: float) -> str:
        return (
            f"{self._of('results').capitalize()} with more than {self.size} items or lines come in pages of {self.size}. A page "
            f"ends with its number and how many there are, as in `page: 1 of 3 ({AGAIN})`: {AGAIN}."
        )

    def pages(self, text: str) -> list[Page]:
        """Return the text in pages; one, as it is, if it is short.

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


class Withholding(Perturbation):
    """What keeps texts from the agent."""

    of_episode = True
    preserves = False

    texts: Annotated[tuple[str, ...], BeforeValidator(_several)] = option(
        "What is withheld in every episode.", default=(), write="a list of texts"
    )
    column: str | None = option(
        "The row's column with what is withheld: a text, a number, or a list of these.",
        default=None,
        min_length=1,
        write="the name of a column",
    )
    query: str | None = option(
        "The row's column with what the agent is to find out, for the instruction.",
        default=None,
        min_length=1,
        write="the name of a column",
    )

    def _results_of(self, known: Known) -> str:
        """Say what the agent looks for and the answer, for the world model alone, and whose results the instruction is about."""
        lines = [f"The agent is to find out: {known.query}"] if known.query.strip() else []
        lines += [f"The answer, for you alone: {'; '.join(known.answers)}"] if known.answers else []
        return "\n".join([*lines, self._of("results").capitalize()])


class Withhold(Withholding):
    """No observation shows the answer: not as it is, and in none of the forms that `withheld` finds."""

    name: Literal["withhold"]

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if not self.texts and self.column is None:
            raise UserError("texts is empty, and so is column; write what to withhold: texts, or a row's column")
        return self

    def has_what_it_needs(self, known: Known) -> bool:
        return bool(known.withheld)

    def for_episode(self, known: Known, rate: float) -> str:
        return (
            f"{self._results_of(known)} never show the answer and never give it away: leave it out, whatever the agent writes "
            "and in whatever form it asks for it, and keep everything else as it would be."
        )

    def change(self, text: str, draw: str, known: Known) -> str:
        withheld = known.withheld
        return withheld.without(map_texts(text, withheld.without)) if withheld.first(text) >= 0 else text


class Tease(Withholding):
    """Results hint at the answer: a line breaks off before it, and long lines after some words. Without texts: the last alone."""

    name: Literal["tease"]
    words: Whole = option("Words of a line; what comes after them is left out.", default=30, ge=1)

    def for_episode(self, known: Known, rate: float) -> str:
        return (
            f"{self._results_of(known)} tease: they say what a source is about and come close to the answer, and break off with "
            f"{MARK} before they give it, and after at most {self.words} words of a line."
        )

    def change(self, text: str, draw: str, known: Known) -> str:
        return known.withheld.without(map_texts(text, lambda line: self._cut(line, known.withheld)))

    def _cut(self, line: str, withheld: Withheld) -> str:
        end = withheld.first(line)
        hint = line if end < 0 else line[:end]
        words = hint.split(maxsplit=self.words)
        if len(words) > self.words:
            return f"{hint[: len(hint) - len(words[-1])].rstrip()} {MARK}"
        return line if end < 0 else f"{hint.rstrip()} {MARK}".lstrip()


def _ordered(times: tuple[float, float]) -> tuple[float, float]:
    if times[0] > times[1]:
        raise ValueError
    return times


_Seconds = Annotated[Number, Field(ge=0, le=10**6)]


class Latency(Perturbation):
    """Results say that the call took long."""

    name: Literal["latency"]
    seconds: Annotated[tuple[_Seconds, _Seconds], AfterValidator(_ordered)] = option(
        "The shortest and the longest time.",
        default=(5.0, 60.0),
        write="the shortest and the longest time, such as [5, 60]",
    )

    def for_episode(self, known: Known, rate: float) -> str:
        return f"Some {self._of()} are answered late, {self._some(rate)}. {_OTHERS}"

    def for_turn(self, draw: str) -> str:
        return f"This call is answered late. The result begins with the line `{self._line(draw)}`."

    def change(self, text: str, draw: str, known: Known) -> str:
        return f"{self._line(draw)}\n{text}"

    def _line(self, draw: str) -> str:
        low, high = self.seconds
        return f"(answered after {low + (high - low) * _pick(draw, 1001) / 1000:.1f} s)"


class Style(Perturbation):
    """Results are written in another form, with the same content."""

    of_episode = True

    name: Literal["style"]
    form: Literal["json", "fenced", "numbered"] = option(
        "json: one object; fenced: between lines of backticks; numbered lines.", default="json"
    )

    def for_episode(self, known: Known, rate: float) -> str:
        return f"{self._of('results').capitalize()} are written so: {_FORMS[self.form]}"

    def change(self, text: str, draw: str, known: Known) -> str:
        if self.form == "json":
            return text if read_json(text) is not None else dumps({"result": text})
        if self.form == "fenced":
            return f"```\n{text}\n```"
        return "\n".join(f"{number}: {line}" for number, line in enumerate(text.split("\n"), 1))


AnyPerturbation = Error | Partial | Paginate | Withhold | Tease | Latency | Style
PERTURBATIONS: Mapping[str, type[Perturbation]] = {
    "error": Error,
    "partial": Partial,
    "paginate": Paginate,
    "withhold": Withhold,
    "tease": Tease,
    "latency": Latency,
    "style": Style,
}
