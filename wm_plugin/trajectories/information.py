"""How much of the world a turn shows: seven categories by the words of action and observation (Qwen-AgentWorld, table 3).

    OL  = |A ∩ O| / |A|     how much of the action the observation repeats
    Nov = |O \\ A| / |O|     how much of the observation is new
    Jac = |A ∩ O| / |A ∪ O|
    R   = characters of the observation / characters of the action

A and O are sets of lowercased words. A world model learns little from a turn that repeats its input, but needs it as context: it
is kept, and its tokens count with the category's ratio: in data, as the chance to be trained on (`keep_ratio`); in rollouts, as
their weight (`EchoConfig.turn_information`). Both take the same pair: what the actor wrote, less its reasoning, and a result.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.messages import action_of, text_of
from wm_plugin.trajectories.schema import Action, Observation

# In the order in which they are decided. In the table's own order nothing would ever be an echo.
KEEP = {
    "echo": 0.05,
    "boilerplate": 0.1,
    "expansion": 1.0,
    "retrieval": 1.0,
    "action": 1.0,
    "transform": 0.5,
    "other": 1.0,
}
SHORT = 100  # characters; the paper says "short" without a number
_WORD = re.compile(r"\w+")
_ESCAPE = re.compile(r"\\(.)")  # in JSON


class Statistics(NamedTuple):
    overlap: float
    novelty: float
    jaccard: float
    ratio: float


def statistics(action: str, observation: str) -> Statistics:
    """The four statistics of a pair of texts; 0 where a share is of nothing."""
    acted, observed = (set(_WORD.findall(text.lower())) for text in (action, observation))
    both = len(acted & observed)
    return Statistics(
        overlap=both / len(acted) if acted else 0.0,
        novelty=(len(observed) - both) / len(observed) if observed else 0.0,
        jaccard=both / len(acted | observed) if acted or observed else 0.0,
        ratio=len(observation) / len(action) if action else 0.0,
    )


def category(action: str, observation: str, *, short: int = SHORT) -> str:
    """The category of a pair of texts. Without words on one side there is nothing to compare: other.

    Reasoning that stands in the action's text (`<think>...</think>`) does not count.
    """
    action = _without_reasoning(action)
    overlap, novelty, _, ratio = statistics(action, observation)
    if not _WORD.search(action) or not _WORD.search(observation):
        return "other"
    if overlap >= 0.7 and novelty < 0.3:
        return "echo"
    if overlap >= 0.5 and novelty < 0.5:
        return "boilerplate"
    if overlap >= 0.5 and novelty >= 0.5 and ratio > 1.5:
        return "expansion"
    if novelty >= 0.6 and ratio > 1:
        return "retrieval"
    if novelty >= 0.5 and (ratio <= 1 or len(observation) <= short):
        return "action"
    if novelty < 0.5 and ratio < 1:
        return "transform"
    return "other"


def keep_ratio(action: Action, observation: Observation, *, short: int = SHORT) -> float:
    """The share of an observation's tokens that a loss should count."""
    return KEEP[category(action_text(action, observation.call), observation.text, short=short)]


def action_text(action: Action, call: int | None = None) -> str:
    """What the actor wrote: its text and its calls (name and JSON arguments); of several calls, the one that was answered."""
    calls = action.calls if call is None else action.calls[call : call + 1]
    written = [f"{c.name} {_arguments_text(c.arguments)}" for c in calls]
    return " ".join(filter(None, [action.text.strip(), *written]))


def categories(message: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The category of each tool message in `results`, which follow the assistant's `message` (OpenAI's form, as hosts keep it).

    The k-th result of a tool answers the k-th call of that tool; without names, the k-th call. Calls that no reader would take,
    such as those of a model that writes no name, are not compared: other.
    """
    try:
        action = action_of(message)
    except RowError:
        return ["other"] * len(results)
    waiting = list(range(len(action.calls)))
    found = []
    for result in results:
        call = next((k for k in waiting if action.calls[k].name == result.get("name")), waiting[0] if waiting else None)
        if call is not None:
            waiting.remove(call)
        found.append(category(action_text(action, call), text_of(result.get("content"))))
    return found


def _arguments_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    text = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    # an escaped line break is white space, not the first letter of the next word
    return _ESCAPE.sub(lambda escape: " " if escape[1] in "bfnrt" else escape[0], text)


def _without_reasoning(text: str) -> str:
    """What stands after the last `</think>`, and nothing of a thought that does not end."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()
