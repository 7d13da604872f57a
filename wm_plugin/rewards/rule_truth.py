"""Checks before a run that its rules hold for real observations: a rule that does not trains away from the truth."""

import inspect
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.rewards.detect import GuardedReward
from wm_plugin.rewards.hybrid import HybridReward
from wm_plugin.rewards.make import make
from wm_plugin.rewards.rules import RuleReward

ROWS = 500  # rows of a dataset to check
ENOUGH = 0.9  # warn if a smaller share of observations satisfies its rule


def rules_of(reward: Any) -> RuleReward | None:
    """Return the rules of a reward, or of the reward that it guards; None without any."""
    while isinstance(reward, GuardedReward):
        reward = reward.reward
    if isinstance(reward, HybridReward):
        reward = reward.rules
    return reward if isinstance(reward, RuleReward) else None


def rules_of_spec(spec: Any) -> RuleReward | None:
    """Do the same for a config's description, as `make` takes it. Only rewards with rules are made; others may load a model."""
    from wm_plugin.rewards import REWARDS

    path: Any = spec
    kwargs: Mapping[str, Any] = {}
    if isinstance(spec, Mapping):
        path, kwargs = spec.get("path"), spec.get("kwargs") or {}
    kind = REWARDS.get(path) if isinstance(path, str) else None
    if inspect.isclass(kind) and issubclass(kind, GuardedReward):
        return rules_of_spec(kwargs.get("reward"))
    has_rules = inspect.isclass(kind) and issubclass(kind, RuleReward | HybridReward)
    return rules_of(make(spec)) if has_rules else None


def check_rules(rules: RuleReward, rows: Iterable[Mapping[str, Any]], target: str = "target") -> str | None:
    """Return a warning if no row has a rule, or the rules hold for few of the real observations.

    Args:
        rows: of the dataset; the first `ROWS` are used.
        target: the key of a row's real observation. The others are the reward's columns.

    Raises:
        UserError: they hold for no observation, or a verifier is malformed.
    """
    known = [row for row in islice(rows, ROWS) if isinstance(row.get(target), str)]
    targets = [row[target] for row in known]
    names = dict.fromkeys(name for row in known for name in row if name != target)
    columns = {name: [row.get(name) for row in known] for name in names}
    verdicts = rules.verify(targets, targets, **columns)
    broken = [text for text, verdict in zip(targets, verdicts, strict=True) if verdict is False]
    count = sum(verdict is not None for verdict in verdicts)
    if known and not count:
        return (
            f"rules: none of the first {len(known)} rows of the training data has a verifier, and a row without one gets "
            f"{rules.unverified:g}; is the column called verifier?"
        )
    if count - len(broken) >= ENOUGH * count:
        return None
    text = (
        f"rules: the verifiers hold for {count - len(broken)} of {count} real observations of the training data, but not for "
        f"{shown(broken[0])}"
    )
    if len(broken) == count:
        raise UserError(f"{text}: no right prediction can satisfy them; write rules that the observations satisfy")
    return f"{text}; a right prediction of the others gets no reward from them"
