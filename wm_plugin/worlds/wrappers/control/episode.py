"""The control of one episode: what it tells a world model, what it draws for each call, and what it makes of real texts.

Every draw depends on the seed, the entry of the config, the task, the turn and the call in its turn, and on nothing else: it is
the same in any process and order, and for all rollouts of one prompt. A curriculum's factor only moves the threshold: what is
perturbed at a lower rate is perturbed at a higher one, too.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.data.draws import uniform, whole_number
from wm_plugin.worlds.wrappers.control.config import ControlConfig
from wm_plugin.worlds.wrappers.control.perturbations import Known, Page, Paginate, Perturbation, Withholding
from wm_plugin.worlds.wrappers.control.withheld import Withheld, texts_of

KEY = "control"  # in an observation's `data`
CALLS = "calls"
MOST_PAGES = 1000  # that an episode keeps for later calls


@dataclass(frozen=True)
class Plan:
    """What is drawn for a call.

    Attributes:
        place: the call's place in its turn.
        instruction: for a world model, about this call alone; "" if there is none.
        draws: of the perturbations that the call is drawn for, by their places in the config.
    """

    tool: str
    place: int = 0
    names: tuple[str, ...] = ()
    instruction: str = ""
    draws: Mapping[int, str] = field(default_factory=dict, repr=False)

    @property
    def data(self) -> dict[str, Any]:
        """What the observation of the call says of it, in its `data`. Empty where nothing was drawn."""
        return _data(self.names, self.instruction)


class ControlEpisode:
    """One episode of a task under a control.

    Args:
        task: what the draws depend on: rollouts of one prompt have the same.
        columns: of the row, for what is withheld.
        strength: a curriculum's factor of all rates.
        irreversible: tools whose effect nothing takes back.

    Attributes:
        instruction: for the whole episode, for the world model alone; "" if nothing is in force.
        data: of the last call's observation, as `Plan.data`, with the names of what was perturbed indeed.
        figures: how many calls there were, `control/calls`, and how many of them each perturbation changed.
    """

    def __init__(
        self,
        config: ControlConfig,
        task: str,
        *,
        columns: Mapping[str, Any] | None = None,
        strength: float = 1.0,
        irreversible: Collection[str] = (),
    ) -> None:
        self.config, self.task, self.strength = config, task, min(1.0, max(0.0, strength))
        self.irreversible = frozenset(irreversible)
        self.turn = self.call = 0
        self.data: dict[str, Any] = {}
        self._in_turns = False
        self._pages: dict[int, list[Page]] = {}  # of results, yet to come, by the call that asks for them
        force = {n: one for n, one in enumerate(config.perturbations) if self._in_force(n, one)}
        self._known = {n: _known(one, columns or {}) for n, one in force.items()}
        self._force = {n: one for n, one in force.items() if one.has_what_it_needs(self._known[n])}
        parts = [one.for_episode(self._known[n], self._rate(one)) for n, one in self._force.items()]
        self.instruction = "\n\n".join(dict.fromkeys(parts))
        names = dict.fromkeys(one.name for one in config.perturbations)
        self.figures: dict[str, int] = {f"{KEY}/{name}": 0 for name in (CALLS, *names)}

    @property
    def names(self) -> tuple[str, ...]:
        """The perturbations that are in force in this episode."""
        return tuple(dict.fromkeys(one.name for one in self._force.values()))

    def begin_turn(self) -> None:
        """Begin a new turn of the policy. Without it, every call is a turn of its own."""
        self.turn, self.call, self._in_turns = self.turn + 1, 0, True

    def plan(self, tool: str, *, failing: bool = True) -> Plan:
        """Draw for the next call, and count what is drawn.

        Args:
            failing: False: the call does not fail, since it is known to have been answered.
        """
        if not self._in_turns:
            self.turn, self.call = self.turn + 1, 0
        turn, place = max(1, self.turn), self.call
        self.call += 1
        drawn = [n for n, one in self._force.items() if self._is_drawn(n, one, tool, turn, place)]
        failures = [n for n in drawn if self._force[n].fails("") is not None]
        drawn = failures[:1] if failures and failing else [n for n in drawn if n not in failures]
        draws = {n: self._draw(n, turn, place) for n in drawn}
        names = tuple(dict.fromkeys(self._force[n].name for n in drawn))
        plan = Plan(tool, place, names, self._told(draws, names), draws)
        self._count(names)
        self.data = plan.data
        return plan

    def failure(self, plan: Plan) -> str | None:
        """Return the error instead of a call that is not carried out, by rule; None if the call is carried out."""
        texts = (self._force[n].fails(draw) for n, draw in plan.draws.items())
        return next((text for text in texts if text is not None), None)

    def next_page(self, plan: Plan, arguments: Any = None) -> str | None:
        """Return the next page of a result, by rule, if the call asks for one; such a call reaches no world."""
        waiting = self._pages.get(_call(plan.tool, arguments))
        return waiting.pop(0)() if waiting else None

    def has_pages(self, plan: Plan, arguments: Any = None) -> bool:
        """Whether a result of this call has pages that are yet to come."""
        return bool(self._pages.get(_call(plan.tool, arguments)))

    def perturbed(self, plan: Plan, text: str, arguments: Any = None, *, page: bool = False) -> str:
        """Return the text of a call that the world has answered, by rule, as the agent sees it. Never raises.

        Args:
            page: the text is a later page of a result, and not divided again.
        """
        done: list[str] = []
        for n, draw in plan.draws.items():
            one = self._force[n]
            if not isinstance(one, Paginate):
                changed = one.change(text, draw, self._known[n])
            else:
                changed = text if page else self._first_page(one, plan.tool, arguments, text)
            if changed != text or (page and isinstance(one, Paginate)):
                done.append(one.name)
            text = changed
        self._settle(plan, tuple(dict.fromkeys(done)))
        return self._withheld(plan).without(text)

    def raised(self, plan: Plan, error: Exception) -> Exception:
        """Return what a tool raised, which hosts show to the agent, without what is withheld; nothing else changes."""
        self._settle(plan, ())
        withheld, text = self._withheld(plan), str(error)
        return ValueError(withheld.without(text)) if withheld.first(text) >= 0 else error

    def guard(self, text: str, plan: Plan) -> str:
        """Return a world model's text without what is withheld, if the config is `guarded`; else as it is. Never raises."""
        return self._withheld(plan).without(text) if self.config.guarded else text

    def _withheld(self, plan: Plan) -> Withheld:
        """Return what a result of this tool may not show, whatever else happens to the call: a failing one has a text, too."""
        force = [n for n, one in self._force.items() if one.takes(plan.tool, plan.place, self.irreversible)]
        return Withheld.of(text for n in force for text in self._known[n].answers)

    def _first_page(self, one: Paginate, tool: str, arguments: Any, text: str) -> str:
        first, *others = one.pages(text)
        if not others or sum(map(len, self._pages.values())) + len(others) > MOST_PAGES:
            return text
        self._pages[_call(tool, arguments)] = others
        return first()

    def _settle(self, plan: Plan, names: tuple[str, ...]) -> None:
        """Count what was really changed, instead of what was drawn."""
        self._count(plan.names, -1)
        self._count(names)
        self.data = _data(names, self._told(plan.draws, names))

    def _told(self, draws: Mapping[int, str], names: Collection[str]) -> str:
        """Return the instructions for one call by the perturbations of these names."""
        told = (self._force[n].for_turn(draw) for n, draw in draws.items() if self._force[n].name in names)
        return "\n".join(filter(None, told))

    def _count(self, names: Iterable[str], by: int = 1) -> None:
        for name in (CALLS, *names):
            self.figures[f"{KEY}/{name}"] += by

    def _rate(self, one: Perturbation) -> float:
        return self.strength * (1.0 if one.rate is None else one.rate)

    def _in_force(self, n: int, one: Perturbation) -> bool:
        rate = self._rate(one)
        return rate > 0 and (not one.of_episode or uniform(self._draw(n)) < rate)

    def _is_drawn(self, n: int, one: Perturbation, tool: str, turn: int, place: int) -> bool:
        taken = one.takes(tool, place, self.irreversible)
        if one.of_episode or not taken:
            return taken
        return (not one.turns or turn in one.turns) and uniform(self._draw(n, turn, place)) < self._rate(one)

    def _draw(self, *place: int) -> str:
        """Return the text that a draw depends on: the entry, and for a call the turn and its place in it."""
        return f"control/{self.config.seed}/{'/'.join(map(str, place))}//{self.task}"


def _data(names: tuple[str, ...], instruction: str) -> dict[str, Any]:
    return {KEY: {"names": list(names), "instruction": instruction}} if names else {}


def _call(tool: str, arguments: Any) -> int:
    """Return a number for a call: the same for the same tool and arguments."""
    if isinstance(arguments, Mapping):
        arguments = sorted(arguments.items(), key=lambda pair: str(pair[0]))
    try:
        return whole_number(repr((tool, arguments)))
    except (ValueError, RecursionError):  # an integer of more digits than Python writes; nested too deeply
        return whole_number(tool)


def _known(one: Perturbation, columns: Mapping[str, Any]) -> Known:
    if not isinstance(one, Withholding):
        return Known()
    answers = [*one.texts, *(texts_of(columns.get(one.column)) if one.column else ())]
    query = columns.get(one.query) if one.query else ""
    return Known(tuple(answers), query if isinstance(query, str) else "", Withheld.of(answers))
