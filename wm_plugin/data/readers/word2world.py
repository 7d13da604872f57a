"""Word2World: a world model's training dialogues and its consistency roll-outs; its `run.py` writes ShareGPT's form.

* Training: `{messages: [system, (user, assistant)*]}`. The *user* acts and the assistant is the world; an observation that
  ends in ` [SUCCESS]` marks a success. Failed episodes have no mark. The system message of ALFWorld's and ScienceWorld's data
  begins with the hidden state, under a heading that says that the user does not see it; it becomes `context.world_context`.
* Pairs of StableToolBench (MirrorAPI): one question with an API's documentation and a request, and the answer of the server as
  `{"error", "response"}`. There is no episode that could succeed.
* W2R: `{conversation: [{react, world_model_observation, env_observation}]}`. `react` is the agent's action; the observations are
  the world model's and the environment's.
"""

from collections.abc import Iterator
from typing import Any, Literal

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import arguments_of, flag_of, text_of, trains
from wm_plugin.data.readers.base import number_of, rest_of
from wm_plugin.data.schema import Fields, Source
from wm_plugin.data.thoughts import react, split

SUCCESS = " [SUCCESS]"
SPEAKERS = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
# headings of the released data: what the world model alone sees, and what the agent sees too
HIDDEN, SHOWN = (
    "# Environment Information (Only visible to Assistant)",
    "# User Environment Information (Displayed to User)",
)


def matches(head: files.Head) -> bool:
    """Tell whether a file holds W2R roll-outs. `verdict` tells of dialogues, which look like other chats, row by row."""
    record = head.sample
    steps = record.get("conversation") if isinstance(record, dict) else None
    return isinstance(steps, list) and bool(steps) and isinstance(steps[0], dict) and "env_observation" in steps[0]


def verdict(record: Any) -> Literal["acts", "world", "odd", "open"]:
    """Tell what a row of `messages` shows of its assistant.

    Returns:
        `acts` if it calls tools; `world` if it marks a success, if the system message has a part that only the assistant sees, or
        if it is a pair of StableToolBench; `open` if it fits both, as a system message with actions and observations by turns
        after it; `odd` for everything else, which is no dialogue of Word2World.
    """
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "odd"
    if any(record.get(key) for key in ("tools", "functions")) or any(map(_calls, messages)):
        return "acts"
    if is_pair(messages):
        return "world"
    texts = [(message.get("role"), message.get("content")) for message in messages]
    if not all(isinstance(text, str) for _, text in texts):
        return "odd"
    if any(
        (role == "assistant" and text.endswith(SUCCESS)) or (role == "system" and HIDDEN in text)
        for role, text in texts
    ):
        return "world"
    roles = [role for role, _ in texts]
    turns = [role for role in roles if role != "system"]
    by_turns = all(role == ("user", "assistant")[n % 2] for n, role in enumerate(turns))
    return "open" if roles[:1] == ["system"] and turns and by_turns else "odd"


def is_pair(messages: Any, content: str = "content", role: str = "role") -> bool:
    """Tell whether messages are one request and what a simulated server answered, perhaps after a system message."""
    if (
        not isinstance(messages, list)
        or not 2 <= len(messages) <= 3
        or not all(isinstance(one, dict) for one in messages)
    ):
        return False
    roles = tuple(SPEAKERS.get(str(one.get(role)).lower()) for one in messages)
    if roles not in (("user", "assistant"), ("system", "user", "assistant")):
        return False
    answer = messages[-1].get(content)
    value = arguments_of(answer) if isinstance(answer, str) and answer.lstrip()[:1] == "{" else None
    return isinstance(value, dict) and value.keys() == {"error", "response"}


def length(record: Any) -> int:
    """Count about how many characters a row of `messages` has."""
    messages = record.get("messages") if isinstance(record, dict) else None
    texts = (m.get("content") for m in messages if isinstance(m, dict)) if isinstance(messages, list) else ()
    return sum(len(text) for text in texts if isinstance(text, str))


def _calls(message: dict[str, Any]) -> bool:
    return message.get("role") in ("tool", "function") or any(message.get(k) for k in ("tool_calls", "function_call"))


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if not isinstance(record, dict):
        raise RowError("not an object", "wrong type")
    context: Fields = {}
    if isinstance(record.get("conversation"), list):
        turns = [_step(step) for step in record["conversation"]]
    elif isinstance(record.get("messages"), list):
        turns, task = _dialogue(record["messages"])
        context = _context(task)
    else:
        raise RowError("neither `messages` nor `conversation`", "no messages")
    if not turns:
        raise RowError("no action", "no action")
    won = any(one["data"].get("success") for turn in turns for one in turn["observations"] if "data" in one)
    success, reward = flag_of(record.get("success")), number_of(record.get("reward"))
    key = "id" if record.get("item_id") is None else "item_id"
    used = "conversation" if isinstance(record.get("conversation"), list) else "messages"
    yield {
        "turns": turns,
        "context": context,
        "task_id": text_of(record.get(key)),
        "success": won if success is None and not is_pair(record.get("messages")) else success,
        "reward": reward,
        "source": vars(source),
        "metadata": rest_of(record, used, key, success=success, reward=reward),
    }


def _dialogue(messages: list[Any]) -> tuple[list[Fields], str]:
    task: list[str] = []
    turns: list[Fields] = []
    action: str | None = None
    for number, message in enumerate(messages, 1):
        text = message.get("content") if isinstance(message, dict) else None
        if not isinstance(text, str):
            raise RowError(f"message {number} has no text", "wrong type")
        role = message.get("role")
        if role == "user" and action is None:
            action = text
        elif role == "assistant" and action is not None:
            data = {} if trains(message) else {"target": False}
            turns.append({"action": _action(action), "observations": [_observation(text, data)]})
            action = None
        elif role == "system":
            task.append(text)
        else:
            raise RowError(
                f"message {number} ({role}) is out of turn: actions and observations alternate", "out of turn"
            )
    if action is not None:
        turns.append({"action": _action(action), "observations": []})
    return turns, "\n\n".join(task)


def _context(text: str) -> Fields:
    """Split a system message into a context, the hidden state apart: from its heading to that of what the user sees."""
    task, hidden, rest = text.partition(HIDDEN)
    if not hidden:
        return {"task": text}
    world, _, state = rest.partition(SHOWN)
    return {"task": task.strip(), "world_context": world.strip(), "initial_state": state.strip()}


def _step(step: Any) -> Fields:
    if not isinstance(step, dict) or not isinstance(step.get("react"), str):
        raise RowError("a step without `react`", "no action")
    if "env_observation" not in step:
        raise RowError("a step without `env_observation`", "no observation")
    data = rest_of(step, "react", "env_observation", "world_model_observation")
    if "world_model_observation" in step:
        data["world_model"] = step["world_model_observation"]
    return {"action": react(step["react"]), "observations": [_observation(text_of(step["env_observation"]), data)]}


def _action(text: str) -> Fields:
    thought, action = split(text)
    return {"text": action, "thought": thought}


def _observation(text: str, data: dict[str, Any] | None = None) -> Fields:
    if text.endswith(SUCCESS):
        data = {"success": True, **(data or {})}
        text = text.removesuffix(SUCCESS)
    observation: Fields = {"kind": "environment", "text": text}
    if data:
        observation["data"] = data
    return observation
