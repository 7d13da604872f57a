"""ShareGPT and AgentGym: `{item_id, conversations: [{from: human|gpt, value, loss: true|false|null}]}`.

The agent's message holds its action, in AgentGym after `Action:`; the human's messages are the environment. The agent's first
messages that were not trained on (`loss` false) belong to the instructions; observations begin with the first action.
"""

from collections.abc import Iterator
from typing import Any

from wm_plugin.trajectories import files
from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.fields import Fields
from wm_plugin.trajectories.messages import flag_of, text_of
from wm_plugin.trajectories.readers.base import number_of, rest_of
from wm_plugin.trajectories.schema import Source
from wm_plugin.trajectories.thoughts import react

AGENT, OTHER = {"gpt", "assistant", "bot", "model"}, {"human", "user", "environment", "observation", "tool"}


def matches(head: files.Head) -> bool:
    return isinstance(head.sample, dict) and isinstance(head.sample.get("conversations"), list)


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if not isinstance(record, dict) or not isinstance(record.get("conversations"), list):
        raise RowError("no list `conversations`", "no messages")
    system: list[str] = []
    opening: list[str] = []
    turns: list[Fields] = []
    for number, message in enumerate(record["conversations"], 1):
        if not isinstance(message, dict) or not isinstance(message.get("value"), str):
            raise RowError(f"message {number} has no text", "wrong type")
        speaker, text = str(message.get("from", message.get("role", ""))).lower(), message["value"]
        if speaker == "system":
            system.append(text)
        elif speaker in AGENT and (turns or flag_of(message.get("loss")) is not False):
            turns.append({"action": react(text), "observations": []})
        elif speaker in AGENT:
            opening.append(text)  # the agent's promise to follow the instructions
        elif speaker in OTHER and turns:
            turns[-1]["observations"].append({"kind": "environment", "text": text})
        elif speaker in OTHER:
            opening.append(text)
        else:
            raise RowError(f"message {number} is from {speaker!r}", "unknown speaker")
    if not turns:
        raise RowError("the agent says nothing", "no action")
    if instruction := record.get("system"):
        system.insert(0, text_of(instruction))
    key = "id" if record.get("item_id") is None else "item_id"
    reward, success = number_of(record.get("reward")), flag_of(record.get("success"))
    yield {
        "turns": turns,
        "context": {"task": "\n\n".join(system), "initial_state": "\n\n".join(opening)},
        "task_id": text_of(record.get(key)),
        "success": success,
        "reward": reward,
        "source": vars(source),
        "metadata": rest_of(record, "conversations", "system", key, reward=reward, success=success),
    }
