"""Transitions in a file, with their histories by reference: a trajectory's turns are written once, not for every transition."""

import operator
from collections.abc import Iterable, Iterator

from wm_plugin.data.schema import Action, Line, Observation, Record, Reference, Transition, Turn


def compact(transitions: Iterable[Transition]) -> Iterator[Line]:
    """Yield lines of the same transitions in the same order. Memory is that of a trajectory."""
    group: _Group | None = None
    for transition in transitions:
        if group is None or not group.takes(transition):
            if group:
                yield group.line()
            group = _Group(transition)
        group.add(transition)
    if group:
        yield group.line()


class _Group:
    """Transitions of one trajectory whose histories are parts of one sequence of turns."""

    def __init__(self, start: Transition) -> None:
        self.start = start
        self.first = start.turn - len(start.history)
        self.turns: list[Turn] = []
        self.members: list[tuple[int, int, Action, Observation]] = []
        self.indices: dict[int, dict[bytes, int]] = {}  # of each turn's observations, by how they are written

    def takes(self, new: Transition) -> bool:
        old, start = self.start, new.turn - len(new.history) - self.first
        if (new.trajectory, new.task_id, new.source) != (old.trajectory, old.task_id, old.source):
            return False
        if not _same(new.context, old.context):
            return False
        if not new.history:
            return True
        if not 0 <= start <= len(self.turns):
            return False
        known = self.turns[start : start + len(new.history)]
        return all(map(operator.is_, known, new.history)) or all(map(_same, known, new.history))

    def add(self, new: Transition) -> None:
        if new.history:
            known = len(self.turns) - (new.turn - len(new.history) - self.first)
            self.turns += new.history[known:]
        self.members.append((new.turn, len(new.history), new.action, new.observation))

    def line(self) -> Line:
        return Line(
            trajectory=self.start.trajectory,
            first=self.first,
            turns=tuple(self.turns),
            transitions=tuple(self._reference(*member) for member in self.members),
            context=self.start.context,
            task_id=self.start.task_id,
            source=self.start.source,
        )

    def _reference(self, number: int, history: int, action: Action, observation: Observation) -> Reference:
        place = number - self.first
        if 0 <= place < len(self.turns) and _same(self.turns[place].action, action):
            index = self._index(place, observation)
            if index is not None:
                return Reference(turn=number, history=history, observation=index)
        return Reference(turn=number, history=history, observation=observation, action=action)

    def _index(self, place: int, observation: Observation) -> int | None:
        """Return the index of an observation among those of a turn."""
        observations = self.turns[place].observations
        if observations and observations[0] is observation:  # as a rule there is one
            return 0
        if place not in self.indices:
            numbered = [(one.to_bytes(), index) for index, one in enumerate(observations)]
            self.indices[place] = dict(reversed(numbered))  # of equal ones the first
        return self.indices[place].get(observation.to_bytes())


def _same(one: Record, other: Record) -> bool:
    """Tell whether two records are written the same; in Python 1, 1.0 and True are equal."""
    return one is other or (one == other and one.to_bytes() == other.to_bytes())
