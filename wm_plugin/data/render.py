"""Contexts and turns as text for a prompt, in one format for all sources. Thoughts are left out.

A turn in a text:

    Agent (turn 2):
    Let me look.
    search({"query": "boots"})

    Tool search (turn 2):
    3 results

In a two-sided dialogue, the user's own calls are written as `User, on its own (turn 3):` and their results as
`To the user, from check_status (turn 3):`, in the order of the trajectory.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from wm_plugin.data.hidden import HEADINGS, PARTS, Shown, parts
from wm_plugin.data.schema import Action, Call, Context, Observation, Transition, Turn

Side = Literal["actor", "world"]  # who acts, and what the agent observes
NO_ACTION = "(no action)"
_OBSERVERS = {"user": "User", "environment": "Environment"}


def write_call(call: Call) -> str:
    """Write `name({"key": "value"})`; arguments that are not JSON stay as they are."""
    if call.arguments is None:
        return f"{call.name}()"
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return f"{call.name}({arguments})"


def write_action(action: Action, answered: int | None = None, told: Sequence[Observation] = ()) -> str:
    """Write the action's text and calls, one per line.

    Args:
        answered: the index of the call to be answered; if there are several calls, a last line names it.
        told: observations of the action, for a world model: what it was told about them for this turn stands at the end.
    """
    lines = [action.text] if action.text.strip() else []
    several = answered is not None and len(action.calls) > 1
    lines += [f"{n}. {write_call(c)}" if several else write_call(c) for n, c in enumerate(action.calls, 1)]
    if several and answered is not None:
        lines.append(f"(To be answered: call {answered + 1} of {len(action.calls)}, and no other.)")
    return "\n".join(lines or [NO_ACTION]) + _instructions(action, told)


def instruction_of(observation: Observation) -> str:
    """Return what a world model was told about an observation alone (see `worlds.wrappers.control`), or ""."""
    control = observation.data.get("control")
    told = control.get("instruction") if isinstance(control, dict) else None
    return told.strip() if isinstance(told, str) else ""


def _instructions(action: Action, told: Sequence[Observation]) -> str:
    lines = []
    for observation in told:
        if text := instruction_of(observation):
            number = observation.call
            several = number is not None and len(action.calls) > 1
            lines.append(f"Call {number + 1}: {text}" if several and number is not None else text)
    return "\n\n# Simulation instruction for this turn\n" + "\n".join(lines) if lines else ""


def write_observer(action: Action, observation: Observation) -> str:
    """Write the observation to predict as part of a sentence: `the result of search`, `the user's reply`."""
    if observation.kind == "user":
        return "the user's reply"
    if observation.kind == "environment":
        return "the environment's next observation"
    number = observation.call
    if number is None or len(action.calls) < 2 or not 0 <= number < len(action.calls):
        return f"the result of {observation.tool or 'the tool'}"
    return f"the result of call {number + 1} of {len(action.calls)}, {write_call(action.calls[number])}"


def write_history(turns: Sequence[Turn], first: int = 0) -> str:
    """Write turns as text, in order; `first` is the 0-based number of the first of them in its trajectory."""
    return "\n\n".join(block for n, turn in enumerate(turns, first + 1) for block in _blocks(turn, f" (turn {n})"))


def sides(turns: Sequence[Turn], texts: Sequence[Sequence[str]]) -> Iterator[tuple[Side, str]]:
    """Yield turns as a dialogue between an actor and the world.

    The agent's action and a single observation have no heading. Several observations have one each, and so have the user's own
    calls, which do not answer the agent.
    """
    for turn, observed in zip(turns, texts, strict=True):
        if turn.actor == "user":
            yield "actor", "\n\n".join(_blocks(turn, ""))
            continue
        yield "actor", write_action(turn.action, told=turn.observations)
        if len(observed) == 1:
            yield "world", observed[0]
        elif observed:
            pairs = zip(turn.observations, observed, strict=True)
            yield "world", "\n\n".join(f"{_heading(observation)}:\n{text}" for observation, text in pairs)


def separated(text: str, observations: Sequence[Observation]) -> list[str]:
    """Split the one text that `sides` makes of a turn's observations into a text for each.

    Without the headings everything is the first one's.
    """
    whole = [text, *[""] * (len(observations) - 1)]
    if len(observations) < 2:
        return whole
    first, *others = (f"{_heading(observation)}:\n" for observation in observations)
    if not text.startswith(first):
        return whole
    texts, start = [], len(first)
    for heading in others:
        end = text.find(f"\n\n{heading}", start)
        if end < 0:
            return whole
        texts.append(text[start:end])
        start = end + 2 + len(heading)
    return [*texts, text[start:]]


def write_context(context: Context, *, world: Shown = False) -> str:
    """Write the parts of a context, each under its heading; empty ones are left out.

    Args:
        world: what of the state to write; only a world model may read more than False gives (`hidden.Shown`).
    """
    told = parts(world)
    state = {HEADINGS[name]: getattr(context, field) for name, field in PARTS.items() if name in told}
    texts = {
        "Task description": context.task,
        "Action space": "\n".join(json.dumps(tool, ensure_ascii=False) for tool in context.action_space),
        **state,
        "Demonstrations": "\n\n".join(text for text in context.demonstrations if text.strip()),
        "Simulation instruction": context.simulation_instruction,
    }
    return "\n\n".join(f"# {heading}\n{text}" for heading, text in texts.items() if text.strip())


def reward_columns(transition: Transition, domain: str = "") -> dict[str, Any]:
    """Return `domain`, `context`, `action`, `verifier`, `history` and `content_type` of a transition.

    `context` is all that came before the action, as text. `history` has the texts of the agent's earlier observations, for rules.
    `verifier` (JSON text), `content_type` and, before the argument, `domain` come from the observation's own `data`. Missing ones
    are empty texts: parquet keeps them as they are.
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


def _blocks(turn: Turn, where: str) -> Iterator[str]:
    own = turn.actor == "user"
    yield f"{'User, on its own' if own else 'Agent'}{where}:\n{write_action(turn.action, told=turn.observations)}"
    for observation in turn.observations:
        heading = f"To the user, from {observation.tool or 'the tool'}" if own else _heading(observation)
        yield f"{heading}{where}:\n{observation.text}"


def _heading(observation: Observation) -> str:
    return _OBSERVERS.get(observation.kind) or (f"Tool {observation.tool}" if observation.tool else "Tool")
