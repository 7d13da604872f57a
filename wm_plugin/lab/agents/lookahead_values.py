"""The settings and the arithmetic of look-ahead: what an imagined episode is worth, and which first action to take.

A first action's value is the mean over the episodes that begin with it, less `penalty` standard deviations. The penalty and the
floor guard against a policy that imagines success nearly everywhere (on the grid: in 76 to 100% of states).
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
        "Imagined episodes for each state. The policy samples their first actions.", default=16, ge=1
    )
    depth: Whole = option("Longest imagined episode, in turns, including the first action's.", default=8, ge=1)
    temperature: Number = option(
        "The temperature at which the policy samples its actions, also imagined ones; 0 is greedy.", default=1.0, ge=0
    )
    value: Value = option(
        "What an episode is worth: success (1 if it is won), reward (the sum of its turns' rewards) or length (1 if the world "
        "ends it: the sooner the better); each discounted by the turns to it.",
        default="success",
    )
    discount: Number = option("The discount for each turn.", default=0.9, ge=0, le=1)
    penalty: Number = option(
        "How many standard deviations of a first action's episodes are subtracted from their mean.", default=0.0, ge=0
    )
    floor: Number = option(
        "If no first action is worth more than this, the policy acts as without looking ahead.", default=0.0
    )
    world_model: Literal["own", "other", "real"] = option(
        "What follows an action is predicted by own (the policy), other (a world model) or real (the environment: the bound).",
        default="own",
    )
    observation_temperature: Number = option(
        "The temperature at which the policy predicts results; 0 is greedy.", default=0.0, ge=0
    )
    observation_tokens: Whole = option(
        "The exact length of a predicted result in tokens, for boards of one size and policies that were not trained on where "
        "results end. 0: a result ends where the chat template's text after it begins.",
        default=0,
        ge=0,
    )
    max_observation_tokens: Whole = option(
        "Longest predicted result in tokens, if observation_tokens is 0.", default=512, ge=1
    )
    max_new_tokens: Whole = option("Longest action, in tokens.", default=512, ge=1)
    marks: Marks = option("Texts in observations that tell the outcome.", default=Marks())

    def check_marks(self) -> None:
        """Refuse a value that no mark tells. World models and the real world tell success by themselves."""
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


def read_sets(value: Any) -> dict[str, LookAheadConfig]:
    """Read the settings of the evaluation sets that are played looking ahead: {name: fields}, or its JSON; {} for None."""
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
    """An imagined episode."""

    first: str  # its first action: calls, or the text; equal texts are one action
    turns: int = 0  # including the first action's
    over: bool = False  # the world ended it within the depth; an action without a call does not count
    won: bool = False
    rewards: tuple[float, ...] = ()  # each turn's
    observation: str = ""  # what was imagined to follow the first action
    logp: float | None = None  # the first action's log-probability under the policy, if known


def value_of(one: Continuation, config: LookAheadConfig) -> float:
    """Return what an imagined episode is worth. The first action's own turn is not discounted."""
    if config.value == "reward":
        return sum(config.discount**turn * reward for turn, reward in enumerate(one.rewards))
    reached = one.won if config.value == "success" else one.over
    return config.discount ** (one.turns - 1) if reached and one.turns else 0.0


@dataclass(frozen=True)
class Choice:
    """What a policy does after looking ahead."""

    place: int  # of the continuation whose first action it takes
    score: float | None  # that action's value; None where the policy acts as without looking ahead
    imagined: float  # the share of that action's continuations in which success was imagined
    any_success: bool  # for any action


def choose(continuations: Sequence[Continuation], config: LookAheadConfig, *, own: int | None = 0) -> Choice:
    """Choose the first action with the highest value: mean - penalty * standard deviation (of the population).

    A tie goes to the action that the policy sampled more often, then to the one sampled first.

    Args:
        continuations: those of one state, at least one.
        own: the place of the policy's own action, which it takes if no value exceeds `config.floor`.
    """
    groups = by_first(continuations)
    scores = {
        first: _score([value_of(continuations[place], config) for place in places], config.penalty)
        for first, places in groups.items()
    }
    best = max(groups, key=lambda first: (scores[first], len(groups[first])))
    any_success = any(one.won for one in continuations)
    fallback = scores[best] <= config.floor and own is not None
    place = own if fallback and own is not None else groups[best][0]
    won = [continuations[other].won for other in groups[continuations[place].first]]
    return Choice(place, None if fallback else scores[best], sum(won) / len(won), any_success)


def by_first(continuations: Sequence[Continuation]) -> dict[str, list[int]]:
    """Group the places of continuations by first action, in order of appearance."""
    groups: dict[str, list[int]] = {}
    for place, one in enumerate(continuations):
        groups.setdefault(one.first, []).append(place)
    return groups


def most_frequent(continuations: Sequence[Continuation]) -> int:
    """Return the place of the most frequent action; the first one in a tie."""
    groups = by_first(continuations)
    return groups[max(groups, key=lambda first: len(groups[first]))][0]


def most_likely(continuations: Sequence[Continuation]) -> int:
    """Return the place of the action with the highest log-probability under the policy; the first one in a tie."""
    known = [-math.inf if one.logp is None else one.logp for one in continuations]
    if all(one.logp is None for one in continuations):
        raise UserError(
            "best-of-n takes the action with the highest log-probability, and the server gives none; take majority"
        )
    return max(range(len(known)), key=known.__getitem__)


def samples_for(budget: float, each: float) -> int:
    """Return how many samples of `each` tokens cost as much as a look-ahead decision, `budget`: at least one."""
    return max(1, math.floor(budget / each + 0.5)) if each > 0 else 1


def _score(values: Sequence[float], penalty: float) -> float:
    mean = sum(values) / len(values)
    return mean - penalty * math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
