"""How much of an observed JSON value a prediction gets right, leaf by leaf."""

from collections import Counter
from typing import Any

from wm_plugin.rewards.base import TextReward, mean
from wm_plugin.untrusted import loads

NO_JSON = object()


class JsonMatchReward(TextReward):
    """The share of equal leaves among all leaves of both values; 1 only for equal values.

    A leaf is a text, a number, true, false, null, or an empty object or list, together with its place: keys by name, items of a
    list by index. 1 equals 1.0 but not true. A prediction that is not JSON scores 0; if the observation is not JSON either, equal
    texts score 1.

    Attributes:
        figures: also `missing`, `extra` and `changed`: the shares of leaves that only the observation has, that only the
            prediction has, and that differ, averaged over rows where both are JSON; and `not_json`, the share of predictions
            that are not JSON although the observation is.
    """

    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        scores = []
        compared: list[Counter[str]] = []
        not_json = 0
        for prediction, target in zip(predictions, targets, strict=True):
            predicted, observed = parse(prediction), parse(target)
            if predicted is NO_JSON or observed is NO_JSON:
                not_json += observed is not NO_JSON
                scores.append(float(predicted is observed and prediction.strip() == target.strip()))
                continue
            compared.append(leaves := compare(predicted, observed))
            scores.append(leaves["same"] / leaves.total())
        figures = {
            name: mean([leaves[name] / leaves.total() for leaves in compared])
            for name in ("missing", "extra", "changed")
        }
        return scores, {**figures, "not_json": not_json / len(targets) if targets else 0.0}


def parse(text: str) -> Any:
    """Parse a text's JSON value, strictly (`untrusted.loads`); return NO_JSON if it has none."""
    try:
        return loads(text, strict=True)
    except ValueError:
        return NO_JSON


def compare(prediction: Any, target: Any) -> Counter[str]:
    """Compare two JSON values place by place; return how many leaves are `same`, `missing`, `extra` and `changed`.

    A leaf in the place of several leaves changes all of them. There is one leaf at least.
    """
    leaves: Counter[str] = Counter()
    places = [(prediction, target)]
    while places:
        a, b = places.pop()
        if type(a) is type(b) and isinstance(a, dict | list) and (a or b):
            a, b = (part if isinstance(part, dict) else dict(enumerate(part)) for part in (a, b))
            places += [(a[key], b[key]) for key in a.keys() & b.keys()]
            leaves["missing"] += sum(_leaves(b[key]) for key in b.keys() - a.keys())
            leaves["extra"] += sum(_leaves(a[key]) for key in a.keys() - b.keys())
        elif a == b and isinstance(a, bool) == isinstance(b, bool):
            leaves["same"] += 1
        else:
            leaves["changed"] += max(_leaves(a), _leaves(b))
    return leaves


def is_same(prediction: Any, target: Any) -> bool:
    """Whether two JSON values are equal: 1 equals 1.0 but not true."""
    leaves = compare(prediction, target)
    return leaves["same"] == leaves.total()


def _leaves(value: Any) -> int:
    count, parts = 0, [value]
    while parts:
        part = parts.pop()
        if isinstance(part, dict | list) and part:
            parts += part.values() if isinstance(part, dict) else part
        else:
            count += 1
    return count
