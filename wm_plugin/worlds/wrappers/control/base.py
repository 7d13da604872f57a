# ruff: noqa: ARG002 - a method has the arguments of all perturbations
"""What all perturbations have: when they are drawn, and the parts of an instruction that they share."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from wm_plugin.data.draws import whole_number
from wm_plugin.errors import UserError
from wm_plugin.options import Names, Number, Options, Whole, option
from wm_plugin.worlds.wrappers.control.withheld import Withheld

OTHERS = "Each such call comes with an instruction of its own; all others are answered as usual."


def several(value: Any) -> Any:
    """A single value as a list of it."""
    return [value] if isinstance(value, str | int) and not isinstance(value, bool) else value


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


class Perturbation(Options):
    """One entry of `perturbations` in a config. Subclasses are the closed list `PERTURBATIONS`."""

    of_episode: ClassVar[bool]  # drawn once an episode; else for each call
    preserves: ClassVar[bool]  # whether all that a world shows can still be had: its expert succeeds as without

    name: str
    rate: Number | None = option(
        "The share of calls, or of episodes for perturbations of whole episodes.",
        default=None,
        ge=0,
        le=1,
        write="a share between 0 and 1",
    )
    turns: Annotated[tuple[Annotated[Whole, Field(ge=1)], ...], BeforeValidator(several)] = option(
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


def pick(draw: str, count: int) -> int:
    return whole_number(draw) % count
