"""Filters for trajectories and turns that are not worth learning, or would teach something wrong. Each counts what it removes.

Trajectory filters remove whole trajectories. Turn filters remove single turns whose removal does not break the story.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from wm_plugin.data.constructions import content_digest
from wm_plugin.data.failures import DOMAINS, DOMAINS_OF, FAILURES, SCREENS, domain_of, retried
from wm_plugin.data.schema import Observation, Trajectory, Turn
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.untrusted import number

# Observations that answer an invalid action, where the source does not count these.
INVALID = (r"^nothing happens\.?(\n|$)", r"^(unknown|invalid|illegal) action\b", r"^no known action matches")
# How the package's worlds count invalid actions in words, where a call has several.
SOME = re.compile(r"Invalid: (\d{1,9}) of (\d{1,9})(?:\n|$)")


def _too_short(trajectory: Trajectory) -> bool:
    """Tell whether fewer than two turns have an observation."""
    return len({number for number, _, _ in trajectory.observed()}) < 2


def _undeclared_tools(trajectory: Trajectory) -> bool:
    """Tell whether the agent calls a tool that the context does not declare. A context without tools forbids nothing."""
    functions = [(tool.get("function"), tool) for tool in trajectory.context.action_space]
    declared = {str((function if isinstance(function, dict) else tool).get("name")) for function, tool in functions}
    called = {call.name for turn in trajectory.turns if turn.actor == "agent" for call in turn.action.calls}
    return bool(declared) and not called <= declared


def _empty_actions(trajectory: Trajectory) -> list[Turn]:
    return [turn for turn in trajectory.turns if not turn.action.empty]


def _retries(trajectory: Trajectory) -> list[Turn]:
    """Keep of a retry cycle (see `failures.retried`) only what came out of it, with the state that the world was in."""
    turns = trajectory.turns
    return [turn for turn, after in zip_longest(turns, turns[1:]) if not retried(turn, after)]


def _no_change(trajectory: Trajectory) -> list[Turn]:
    """Drop turns after which the world looks as before (for screens and pages), the first one as in the initial state."""
    kept: list[Turn] = []
    start = trajectory.context.initial_state
    before = [start] if start else []
    for turn in trajectory.turns:
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
TURN_FILTERS: dict[str, Callable[[Trajectory], list[Turn]]] = {
    "empty_actions": _empty_actions,
    "retries": _retries,
    "no_change": _no_change,
}
NAMES = (*TURN_FILTERS, "invalid_actions", "environment_failures", *TRAJECTORY_FILTERS, "duplicates")
# The filters that a method does without. RWML drops invalid actions. Word2World trains on episodes as they come: that nothing
# happens is a part of the world. Qwen-AgentWorld learns how worlds refuse, too.
METHODS: dict[str, tuple[str, ...]] = {"rwml": (), "word2world": NAMES, "agentworld": ("invalid_actions",)}


def left_out(method: str) -> tuple[str, ...]:
    """Return the filters that a method does without."""
    if method not in METHODS:
        raise UserError(f"there are no filters for {method!r}{nearest(method, METHODS)}")
    return METHODS[method]


class Filter:
    """Filters trajectories. `taken` counts what each filter removed: turns for turn filters, trajectories for the others.

    Args:
        names: the filters to apply, always in the order of `NAMES`; None for all.
        without: filters that are not applied.
        domain: of all trajectories, one of `failures.DOMAINS`; None: what each says itself. The filters in `failures.DOMAINS_OF`
            leave trajectories of other domains alone. Where a trajectory has no domain, they act if `names` has them.
        failures: patterns of observations that show a broken environment, beside `FAILURES` and in every domain. Each removes the
            trajectory.
        invalid: more patterns, beside `INVALID`, of observations that answer an invalid action. Those of `wm env rollout` say
            how many actions of a call were invalid (`data["invalid"]` of `data["actions"]`), and then `INVALID` is not asked. A
            turn of invalid actions alone is removed. One that took effect in part stays as history, and is marked as no target
            (`data["target"]`): `expand` makes no transition of it.

    Raises:
        UserError: an unknown filter or domain, or a pattern that is not a regular expression.
    """

    def __init__(
        self,
        names: Sequence[str] | None = None,
        *,
        without: Sequence[str] = (),
        domain: str | None = None,
        failures: Sequence[str] = (),
        invalid: Sequence[str] = (),
    ) -> None:
        if domain is not None and domain not in DOMAINS:
            raise UserError(f"there is no domain {domain!r}{nearest(domain, DOMAINS)}")
        self._domain, self._named = domain, names is not None
        names = NAMES if names is None else names
        for name in (*names, *without):
            if name not in NAMES:
                raise UserError(f"there is no filter {name!r}{nearest(name, NAMES)}")
        self.names = [name for name in NAMES if name in names and name not in without]
        self.taken: Counter[str] = Counter()
        self.without_domain = 0  # trajectories that say none, while a filter wants to know
        self._failures, self._own_failures = _patterns(FAILURES), _patterns(failures)
        self._told, self._invalid = _patterns(INVALID), _patterns(invalid)
        self._digests: set[bytes] = set()

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        for trajectory in trajectories:
            kept = self._apply(trajectory)
            if kept is not None:
                yield kept

    def _apply(self, trajectory: Trajectory) -> Trajectory | None:
        domain = self._domain or domain_of(trajectory)
        self.without_domain += not domain and any(name in DOMAINS_OF for name in self.names)
        for name in self.names:
            if name == "environment_failures":
                if self._fails(trajectory, domain):
                    self.taken[name] += 1
                    return None
            elif not self._concerns(name, domain):
                continue
            elif name == "invalid_actions":
                trajectory = self._without_invalid(trajectory)
            elif name in TURN_FILTERS:
                turns = TURN_FILTERS[name](trajectory)
                if len(turns) < len(trajectory.turns):
                    self.taken[name] += len(trajectory.turns) - len(turns)
                    trajectory = trajectory.model_copy(update={"turns": tuple(turns)})
            elif self._takes(name, trajectory):
                self.taken[name] += 1
                return None
        return trajectory

    def _concerns(self, name: str, domain: str) -> bool:
        """Tell whether a filter is for trajectories of a domain."""
        return name not in DOMAINS_OF or (domain in DOMAINS_OF[name] if domain else self._named)

    def _fails(self, trajectory: Trajectory, domain: str) -> bool:
        texts = [observation.text for _, _, observation in trajectory.observed()]
        figures = trajectory.metadata.get("figures")
        lost = isinstance(figures, Mapping) and bool(number(figures.get("lost")))  # with its world
        if lost or any(_match(self._own_failures, text) for text in texts):
            return True
        if not self._concerns("environment_failures", domain):
            return False
        # a screen always shows something: an empty one is a state that was not captured
        missing = domain in SCREENS and not all(map(str.strip, texts))
        return missing or any(_match(self._failures, text) for text in texts)

    def _takes(self, name: str, trajectory: Trajectory) -> bool:
        if name == "duplicates":
            digest = content_digest(trajectory)
            duplicate = digest in self._digests
            self._digests.add(digest)
            return duplicate
        return TRAJECTORY_FILTERS[name](trajectory)

    def _without_invalid(self, trajectory: Trajectory) -> Trajectory:
        """Remove the turns that were invalid, and mark those that were so in part. Both are counted."""
        turns: list[Turn] = []
        taken = 0
        for turn in trajectory.turns:
            shares = [self.invalid_share(observation) for observation in turn.observations]
            taken += any(shares)
            if not shares or min(shares) < 1:
                turns.append(_no_targets(turn, shares) if any(shares) else turn)
        self.taken["invalid_actions"] += taken
        return trajectory.model_copy(update={"turns": tuple(turns)}) if taken else trajectory

    def invalid_share(self, observation: Observation) -> float:
        """Return the share of a call's actions that were invalid: as its world counted them, or as the text tells."""
        text = observation.text.strip()
        if _match(self._invalid, text):
            return 1.0
        invalid, actions = (number(observation.data.get(name)) for name in ("invalid", "actions"))
        if invalid is None or actions is None:
            if not (some := SOME.match(text)):
                return float(_match(self._told, text))
            invalid, actions = float(some[1]), float(some[2])
        return min(max(invalid / actions, 0.0), 1.0) if actions > 0 else float(invalid > 0)


def _no_targets(turn: Turn, shares: Sequence[float]) -> Turn:
    """Mark the observations that answer an invalid action as no targets."""
    observations = tuple(
        observation.model_copy(update={"data": {**observation.data, "target": False}}) if share else observation
        for observation, share in zip(turn.observations, shares, strict=True)
    )
    return turn.model_copy(update={"observations": observations})


def _patterns(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    """Compile each pattern by itself: joined, their flags, groups and references would change."""
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern, re.IGNORECASE))
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(f"{shown(pattern)} is no regular expression ({error})") from None
    return compiled


def _match(patterns: Sequence[re.Pattern[str]], text: str) -> bool:
    return any(pattern.search(text) for pattern in patterns)
