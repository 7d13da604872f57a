r"""How much of the world a turn shows: seven categories by the words of action and observation (Qwen-AgentWorld, table 3).

    OL  = |A ∩ O| / |A|     how much of the action the observation repeats
    Nov = |O \\ A| / |O|     how much of the observation is new
    R   = characters of the observation / characters of the action

A and O are sets of lowercased words. A world model learns little from a turn that repeats its input, but needs it as context: the
turn stays, and its tokens count with the category's ratio: in data as the chance to be trained on, in rollouts as
their weight (`EchoConfig.turn_information`). Both take the same pair: the actor's text without its reasoning, and a result.
"""

import re
from typing import NamedTuple

# In order of precedence. In the table's own order nothing would ever be an echo.
KEEP = {
    "echo": 0.05,
    "boilerplate": 0.1,
    "expansion": 1.0,
    "retrieval": 1.0,
    "action": 1.0,
    "transform": 0.5,
    "other": 1.0,
}
MEANING = {
    "echo": "a repetition: at least 70% of the action's words, and less than 30% new ones",
    "boilerplate": "half a repetition: at least 50% of the action's words, and less than 50% new ones",
    "expansion": "longer: at least 50% of the action's words, and mostly new ones",
    "retrieval": "longer than the action, and mostly new words",
    "action": "short, or no longer than the action, and mostly new words",
    "transform": "shorter than the action, and mostly its words",
    "other": "none of these, or without words to compare",
}
SHORT = 100  # characters; the paper says "short" without a number
_WORD = re.compile(r"\w+")


class Statistics(NamedTuple):
    overlap: float
    novelty: float
    ratio: float


def statistics(action: str, observation: str) -> Statistics:
    """Return the statistics of a pair of texts; 0 for a share of nothing."""
    acted, observed = (set(_WORD.findall(text.lower())) for text in (action, observation))
    both = len(acted & observed)
    return Statistics(
        overlap=both / len(acted) if acted else 0.0,
        novelty=(len(observed) - both) / len(observed) if observed else 0.0,
        ratio=len(observation) / len(action) if action else 0.0,
    )


def category(action: str, observation: str, *, short: int = SHORT) -> str:
    """Return the category of a pair of texts; "other" if one side has no words.

    Reasoning in the action's text (`<think>...</think>`) does not count.
    """
    action = _without_reasoning(action)
    overlap, novelty, ratio = statistics(action, observation)
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
    if ratio < 1:  # and less than half is new: the rest are actions
        return "transform"
    return "other"


def _without_reasoning(text: str) -> str:
    """Return the text after the last `</think>`, without an unclosed thought."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()
