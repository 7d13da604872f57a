# ruff: noqa: ARG002 - a method has the arguments of all perturbations
"""Perturbations that keep an answer from the agent: it is left out, or hinted at."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, model_validator

from wm_plugin.errors import UserError
from wm_plugin.options import Whole, option
from wm_plugin.worlds.wrappers.control.base import Episode, Perturbation, several
from wm_plugin.worlds.wrappers.control.items import map_texts
from wm_plugin.worlds.wrappers.control.withheld import MARK, Withheld


class Withholding(Perturbation):
    """What keeps texts from the agent."""

    of_episode = True
    preserves = False

    texts: Annotated[tuple[str, ...], BeforeValidator(several)] = option(
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


class Withhold(Withholding):
    """No observation shows the answer: not as it is, and in none of the forms that `withheld` finds."""

    name: Literal["withhold"]

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if not self.texts and self.column is None:
            raise UserError("texts is empty, and so is column; write what to withhold: texts, or a row's column")
        return self

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


class Tease(Withholding):
    """Results hint at the answer: a line breaks off before it, and long lines after some words. Without texts: the last alone."""

    name: Literal["tease"]
    words: Whole = option("Words of a line; what comes after them is left out.", default=30, ge=1)

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
