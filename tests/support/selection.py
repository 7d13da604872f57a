"""What TRL's and verl's adapter must agree on beside the arithmetic: which tokens count, and what they add to N.

The folder agreement_data/ holds what TRL's adapter selects, in selection.json: for each configuration and each rollout, the runs
of tokens that count (tool, weight, length) and the rollout's share of N. In an environment with TRL, `cd tests && python -m
support.selection_on_trl` writes it; tests of both hosts compare themselves with it.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any

from support.agreement import FOLDER
from support.tools import Tools, call
from wm_plugin.objectives.information import KEEP
from wm_plugin.tokens.spans import OTHER

FILE = FOLDER / "selection.json"
LIMIT = 600  # tokens of a completion

# Two prompts with four rollouts each. What a rollout says last is its name, and its reward follows from it.
TURNS: dict[str, list[list[str]]] = {
    "task 2": [[call("run_code", code=f"{number}"), f"same {number}"] for number in range(4)],
    "task 3": [
        [call("run_code", code="a") + "\n" + call("lookup_doc", name="b"), "ends by itself"],
        [call("lookup_doc", name="c"), "y" * 700],  # cut at the limit
        # each host words what it makes of a failed call in its own way: nothing is compared of it but whether it counts
        [call("run_code", code="raise"), call("run_code", code="fine"), "a tool raised"],
        [call("no_such_tool", code="1"), call("lookup_doc", name="d"), "no such tool"],
    ],
}
FAILS = ("a tool raised", "no such tool")

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "without truncated completions": {"include_truncated": False},
    "with the host's failures": {"include_errors": True},
    "without groups of equal rewards": {"zero_variance_groups": "drop"},
    "groups of equal rewards, every environment token": {
        "zero_variance_groups": "drop",
        "normalization": "observation_tokens",
    },
    "one tool, every environment token": {"tools": ["run_code"], "normalization": "observation_tokens"},
    "turn information": {
        "content_only": False,
        "turn_information": {category: (number + 1) / 10 for number, category in enumerate(KEEP)},
    },
}
# The same on rollouts of a user's own, with `env_spans` that leave the first token of each run out.
OWN_CONFIGS = {name: CONFIGS[name] for name in CONFIGS if name not in ("with the host's failures",)}


class RaisingTools(Tools):
    def _printed(self, code: str) -> str:
        if "raise" in code:
            raise RuntimeError("the tool's own failure")
        return super()._printed(code)


def name_of(last: str) -> str:
    return last[:20]


def reward_of(name: str) -> float:
    """All rollouts of the first prompt are worth the same."""
    return 1.0 if name.startswith("same") else len(name) / 100


def own_spans(mask: Sequence[int]) -> list[tuple[int, int, str, str, bool]]:
    """Spans of a rollout whose tokens alone are known; mask: 1 = sampled by the policy."""
    spans, position = [], 0
    for sampled, group in itertools.groupby(mask):
        length = len(list(group))
        if not sampled:
            tool = "run_code" if len(spans) % 2 == 0 else "lookup_doc"
            spans.append((position + 1, position + length, "tool", tool, True))
        position += length
    return spans


def names_of(numbers: Sequence[int], tools: Sequence[str]) -> list[str | None]:
    """The tool of each token, from a column of tool numbers: None without one, "other" where it has no figures of its own."""
    names = {0: None, OTHER: "other", **dict(enumerate(tools, 1))}
    return [names[number] for number in numbers]


def runs(weights: Sequence[float], tools: Sequence[str | None]) -> list[list[Any]]:
    """Runs of tokens that count alike, as [tool, weight, length]; weight 0 does not count."""
    pairs = itertools.groupby(zip(tools, (round(weight, 6) for weight in weights), strict=True))
    return [[tool, weight, len(list(group))] for (tool, weight), group in pairs if weight]


def selected(name: str, weights: Sequence[float], tools: Sequence[str | None], count: int) -> dict[str, Any]:
    """What of one rollout is compared."""
    counted = runs(weights, tools)
    if name in FAILS:  # the texts differ, and so do lengths
        return {"runs": [[tool, weight] for tool, weight, _ in counted]}
    return {"runs": counted, "count": count}


def read() -> dict[str, Any]:
    return json.loads(FILE.read_text())
