"""The arithmetic of look-ahead, by hand: what an imagined episode is worth, and which first action to take.

The value of a first action is the mean over the episodes that begin with it, less `penalty` standard deviations, where they
disagree. A policy that imagines success nearly everywhere (seen on the grid: in 76 to 100% of states) makes this guard worth
having; so does the floor, under which the policy's own action goes out.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from wm_plugin.errors import UserError, shown
from wm_plugin.options import Number, Options, Whole, option
from wm_plugin.untrusted import loads
from wm_plugin.worlds.agents.outcomes import Marks

Value = Literal["success", "reward", "length"]


class LookAheadConfig(Options):
    """How far and how widely a policy looks ahead, and how it chooses."""

    continuations: Whole = option(
        "Imagined episodes of a state. Their first actions are samples of the policy.", default=16, ge=1
    )
    depth: Whole = option("Longest imagined episode, in turns, the first action's included.", default=8, ge=1)
    temperature: Number = option(
        "The temperature at which the policy samples its actions, imagined ones too; 0 is greedy.", default=1.0, ge=0
    )
    value: Value = option(
        "What an episode is worth: success (1 where it is won), reward (the sum of what its turns bring) or length (1 where the "
        "world ends it: the sooner the better); each discounted by the turns to it.",
        default="success",
    )
    discount: Number = option("A turn later is worth this share.", default=0.9, ge=0, le=1)
    penalty: Number = option(
        "Standard deviations of a first action's episodes that are taken off their mean.", default=0.0, ge=0
    )
    floor: Number = option("Where no first action is worth more than this, the policy acts as it would.", default=0.0)
    world_model: Literal["own", "other", "real"] = option(
        "Who says what follows an action: own (the policy itself), other (a world model) or real (the environment: the bound).",
        default="own",
    )
    observation_temperature: Number = option(
        "The temperature at which the policy predicts results; 0 is greedy.", default=0.0, ge=0
    )
    observation_tokens: Whole = option(
        "How many tokens a predicted result has: for boards of one size, and policies that were trained on what results hold and "
        "not on where they end. 0: it ends where the chat template's text after a result begins.",
        default=0,
        ge=0,
    )
    max_observation_tokens: Whole = option(
        "Longest predicted result whose length is not given, in tokens.", default=512, ge=1
    )
    max_new_tokens: Whole = option("Longest action, in tokens.", default=512, ge=1)
    marks: Marks = option("Texts in observations that say an outcome.", default=Marks())

    def check_marks(self) -> None:
        """Refuse a value that nothing in an observation tells. A world model of ours, and the real world, tell of success.

        Raises:
            UserError: a text is missing.
        """
        marks, own = self.marks, self.world_model == "own"
        if self.value == "reward" and not marks.reward and self.world_model != "real":
            raise UserError(
                "look_ahead.value is reward, and nothing says where a reward stands; give the text before it (marks.reward)"
            )
        if own and self.value == "success" and not marks.tells_success:
            raise UserError(
                "look_ahead.value is success, and nothing says how a won observation looks; give its text (marks.won)"
            )
        if own and self.value == "length" and not (marks.over or marks.tells_success):
            raise UserError(
                "look_ahead.value is length, and nothing says how an episode ends; give its last text (marks.over)"
            )

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return self.model_dump(mode="json")


def read_sets(value: Any) -> dict[str, LookAheadConfig]:
    """The evaluation sets that are played looking ahead: {name: fields}, or the JSON of that; None for none.

    Raises:
        UserError: it is neither, or a field does not fit.
    """
    if value is None:
        return {}
    if isinstance(value, str):
        with suppress(ValueError):  # invalid JSON is rejected below
            value = loads(value)
    if not isinstance(value, Mapping):
        raise UserError(
            f"look_ahead is {shown(value)}; write a mapping, e.g. {{held_out: {{continuations: 16, depth: 6}}}}"
        )
    return {
        str(name): LookAheadConfig.read({} if fields is None else fields, f"look_ahead.{name}")
        for name, fields in value.items()
    }


@dataclass(frozen=True)
class Continuation:
    """An imagined episode from a state on.

    Attributes:
        first: its first action, as text; equal texts are one action.
        turns: imagined, the first action's included.
        over: by the world, as imagined within the depth; not by an action without a call.
        won: it was imagined to be won.
        rewards: of each turn.
        observation: what was imagined to follow the first action.
        logp: the first action's log-probability under the policy; None where it is unknown.
    """

    first: str
    turns: int = 0
    over: bool = False
    won: bool = False
    rewards: tuple[float, ...] = ()
    observation: str = ""
    logp: float | None = None


def value_of(one: Continuation, config: LookAheadConfig) -> float:
    """What an imagined episode is worth. What comes with the first action is not discounted."""
    if config.value == "reward":
        return sum(config.discount**turn * reward for turn, reward in enumerate(one.rewards))
    reached = one.won if config.value == "success" else one.over
    return config.discount ** (one.turns - 1) if reached and one.turns else 0.0


@dataclass(frozen=True)
class Choice:
    """What a policy takes after looking ahead.

    Attributes:
        place: of the continuation whose first action goes out.
        score: of that action; None where the policy acted as it would.
        imagined: of its continuations, the share that were imagined to be won.
        any_success: a continuation of any action was.
    """

    place: int
    score: float | None
    imagined: float
    any_success: bool


def choose(continuations: Sequence[Continuation], config: LookAheadConfig, *, own: int | None = 0) -> Choice:
    """The first action whose continuations are worth most: mean - penalty * standard deviation (of the population).

    Of equals, the action that the policy sampled more often, then the one that came first.

    Args:
        continuations: of one state, at least one.
        own: the place of the continuation that is the policy's own action where none is worth more than `config.floor`.
    """
    groups = by_first(continuations)
    scores = {
        first: _score([value_of(continuations[place], config) for place in places], config.penalty)
        for first, places in groups.items()
    }
    best = max(groups, key=lambda first: (scores[first], len(groups[first])))  # the first of equals
    any_success = any(one.won for one in continuations)
    fallback = scores[best] <= config.floor and own is not None
    place = own if fallback and own is not None else groups[best][0]
    won = [continuations[other].won for other in groups[continuations[place].first]]
    return Choice(place, None if fallback else scores[best], sum(won) / len(won), any_success)


def by_first(continuations: Sequence[Continuation]) -> dict[str, list[int]]:
    """The places of continuations by their first action, in the order in which these came."""
    groups: dict[str, list[int]] = {}
    for place, one in enumerate(continuations):
        groups.setdefault(one.first, []).append(place)
    return groups


def most_frequent(continuations: Sequence[Continuation]) -> int:
    """The place of the action that came most often; of equals, of the first."""
    groups = by_first(continuations)
    return groups[max(groups, key=lambda first: len(groups[first]))][0]


def most_likely(continuations: Sequence[Continuation]) -> int:
    """The place of the action with the highest log-probability under the policy; of equals, of the first.

    Raises:
        UserError: there are no log-probabilities.
    """
    known = [-math.inf if one.logp is None else one.logp for one in continuations]
    if all(one.logp is None for one in continuations):
        raise UserError(
            "best-of-n takes the action with the highest log-probability, and the server gives none; take majority"
        )
    return max(range(len(known)), key=known.__getitem__)


def samples_for(budget: float, each: float) -> int:
    """How many samples cost what look-ahead costs, to the nearest whole one, and at least one.

    Args:
        budget: tokens that a decision of look-ahead generated, in the mean.
        each: tokens of a sample of the policy, in the mean.
    """
    return max(1, math.floor(budget / each + 0.5)) if each > 0 else 1


def _score(values: Sequence[float], penalty: float) -> float:
    mean = sum(values) / len(values)
    return mean - penalty * math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
