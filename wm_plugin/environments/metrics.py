"""A step's episodes as figures for a trainer's log, the same on every host.

Shares are sums divided by sums, over all episodes of the step: those of every rank and worker.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from wm_plugin.environments.kit.protocol import report, tool_methods

PREFIX = "wm/env"
CALLS = "calls/"
SHARES = {"effective_share": "effective", "invalid_share": "invalid"}  # of all actions
OF_SUCCESSES = {"turns", "actions"}  # whose means over successful episodes are of interest, too
BINS = (1, 2, 4, 8, 16, 32)  # turns: 1, 2, 3-4, 5-8, ..., and more


def episode(
    environment: Any,
    calls: Iterable[str],
    *,
    budget: int | None,
    truncated: bool,
    policy_tokens: int,
    environment_tokens: int,
) -> dict[str, float]:
    """What is kept of an episode that is over: the environment's own figures (see `protocol.report`) and the host's.

    Args:
        calls: the name of every tool call, in any order. A name that is no tool counts as `unknown`: models write anything.
        budget: the turns that the host allowed, if it limits them; the environment's own `max_turns` may be lower.
        truncated: the completion was cut at the length limit.
        policy_tokens, environment_tokens: of the completion: those that the policy sampled, and the others.
    """
    tools = tool_methods(environment)
    counted = Counter(name if name in tools else "unknown" for name in calls)
    figures = report(environment)
    limits = [limit for limit in (budget, getattr(environment, "max_turns", None)) if isinstance(limit, int)]
    if limits:
        figures["budget"] = float(min(limits))
    return figures | {
        **{f"{CALLS}{name}": float(counted[name]) for name in (*tools, "unknown")},
        "truncated": float(truncated),
        "policy_tokens": float(policy_tokens),
        "environment_tokens": float(environment_tokens),
    }


def summary(episodes: Iterable[Mapping[str, float]], prefix: str = PREFIX) -> dict[str, float]:
    """The figures of a step by their names in a log.

    Means over the episodes that have a figure: `success`, `turns`, `budget` (the turns that were allowed), `actions`,
    `truncated`, `policy_tokens`, `environment_tokens`, `calls/<tool>` (a call of no tool is `calls/unknown`), and what an
    environment reports besides. Of `effective` and `invalid` actions also `effective_share` and `invalid_share`, of all
    actions (WMAct). `success/turns_3-4` is the success of the episodes that took 3 or 4 turns, `single_turn_success` the
    share of all that succeeded in one, and `turns_of_successes` and `actions_of_successes` are means over those that did. NaN
    is left out.
    """
    episodes = [{name: value for name, value in one.items() if not math.isnan(value)} for one in episodes]
    values: dict[str, list[float]] = {}
    for one in episodes:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
        if "success" in one and "turns" in one:
            values.setdefault(f"success/turns_{_bin(one['turns'])}", []).append(one["success"])
            values.setdefault("single_turn_success", []).append(float(one["success"] > 0 and one["turns"] == 1))
        if one.get("success", 0) > 0:
            for name in OF_SUCCESSES & one.keys():
                values.setdefault(f"{name}_of_successes", []).append(one[name])
    found = {name: math.fsum(seen) / len(seen) for name, seen in sorted(values.items())}
    for share, part in SHARES.items():
        both = [(one[part], one["actions"]) for one in episodes if part in one and "actions" in one]
        if total := math.fsum(actions for _, actions in both):
            found[share] = math.fsum(count for count, _ in both) / total
    return {f"{prefix}/{name}": value for name, value in found.items()}


def _bin(turns: float) -> str:
    lower = 0
    for upper in BINS:
        if turns <= upper:
            return str(upper) if upper - lower <= 1 else f"{lower + 1}-{upper}"
        lower = upper
    return f"{lower + 1}+"
