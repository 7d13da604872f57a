"""Turns to chat messages, as the agent saw them: the inverse of `messages`.

The system message has the task, the first user message the initial state. The answer to a call is a tool message that names the
call by id, whoever is observed by it. Any other observation is a user message. In two-sided dialogues the user's own calls are
left out: the agent did not see them.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from wm_plugin.data.messages import arguments_of
from wm_plugin.data.schema import Action, Call, Context, Turn
from wm_plugin.data.thoughts import content_of, is_inline
from wm_plugin.tokens.message import Message


def chat(context: Context, turns: Iterable[Turn] = ()) -> list[Message]:
    """Write a context and turns as messages of OpenAI's API.

    A call without an id, or with an id that is already used in its turn, gets `call_{turn}_{index}`. The context's simulation
    instruction is left out: it is for world models, not for the agent.
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
    """Write an action as the assistant's message. `turn` numbers the ids of calls that have none."""
    message: Message = {"role": "assistant", "content": content_of(action)}
    if action.thought and not is_inline(action.thought):
        message["reasoning_content"] = action.thought
    if action.calls:
        message["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call.arguments)},
            }
            for call, call_id in zip(action.calls, call_ids(action.calls, turn), strict=True)
        ]
    return message


def arguments_text(arguments: Any) -> str:
    """Write arguments as text, which `arguments_of` reads back as the same value. None becomes `{}`."""
    if arguments is None:
        return "{}"
    if isinstance(arguments, str) and arguments_of(arguments) == arguments:
        return arguments  # not JSON: it stays as the agent wrote it
    return json.dumps(arguments, ensure_ascii=False)


def _turn_messages(turn: Turn, number: int) -> list[Message]:
    calls = turn.action.calls
    ids = call_ids(calls, number)
    messages = [action_message(turn.action, number)]
    for observation in turn.observations:
        call = observation.call
        if call is not None and 0 <= call < len(calls):
            name, call_id = observation.tool or calls[call].name, ids[call]
            messages.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": observation.text})
        else:
            role = observation.data.get("role")
            role = role if role in ("system", "developer") else "user"
            messages.append({"role": role, "content": observation.text})
    return messages


def call_ids(calls: Sequence[Call], turn: int) -> list[str]:
    """Return an id for each call of a turn, all different: its own, if it has one that no call before it has."""
    ids: list[str] = []
    used: set[str] = set()
    for index, call in enumerate(calls):
        ids.append(call.id if call.id and call.id not in used else f"call_{turn}_{index}")
        used.add(ids[-1])
    return ids
