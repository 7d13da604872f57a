# ruff: noqa: ARG002 - a method has the arguments of all perturbations
"""Perturbations by which something fails: a call, or a part of a batch."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from wm_plugin.options import option
from wm_plugin.worlds.wrappers.control.base import OTHERS, Episode, Perturbation, pick, several
from wm_plugin.worlds.wrappers.control.items import read_items

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
_NOTHING_DONE = "The call is not carried out and changes nothing."


class Error(Perturbation):
    """Calls fail: the agent reads an error, and nothing was done. It may try again, and a real world has not been asked."""

    of_episode = False
    preserves = True

    name: Literal["error"]
    kinds: Annotated[
        tuple[Literal["unavailable", "timeout", "rate_limit", "internal"], ...], BeforeValidator(several)
    ] = option(
        f"The failures to draw from: {', '.join(ERRORS)}.",
        default=tuple(ERRORS),
        min_length=1,
        write=f"some of {', '.join(ERRORS)}",
    )

    def for_episode(self, episode: Episode, rate: float) -> str:
        told = "; ".join(ERRORS[kind][1] for kind in self.kinds)
        return f"Some {self._of()} fail, {self._some(rate)}: {told}. {OTHERS}"

    def for_turn(self, draw: str) -> str:
        return f"This call fails: {ERRORS[self._kind(draw)][1]}. {_NOTHING_DONE} Answer with the error alone."

    def fails(self, draw: str) -> str | None:
        return ERRORS[self._kind(draw)][0]

    def _kind(self, draw: str) -> str:
        return self.kinds[pick(draw, len(self.kinds))]


class Partial(Perturbation):
    """A part of a batch fails: items of a list, or the later ones of a turn's calls."""

    of_episode = False
    preserves = True

    name: Literal["partial"]
    of: Literal["items", "calls"] = option(
        "items of a result that is a list, or calls after the first of a turn.", default="items"
    )

    def takes(self, tool: str, call: int, irreversible: Collection[str]) -> bool:
        if not super().takes(tool, call, irreversible):
            return False
        # What has been done is never said to have failed, where nothing takes it back.
        return call > 0 if self.of == "calls" else tool not in irreversible

    def for_episode(self, episode: Episode, rate: float) -> str:
        if self.of == "calls":
            return f"Where a turn has several {self._of()}, some after the first fail, {self._some(rate)}. {OTHERS}"
        return f"Some {self._results()} that are lists lack items, {self._some(rate)}. {OTHERS}"

    def for_turn(self, draw: str) -> str:
        if self.of == "calls":
            return f"This call fails: {ERRORS['unavailable'][1]}. {_NOTHING_DONE} Answer with the error alone."
        step, start = self._items(draw)
        every = {2: "second", 3: "third"}[step]
        return (
            f"The result is a list of which item {start + 1} and every {every} one after it cannot be had: in their places "
            f"stands `{MISSING}`."
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
        step = 2 + pick(draw, 2)
        return step, 1 + pick(f"{draw}/start", step - 1)
