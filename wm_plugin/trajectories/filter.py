"""Filters for trajectories and turns that are not worth learning, or would teach something wrong. Each counts what it removes.

Trajectory filters remove whole trajectories. Turn filters remove single turns whose removal does not break the story: what
follows still follows from the turns before.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from wm_plugin.errors import UserError, nearest
from wm_plugin.trajectories.schema import Trajectory, Turn

# Observations of a broken environment. Users add patterns with `failures`.
FAILURES = (
    r"connection (refused|reset)",
    r"\b50[234] (bad gateway|service unavailable|gateway time-?out)",
    r"sandbox (died|crashed)",
)
INVALID = (r"^nothing happens\.?$", r"^(unknown|invalid|illegal) action\b", r"^no known action matches")

# After such an observation, the same action once more counts as a retry.
_FAILED = re.compile(
    r"\b(error|exception|traceback|fail(ed|ure)?|timed? ?out|try again|busy|unavailable)\b", re.IGNORECASE
)


def _too_short(trajectory: Trajectory) -> bool:
    """Fewer than two turns with an observation."""
    return len({number for number, _, _ in trajectory.observed()}) < 2


def _undeclared_tools(trajectory: Trajectory) -> bool:
    """A call of a tool that the context does not declare. A context without tools forbids nothing."""
    functions = [(tool.get("function"), tool) for tool in trajectory.context.action_space]
    declared = {str((function if isinstance(function, dict) else tool).get("name")) for function, tool in functions}
    called = {call.name for turn in trajectory.turns if turn.actor == "agent" for call in turn.action.calls}
    return bool(declared) and not called <= declared


def _empty_actions(turns: Sequence[Turn]) -> list[Turn]:
    return [turn for turn in turns if not turn.action.empty]


def _retries(turns: Sequence[Turn]) -> list[Turn]:
    """Of an action that failed and was retried, only the last attempt stays, which left the world in its state.

    Repeating an action that did not fail (to wait, to scroll) is not a retry.
    """
    return [turn for turn, after in zip_longest(turns, turns[1:]) if not _retried(turn, after)]


def _retried(turn: Turn, after: Turn | None) -> bool:
    failed = any(observation.error or _FAILED.search(observation.text) for observation in turn.observations)
    return failed and after is not None and (turn.actor, _action_key(turn)) == (after.actor, _action_key(after))


def _action_key(turn: Turn) -> object:
    return turn.action.text, [(call.name, call.arguments) for call in turn.action.calls]


def _no_change(turns: Sequence[Turn]) -> list[Turn]:
    """Drops turns after which the world looks as before (for screens and pages)."""
    kept: list[Turn] = []
    before: list[str] = []
    for turn in turns:
        texts = [observation.text for observation in turn.observations]
        if not texts or texts != before:
            kept.append(turn)
        if texts:
            before = texts
    return kept


TRAJECTORY_FILTERS: dict[str, Callable[[Trajectory], bool]] = {
    "too_short": _too_short,
    "undeclared_tools": _undeclared_tools,
}
TURN_FILTERS: dict[str, Callable[[Sequence[Turn]], list[Turn]]] = {
    "empty_actions": _empty_actions,
    "retries": _retries,
    "no_change": _no_change,
}
NAMES = (*TURN_FILTERS, "invalid_actions", "environment_failures", *TRAJECTORY_FILTERS, "duplicates")
DEFAULT = tuple(name for name in NAMES if name != "no_change")  # no_change is for screens
# What a method leaves out. RWML drops invalid actions. Word2World trains on episodes as they come, won and lost, with failed
# actions: when nothing happens is a part of the world. Qwen-AgentWorld learns how worlds refuse, too.
METHODS: dict[str, tuple[str, ...]] = {
    "rwml": DEFAULT,
    "word2world": (),
    "agentworld": tuple(name for name in DEFAULT if name != "invalid_actions"),
}


def of_method(method: str) -> tuple[str, ...]:
    """The filters of a method.

    Raises:
        UserError: there is no such method.
    """
    if method not in METHODS:
        raise UserError(f"there are no filters for {method!r}{nearest(method, METHODS)}")
    return METHODS[method]


class Filter:
    """Filters trajectories. `taken` counts what each filter removed: turns for turn filters, trajectories for the others.

    Args:
        names: the filters to apply, always in the order of `NAMES`.
        failures: more patterns, beside `FAILURES`, of observations that show a broken environment. Each removes the trajectory.
        invalid: more patterns, beside `INVALID`, of observations that answer an invalid action. Each removes the turn.

    Raises:
        UserError: an unknown filter, or a pattern that is not a regular expression.
    """

    def __init__(
        self, names: Sequence[str] = DEFAULT, *, failures: Sequence[str] = (), invalid: Sequence[str] = ()
    ) -> None:
        for name in names:
            if name not in NAMES:
                raise UserError(f"there is no filter {name!r}{nearest(name, NAMES)}")
        self.names = [name for name in NAMES if name in names]
        self.taken: Counter[str] = Counter()
        self._failures = _pattern([*FAILURES, *failures])
        self._invalid = _pattern([*INVALID, *invalid])
        self._digests: set[bytes] = set()

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        for trajectory in trajectories:
            kept = self._apply(trajectory)
            if kept is not None:
                yield kept

    def _apply(self, trajectory: Trajectory) -> Trajectory | None:
        for name in self.names:
            if name in TURN_FILTERS or name == "invalid_actions":
                turns = (
                    self._valid(trajectory.turns) if name == "invalid_actions" else TURN_FILTERS[name](trajectory.turns)
                )
                if len(turns) < len(trajectory.turns):
                    self.taken[name] += len(trajectory.turns) - len(turns)
                    trajectory = trajectory.model_copy(update={"turns": tuple(turns)})
            elif self._takes(name, trajectory):
                self.taken[name] += 1
                return None
        return trajectory

    def _takes(self, name: str, trajectory: Trajectory) -> bool:
        if name == "environment_failures":
            return any(self._failures.search(observation.text) for _, _, observation in trajectory.observed())
        if name == "duplicates":
            parts = [trajectory.context.to_bytes(), *(turn.to_bytes() for turn in trajectory.turns)]
            digest = hashlib.sha256(b"\n".join(parts)).digest()
            duplicate = digest in self._digests
            self._digests.add(digest)
            return duplicate
        return TRAJECTORY_FILTERS[name](trajectory)

    def _valid(self, turns: Sequence[Turn]) -> list[Turn]:
        return [
            turn
            for turn in turns
            if not turn.observations
            or not all(self._invalid.search(observation.text.strip()) for observation in turn.observations)
        ]


def _pattern(patterns: Sequence[str]) -> re.Pattern[str]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"{pattern!r} is no regular expression ({error})") from None
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)
