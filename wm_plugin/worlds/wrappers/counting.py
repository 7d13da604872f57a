"""Count actions in a simulated environment by its observations: it has no state whose changes could be counted.

An action is invalid if its observation begins as the world's class declares (`refusals`, or the first line of worlds that take
several actions at once). An action is effective if its observation is new: for a tool's answer, one that this call has not had
before; for an observed environment, one unlike the last, apart from closing marks. The real world may count otherwise: a change
that does not show is not counted here.
"""

import re
from collections.abc import Mapping

from wm_plugin.data.render import write_call
from wm_plugin.data.schema import Call, Kind
from wm_plugin.worlds.kit.actions import ActionEnvironment, parse
from wm_plugin.worlds.kit.protocol import refusals

_INVALID = re.compile(r"Invalid: ([0-9]{1,4}) of ([0-9]{1,4})\n")
_MARKS = "!> \n"  # at the end of an observation: over or not


class Counts:
    """Of one episode: `actions`, `effective` and `invalid`."""

    def __init__(self, environment: type, kinds: Mapping[str, Kind]) -> None:
        self._environment, self._kinds = environment, kinds
        self._refusals = refusals(environment) or ()
        self.begin("")

    def begin(self, first: str) -> None:
        self.actions = self.effective = self.invalid = 0
        self._before = first.rstrip(_MARKS)
        self._seen: set[tuple[str, str]] = set()

    def add(self, call: Call, text: str) -> None:
        """Count a call by its observation."""
        actions, invalid = 1, int(text.startswith(self._refusals)) if self._refusals else 0
        if issubclass(self._environment, ActionEnvironment):
            actions, invalid, text = self._of_text(call, text)
        self.actions += actions
        self.invalid += invalid
        shown = text.rstrip(_MARKS)
        if self._kinds.get(call.name, "tool") == "environment":
            new, self._before = shown != self._before, shown
        else:
            key = (write_call(call), shown)
            new = key not in self._seen
            self._seen.add(key)
        self.effective += actions - invalid if new else 0

    def _of_text(self, call: Call, text: str) -> tuple[int, int, str]:
        """Return the actions of a call, the invalid ones, and the observation without their line."""
        if told := _INVALID.match(text):
            actions = max(1, int(told[2]))
            return actions, min(actions, int(told[1])), text[told.end() :]
        value = next(iter(call.arguments.values()), "") if isinstance(call.arguments, Mapping) else ""
        return len(parse(value, lambda _: True)), 0, text
