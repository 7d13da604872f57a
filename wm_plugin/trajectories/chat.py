"""Turns to chat messages, as the agent saw them: the inverse of `messages`.

The system says the task, the user what was there at first. A tool's result answers its call by id; what an environment shows is a
user's message, like a user's reply. In two-sided dialogues the user's own calls are not the agent's to see: they are left out.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from wm_plugin.tokens.message import Message
from wm_plugin.trajectories.messages import arguments_of
from wm_plugin.trajectories.schema import Action, Call, Context, Observation, Turn


def chat(context: Context, turns: Iterable[Turn] = ()) -> list[Message]:
    """The conversation up to here, in the form of OpenAI's API.

    A call without an id, or with one that its turn has already, gets `call_{turn}_{index}`. A call without arguments has `{}`.
    What is for a world model alone, the simulation instruction, is left out.
    """
    messages: list[Message] = []
    if system := "\n\n".join(filter(None, [context.task, *context.demonstrations])):
        messages.append({"role": "system", "content": system})
    if context.initial_state:
        messages.append({"role": "user", "content": context.initial_state})
    for number, turn in enumerate(turns):
        if turn.actor == "agent":
            messages += _turn_messages(turn, number)
    return messages


def action_message(action: Action, turn: int) -> Message:
    """The assistant's message of an action; `turn` is for the ids of calls that have none."""
    message: Message = {"role": "assistant", "content": action.text}
    if action.thought:
        message["reasoning_content"] = action.thought
    if action.calls:
        message["tool_calls"] = [
            {
                "id": identity,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call.arguments)},
            }
            for call, identity in zip(action.calls, _identities(action.calls, turn), strict=True)
        ]
    return message


def arguments_text(arguments: Any) -> str:
    """Arguments as text, from which `arguments_of` makes the same again; none are `{}`."""
    if arguments is None:
        return "{}"
    if isinstance(arguments, str) and arguments_of(arguments) == arguments:
        return arguments  # no JSON: it stays as the agent wrote it
    return json.dumps(arguments, ensure_ascii=False)


def _turn_messages(turn: Turn, number: int) -> list[Message]:
    calls = turn.action.calls
    identities = _identities(calls, number)
    messages = [action_message(turn.action, number)]
    for observation in turn.observations:
        if observation.kind == "tool" and observation.call is not None and observation.call < len(calls):
            name = observation.tool or calls[observation.call].name
            identity = identities[observation.call]
            messages.append({"role": "tool", "tool_call_id": identity, "name": name, "content": observation.text})
        else:
            messages.append({"role": _role(observation), "content": observation.text})
    return messages


def _role(observation: Observation) -> str:
    role = observation.data.get("role")
    return role if role in ("system", "developer") else "user"


def _identities(calls: Sequence[Call], turn: int) -> list[str]:
    found: list[str] = []
    for index, call in enumerate(calls):
        found.append(call.id if call.id and call.id not in found else f"call_{turn}_{index}")
    return found
