"""Turns to chat messages, as the agent saw them: the inverse of `messages`.

The system message has the task, the first user message the initial state. The answer to a call is a tool message that names the
call by id, whoever is observed by it. Any other observation is a user message. In two-sided dialogues the user's own calls are
left out: the agent did not see them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wm_plugin.data.messages import arguments_of
from wm_plugin.data.schema import Action, Call, Context, Trajectory, Turn
from wm_plugin.data.thoughts import content_of, is_inline
from wm_plugin.tokens.message import Message

PROMPT = "wm_prompt"  # of a trajectory's metadata: the prompt's messages, if the context does not give them back


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


def conversation(trajectory: Trajectory) -> list[Message]:
    """Write a trajectory as messages: `chat`, with the prompt as its run wrote it, where a dump says it."""
    messages = chat(trajectory.context, trajectory.turns)
    prompt = trajectory.metadata.get(PROMPT)
    if not isinstance(prompt, list) or not all(isinstance(one, dict) and _is_text(one) for one in prompt):
        return messages
    first = next((place for place, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
    return [*map(dict, prompt), *messages[first:]]


def prompt_to_keep(prompt: Sequence[Message], context: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the metadata must keep of a prompt: its messages, if those of the context's fields are others.

    A context joins messages of one role, and has no empty ones and no other roles. A prompt with turns of the agent is not kept.
    """
    plain = [{name: value for name, value in message.items() if value is not None} for message in prompt]
    if not all(map(_is_text, plain)) or plain == chat(
        Context(task=context["task"], initial_state=context["initial_state"])
    ):
        return {}
    return {} if {one["role"] for one in plain} & {"assistant", "tool"} else {PROMPT: plain}


def _is_text(message: Message) -> bool:
    return all(isinstance(message.get(name), str) for name in ("role", "content"))


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
