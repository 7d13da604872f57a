"""Word2World: a world model's training dialogues and its consistency roll-outs.

* Training: `{messages: [system, (user, assistant)*]}`. The *user* acts and the assistant is the world; an observation that
  ends in ` [SUCCESS]` marks a success.
* W2R: `{conversation: [{react, world_model_observation, env_observation}]}`. `react` is the agent's action; the observations are
  the world model's and the environment's.
"""

from collections.abc import Iterator
from typing import Any

from wm_plugin.trajectories import files
from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.fields import Fields
from wm_plugin.trajectories.messages import flag_of, text_of
from wm_plugin.trajectories.readers.base import number_of, rest_of
from wm_plugin.trajectories.schema import Source

SUCCESS = " [SUCCESS]"


def matches(head: files.Head) -> bool:
    record = head.sample
    if not isinstance(record, dict):
        return False
    steps = record.get("conversation")
    if isinstance(steps, list) and steps and isinstance(steps[0], dict) and "env_observation" in steps[0]:
        return True
    messages = record.get("messages")
    # only the first record decides: without a success mark in it, --format word2world is needed
    return isinstance(messages, list) and any(
        isinstance(m, dict) and m.get("role") == "assistant" and str(m.get("content", "")).endswith(SUCCESS)
        for m in messages
    )


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if not isinstance(record, dict):
        raise RowError("not an object", "wrong type")
    if isinstance(record.get("conversation"), list):
        turns, task = [_step(step) for step in record["conversation"]], ""
    elif isinstance(record.get("messages"), list):
        turns, task = _dialogue(record["messages"])
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
        "context": {"task": task},
        "task_id": text_of(record.get(key)),
        "success": success if success is not None else won,
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
            turns.append({"action": {"text": action}, "observations": [_observation(text)]})
            action = None
        elif role == "system":
            task.append(text)
        else:
            raise RowError(
                f"message {number} ({role}) is out of turn: actions and observations alternate", "out of turn"
            )
    if action is not None:
        turns.append({"action": {"text": action}, "observations": []})
    return turns, "\n\n".join(task)


def _step(step: Any) -> Fields:
    if not isinstance(step, dict) or not isinstance(step.get("react"), str):
        raise RowError("a step without `react`", "no action")
    if "env_observation" not in step:
        raise RowError("a step without `env_observation`", "no observation")
    data = rest_of(step, "react", "env_observation", "world_model_observation")
    if "world_model_observation" in step:
        data["world_model"] = step["world_model_observation"]
    thought, mark, action = step["react"].rpartition("Action:")
    fields = {"text": action.strip(), "thought": thought.strip() or None} if mark else {"text": step["react"]}
    return {"action": fields, "observations": [_observation(text_of(step["env_observation"]), data)]}


def _observation(text: str, data: dict[str, Any] | None = None) -> Fields:
    if text.endswith(SUCCESS):
        data = {"success": True, **(data or {})}
        text = text.removesuffix(SUCCESS)
    observation: Fields = {"kind": "environment", "text": text}
    if data:
        observation["data"] = data
    return observation
