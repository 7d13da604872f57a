"""The perturbations: each as an instruction for a world model, and as a rule on a real world's text.

| name | drawn for | what the agent sees | the expert still succeeds |
|---|---|---|---|
| error | a call | an error in the place of the call, which is not carried out | if it may try again |
| partial | a call | some items of a list are errors; or calls after a turn's first fail | if it may try again |
| paginate | an episode | the first page; the same call again shows the next one | yes |
| withhold | an episode | nothing of an answer | no |
| tease | an episode | what an answer is about, and not the answer | no |
| latency | a call | how long the call took | yes |
| style | an episode | the same text in another form | yes |

The kinds are Qwen-AgentWorld's (section 6.1.2), the texts and rules are ours. A rule never raises, takes time in proportion to the
text, and gives the same for the same draw.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from wm_plugin.environments.control.items import dumps, map_texts, read_items, read_json
from wm_plugin.environments.control.withheld import MARK, Withheld
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.trajectories.draws import whole_number

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
FORMS = ("json", "fenced", "numbered")
_NOTHING_DONE = "The call is not carried out and changes nothing."
_OTHERS = "Each such call comes with an instruction of its own; all others are answered as usual."


@dataclass(frozen=True)
class Episode:
    """What a perturbation may know of an episode.

    Attributes:
        withheld: the texts that no observation may show.
        query: what the agent is to find out.
    """

    answers: tuple[str, ...] = ()
    query: str = ""
    withheld: Withheld = Withheld()


@dataclass(frozen=True)
class Perturbation:
    """One entry of `perturbations` in a config. Subclasses are the closed list `PERTURBATIONS`.

    Raises:
        UserError: a value does not fit; the message begins with the field.
    """

    name: ClassVar[str]
    of_episode: ClassVar[bool]  # drawn once an episode; else for each call
    preserves: ClassVar[bool]  # whether all that a world shows can still be had: its expert succeeds as without

    rate: float | None = field(
        default=None, metadata={"help": "The share of calls, or of episodes for perturbations of whole episodes."}
    )
    turns: tuple[int, ...] = field(default=(), metadata={"help": "Or these turns, counted from 1, in every episode."})
    tools: tuple[str, ...] = field(default=(), metadata={"help": "The tools that are perturbed. Empty: all."})

    def __post_init__(self) -> None:
        if self.rate is not None and (type(self.rate) not in (int, float) or not 0 <= self.rate <= 1):
            raise UserError(f"rate is {shown(self.rate)}; write a share between 0 and 1")
        _check_texts("tools", self.tools)
        if not isinstance(self.turns, tuple) or not all(type(turn) is int and turn >= 1 for turn in self.turns):
            raise UserError(f"turns is {shown(self.turns)}; write whole numbers >= 1, such as [2, 5]")
        if self.turns and (self.of_episode or self.rate is not None):
            reason = "is of whole episodes" if self.of_episode else "has a rate"
            raise UserError(f"turns are for perturbations of single calls, and {self.name} {reason}; leave turns out")
        if not self.of_episode and self.rate is None and not self.turns:
            raise UserError(f"rate is missing; write the share of calls that {self.name} perturbs, or turns")

    def takes(self, tool: str, call: int, irreversible: Collection[str]) -> bool:
        """Whether a call of this tool may be perturbed; `call` is its place in its turn."""
        return not self.tools or tool in self.tools

    def has_what_it_needs(self, episode: Episode) -> bool:
        """Whether the episode has what this perturbation is about."""
        return True

    def for_episode(self, episode: Episode, rate: float) -> str:
        """The instruction for the whole episode."""
        raise NotImplementedError

    def for_turn(self, draw: str) -> str:
        """The instruction for one call; "" for perturbations of episodes."""
        return ""

    def fails(self, draw: str) -> str | None:
        """The text in the place of a call that is not carried out; None if it is."""
        return None

    def change(self, text: str, draw: str, episode: Episode) -> str:
        """The text as the agent sees it; the same if there is nothing to change."""
        return text

    def _of(self) -> str:
        """`calls of search, fetch`: the calls that an instruction speaks of."""
        return f"calls of {', '.join(self.tools)}" if self.tools else "calls"

    def _results(self) -> str:
        return f"results of {', '.join(self.tools)}" if self.tools else "results"

    def _some(self, rate: float) -> str:
        return f"in turn {', '.join(map(str, self.turns))}" if self.turns else f"about {rate:.0%} of them"


@dataclass(frozen=True)
class Error(Perturbation):
    """Calls fail: the agent reads an error, and nothing was done. It may try again, and a real world has not been asked."""

    name = "error"
    of_episode = False
    preserves = True

    kinds: tuple[str, ...] = field(
        default=tuple(ERRORS), metadata={"help": f"The failures to draw from: {', '.join(ERRORS)}."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_texts("kinds", self.kinds, ERRORS)
        if not self.kinds:
            raise UserError(f"kinds is empty; write some of {', '.join(ERRORS)}")

    def for_episode(self, episode: Episode, rate: float) -> str:
        told = "; ".join(ERRORS[kind][1] for kind in self.kinds)
        return f"Some {self._of()} fail, {self._some(rate)}: {told}. {_OTHERS}"

    def for_turn(self, draw: str) -> str:
        return f"This call fails: {ERRORS[self._kind(draw)][1]}. {_NOTHING_DONE} Answer with the error alone."

    def fails(self, draw: str) -> str | None:
        return ERRORS[self._kind(draw)][0]

    def _kind(self, draw: str) -> str:
        return self.kinds[_pick(draw, len(self.kinds))]


@dataclass(frozen=True)
class Partial(Perturbation):
    """A part of a batch fails: items of a list, or the later ones of a turn's calls."""

    name = "partial"
    of_episode = False
    preserves = True

    of: Literal["items", "calls"] = field(
        default="items", metadata={"help": "items of a result that is a list, or calls after the first of a turn."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_one_of("of", self.of, ("items", "calls"))

    def takes(self, tool: str, call: int, irreversible: Collection[str]) -> bool:
        if not super().takes(tool, call, irreversible):
            return False
        # What has been done is never said to have failed, where nothing takes it back.
        return call > 0 if self.of == "calls" else tool not in irreversible

    def for_episode(self, episode: Episode, rate: float) -> str:
        if self.of == "calls":
            return f"Where a turn has several {self._of()}, some after the first fail, {self._some(rate)}. {_OTHERS}"
        return f"Some {self._results()} that are lists lack items, {self._some(rate)}. {_OTHERS}"

    def for_turn(self, draw: str) -> str:
        if self.of == "calls":
            return f"This call fails: {ERRORS['unavailable'][1]}. {_NOTHING_DONE} Answer with the error alone."
        step, start = self._items(draw)
        every = {2: "second", 3: "third"}[step]
        return (
            f"The result is a list of which item {start + 1} and every {every} one after it cannot be had: in their places stands "
            f"`{MISSING}`."
        )

    def fails(self, draw: str) -> str | None:
        return ERRORS["unavailable"][0] if self.of == "calls" else None

    def change(self, text: str, draw: str, episode: Episode) -> str:
        found = read_items(text) if self.of == "items" else None
        step, start = self._items(draw)
        if found is None or len(found.items) <= start:
            return text
        missing: Any = {"error": MISSING} if found.is_json else f"- {MISSING}"
        items = [missing if n % step == start else item for n, item in enumerate(found.items)]
        return found.write(items, {})

    @staticmethod
    def _items(draw: str) -> tuple[int, int]:
        """Which items fail: every `step`-th, from `start` on. The first one never does."""
        step = 2 + _pick(draw, 2)
        return step, 1 + _pick(f"{draw}/start", step - 1)


@dataclass(frozen=True)
class Paginate(Perturbation):
    """Long results come page by page; the same call again shows the next page. For lookups: such a call reaches no world."""

    name = "paginate"
    of_episode = True
    preserves = True

    size: int = field(default=5, metadata={"help": "Items of a list, or lines, that a page has."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.size) is not int or self.size < 1:
            raise UserError(f"size is {shown(self.size)}; write a whole number >= 1")
        if not self.tools:
            raise UserError(
                "tools is empty; name the lookups whose results have pages: the same call again turns the page"
            )

    def takes(self, tool: str, call: int, irreversible: Collection[str]) -> bool:
        return tool in self.tools and tool not in irreversible

    def for_episode(self, episode: Episode, rate: float) -> str:
        return (
            f"{self._results().capitalize()} with more than {self.size} items or lines come in pages of {self.size}. A page ends "
            f"with its number and how many there are, as in `page: 1 of 3 ({AGAIN})`: {AGAIN}."
        )

    def pages(self, text: str) -> list[str]:
        """The text in pages; one, as it is, if it is short."""
        found = read_items(text, lines=True)
        count = 0 if found is None else -(-len(found.items) // self.size)
        if found is None or count < 2:
            return [text]
        pages = []
        for number in range(count):
            note = f"{number + 1} of {count}" + (f" ({AGAIN})" if number + 1 < count else "")
            pages.append(found.write(found.items[number * self.size : (number + 1) * self.size], {"page": note}))
        return pages


@dataclass(frozen=True)
class Withhold(Perturbation):
    """No observation shows the answer: not as it is, and in none of the forms that `withheld` finds."""

    name = "withhold"
    of_episode = True
    preserves = False

    texts: tuple[str, ...] = field(default=(), metadata={"help": "What is withheld in every episode."})
    column: str | None = field(
        default=None, metadata={"help": "The row's column with what is withheld: a text, a number, or a list of these."}
    )
    query: str | None = field(
        default=None, metadata={"help": "The row's column with what the agent is to find out, for the instruction."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_texts("texts", self.texts)
        for name in ("column", "query"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise UserError(f"{name} is {shown(value)}; write the name of a column")
        self._check_source()

    def _check_source(self) -> None:
        if not self.texts and self.column is None:
            raise UserError(
                f"texts is empty, and so is column; write what {self.name} withholds: texts, or a row's column"
            )

    def has_what_it_needs(self, episode: Episode) -> bool:
        return bool(episode.withheld)

    def for_episode(self, episode: Episode, rate: float) -> str:
        return (
            f"{_searched(episode)}{self._results().capitalize()} never show the answer and never give it away: leave it out, "
            "whatever the agent writes and in whatever form it asks for it, and keep everything else as it would be."
        )

    def change(self, text: str, draw: str, episode: Episode) -> str:
        withheld = episode.withheld
        return withheld.without(map_texts(text, withheld.without)) if withheld.first(text) >= 0 else text


@dataclass(frozen=True)
class Tease(Withhold):
    """Results hint at the answer: a line breaks off before it, and long lines after some words. Without texts: the last alone."""

    name = "tease"

    words: int = field(default=30, metadata={"help": "Of a line; what comes after them is left out."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.words) is not int or self.words < 1:
            raise UserError(f"words is {shown(self.words)}; write a whole number >= 1")

    def _check_source(self) -> None:
        """Lines can be cut without knowing the answer."""

    def has_what_it_needs(self, episode: Episode) -> bool:
        return True

    def for_episode(self, episode: Episode, rate: float) -> str:
        return (
            f"{_searched(episode)}{self._results().capitalize()} tease: they say what a source is about and come close to the "
            f"answer, and break off with {MARK} before they give it, and after at most {self.words} words of a line."
        )

    def change(self, text: str, draw: str, episode: Episode) -> str:
        withheld = episode.withheld
        changed = map_texts(text, lambda line: self._cut(line, withheld))
        return withheld.without(changed)

    def _cut(self, line: str, withheld: Withheld) -> str:
        end = withheld.first(line)
        hint = line if end < 0 else line[:end]
        words = hint.split(maxsplit=self.words)
        if len(words) > self.words:
            return f"{hint[: len(hint) - len(words[-1])].rstrip()} {MARK}"
        return line if end < 0 else f"{hint.rstrip()} {MARK}".lstrip()


@dataclass(frozen=True)
class Latency(Perturbation):
    """Results say that the call took long."""

    name = "latency"
    of_episode = False
    preserves = True

    seconds: tuple[float, float] = field(default=(5, 60), metadata={"help": "The shortest and the longest time."})

    def __post_init__(self) -> None:
        super().__post_init__()
        times = self.seconds
        if (
            not isinstance(times, tuple)
            or len(times) != 2
            or not all(type(time) in (int, float) for time in times)
            or not 0 <= times[0] <= times[1] <= 10**6
        ):
            raise UserError(f"seconds is {shown(times)}; write the shortest and the longest time, such as [5, 60]")

    def for_episode(self, episode: Episode, rate: float) -> str:
        return f"Some {self._of()} are answered late, {self._some(rate)}. {_OTHERS}"

    def for_turn(self, draw: str) -> str:
        return f"This call is answered late. The result begins with the line `{self._line(draw)}`."

    def change(self, text: str, draw: str, episode: Episode) -> str:
        return f"{self._line(draw)}\n{text}"

    def _line(self, draw: str) -> str:
        low, high = self.seconds
        return f"(answered after {low + (high - low) * _pick(draw, 1001) / 1000:.1f} s)"


@dataclass(frozen=True)
class Style(Perturbation):
    """Results are written in another form, with the same content."""

    name = "style"
    of_episode = True
    preserves = True

    form: str = field(
        default="json", metadata={"help": "json: one object; fenced: between lines of backticks; numbered lines."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_one_of("form", self.form, FORMS)

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

PERTURBATIONS: Mapping[str, type[Perturbation]] = {
    one.name: one for one in (Error, Partial, Paginate, Withhold, Tease, Latency, Style)
}


def _searched(episode: Episode) -> str:
    lines = [f"The agent is to find out: {episode.query}"] if episode.query.strip() else []
    if episode.answers:
        lines.append("The answer, for you alone: " + "; ".join(episode.answers))
    return "".join(f"{line}\n" for line in lines)


def _pick(draw: str, count: int) -> int:
    return whole_number(draw) % count


def _check_texts(name: str, values: Any, known: Collection[str] | None = None) -> None:
    if not isinstance(values, tuple) or not all(isinstance(value, str) and value for value in values):
        raise UserError(f"{name} is {shown(values)}; write a list of texts")
    for value in values:
        if known is not None and value not in known:
            raise UserError(f"{name} has {shown(value)}{nearest(value, known)}")


def _check_one_of(name: str, value: Any, known: Collection[str]) -> None:
    if not isinstance(value, str) or value not in known:
        hint = nearest(value, known) if isinstance(value, str) else f"; write one of {', '.join(known)}"
        raise UserError(f"{name} is {shown(value)}{hint}")
