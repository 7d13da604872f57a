"""How much of an observed JSON value a prediction has right, leaf by leaf."""

import json
from dataclasses import dataclass
from typing import Any

from wm_plugin.rewards.base import TextReward, mean

NO_JSON = object()


class JsonMatchReward(TextReward):
    """The share of leaves that are right, of all leaves of both values: 1 only for the same value.

    A leaf is a text, a number, true, false, null, or an empty object or list, at its place: keys by name, items of a list by
    number. 1 is 1.0, and is not true. A prediction that is no JSON gets 0; where the observation is none, the same text gets 1.

    Args:
        tag: takes predictions out of whole outputs, see `TextReward`.

    Attributes:
        figures: also `missing`, `extra` and `changed`: leaves that only the observation has, that only the prediction has, and
            that differ, as the mean of their shares over predictions where both are JSON; and `not_json`, the share of
            predictions that are none where the observation is.
    """

    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        scores = []
        found: list[Leaves] = []
        broken = 0
        for prediction, target in zip(predictions, targets, strict=True):
            said, seen = parse(prediction), parse(target)
            if said is NO_JSON or seen is NO_JSON:
                broken += seen is not NO_JSON
                scores.append(float(said is seen and prediction.strip() == target.strip()))
                continue
            found.append(compare(said, seen))
            scores.append(found[-1].same / found[-1].total)
        figures = {
            name: mean([getattr(leaves, name) / leaves.total for leaves in found])
            for name in ("missing", "extra", "changed")
        }
        return scores, {**figures, "not_json": broken / len(targets) if targets else 0.0}


@dataclass
class Leaves:
    """How many leaves are the same in two values, missing in the first, extra in it, or changed."""

    same: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0

    @property
    def total(self) -> int:
        return self.same + self.missing + self.extra + self.changed

    @property
    def is_same(self) -> bool:
        return self.same == self.total


def parse(text: str) -> Any:
    """The JSON value of a text, or NO_JSON: of NaN and Infinity, very deep nesting and integers of thousands of digits too."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return NO_JSON


def compare(prediction: Any, target: Any) -> Leaves:
    """The leaves of two JSON values, place by place. Where one has a leaf and the other several, all of them are changed."""
    found = Leaves()
    places = [(prediction, target)]
    while places:
        said, seen = places.pop()
        if type(said) is type(seen) and isinstance(said, dict | list) and (said or seen):
            said, seen = (part if isinstance(part, dict) else dict(enumerate(part)) for part in (said, seen))
            places += [(said[key], seen[key]) for key in said.keys() & seen.keys()]
            found.missing += sum(_leaves(seen[key]) for key in seen.keys() - said.keys())
            found.extra += sum(_leaves(said[key]) for key in said.keys() - seen.keys())
        elif said == seen and isinstance(said, bool) == isinstance(seen, bool):
            found.same += 1
        else:
            found.changed += max(_leaves(said), _leaves(seen))
    return found


def _leaves(value: Any) -> int:
    count, parts = 0, [value]
    while parts:
        part = parts.pop()
        if isinstance(part, dict | list) and part:
            parts += part.values() if isinstance(part, dict) else part
        else:
            count += 1
    return count


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
