"""What rewards read beside prediction and target, from a transition: for training rows, best of n and audits."""

import json
from typing import Any

from wm_plugin.data.render import write_action, write_context, write_history
from wm_plugin.data.schema import Transition


def reward_columns(transition: Transition, domain: str = "") -> dict[str, Any]:
    """`domain`, `context`, `action`, `verifier`, `history` and `content_type` of a transition.

    `context` is all that came before the action, as text: the world's description and the turns. `history` has the texts of the
    agent's earlier observations, for rules. `verifier` (JSON text), `content_type` and, before the argument, `domain` are those
    of the observation's own `data`. All are texts, empty where there is none: parquet keeps them as they are.

    Args:
        domain: of the data, for the judge's guidance.
    """
    observation, history = transition.observation, transition.history
    before = write_history(history, transition.turn - len(history))
    verifier = observation.data.get("verifier")
    return {
        "domain": str(observation.data.get("domain") or domain),
        "context": "\n\n".join(filter(None, [write_context(transition.context), before])),
        "action": write_action(transition.action, observation.call, [observation]),
        "verifier": verifier if isinstance(verifier, str) else json.dumps(verifier) if verifier else "",
        "history": [one.text for turn in history if turn.actor == "agent" for one in turn.observations],
        "content_type": str(observation.data.get("content_type") or ""),
    }
