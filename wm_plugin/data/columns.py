"""The columns that rewards read beside prediction and target: for training rows, best of n and audits."""

import json
from typing import Any

from wm_plugin.data.render import write_action, write_context, write_history
from wm_plugin.data.schema import Transition


def reward_columns(transition: Transition, domain: str = "") -> dict[str, Any]:
    """Return `domain`, `context`, `action`, `verifier`, `history` and `content_type` of a transition.

    `context` is all that came before the action, as text. `history` has the texts of the agent's earlier observations, for rules.
    `verifier` (JSON text), `content_type` and, before the argument, `domain` come from the observation's own `data`. Missing ones
    are empty texts: parquet keeps them as they are.

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
