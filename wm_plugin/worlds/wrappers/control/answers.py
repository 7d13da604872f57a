# ruff: noqa: ARG002 - a method has the arguments of all perturbations
"""Perturbations that keep an answer from the agent: it is left out, or hinted at."""

from dataclasses import dataclass, field

from wm_plugin.errors import UserError, shown
from wm_plugin.worlds.wrappers.control.base import Episode, Perturbation, check_texts
from wm_plugin.worlds.wrappers.control.items import map_texts
from wm_plugin.worlds.wrappers.control.withheld import MARK, Withheld


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
        check_texts("texts", self.texts)
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


def _searched(episode: Episode) -> str:
    lines = [f"The agent is to find out: {episode.query}"] if episode.query.strip() else []
    if episode.answers:
        lines.append("The answer, for you alone: " + "; ".join(episode.answers))
    return "".join(f"{line}\n" for line in lines)
