"""ShareGPT and AgentGym: `{item_id, conversations: [{from: human|gpt, value, loss: true|false|null}]}`.

So are the rollouts of Word2World's `run.py`, with `role` and `content` and without `loss`: there the agent acts from its first
message with `Action:` on. Pairs of StableToolBench, in which the model is the server, are read as `word2world` does.

The agent's message holds its action, in AgentGym after `Action:`; the human's messages are the environment. The agent's first
messages that were not trained on (`loss` false) belong to the instructions; observations begin with the first action. Later
messages with that flag are actions that are not to be trained on.
"""

from collections.abc import Iterator
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import flag_of, text_of, trains
from wm_plugin.data.readers import word2world
from wm_plugin.data.readers.base import number_of, rest_of
from wm_plugin.data.schema import Fields, Source
from wm_plugin.data.thoughts import react

AGENT, OTHER = {"gpt", "assistant", "bot", "model"}, {"human", "user", "environment", "observation", "tool"}


def matches(head: files.Head) -> bool:
    return isinstance(head.sample, dict) and isinstance(head.sample.get("conversations"), list)


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if not isinstance(record, dict) or not isinstance(record.get("conversations"), list):
        raise RowError("no list `conversations`", "no messages")
    messages = record["conversations"]
    for names in (("from", "value"), ("role", "content")):
        if word2world.is_pair(messages, names[1], names[0]):
            yield from word2world.convert(_dialogue(record, *names), source)
            return
    system: list[str] = []
    opening: list[str] = []
    turns: list[Fields] = []
    first = _first_action(messages)
    for number, message in enumerate(messages, 1):
        text = _text(message)
        if text is None:
            raise RowError(f"message {number} has no text", "wrong type")
        speaker = _speaker(message)
        if speaker == "system":
            system.append(text)
        elif speaker in AGENT and (turns or (trains(message) and number >= first)):
            turns.append({"action": react(text), "observations": [], "train": trains(message)})
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


def _text(message: Any) -> str | None:
    text = message.get("value", message.get("content")) if isinstance(message, dict) else None
    return text if isinstance(text, str) else None


def _speaker(message: dict[str, Any]) -> str:
    return str(message.get("from", message.get("role", ""))).lower()


def _first_action(messages: list[Any]) -> int:
    """Return the number of the agent's first action, where its second message is the first with an `Action:`; else 1.

    So Word2World's own rollouts begin (messages with a role): the first message promises to follow the instructions.
    """
    said = [number for number, message in enumerate(messages, 1) if _text(message) and _speaker(message) in AGENT][:2]
    if len(said) < 2 or any("loss" in messages[number - 1] or "role" not in messages[number - 1] for number in said):
        return 1
    first, second = ("Action:" in (_text(messages[number - 1]) or "") for number in said)
    return said[1] if second and not first else 1


def _dialogue(record: dict[str, Any], role: str, content: str) -> dict[str, Any]:
    """Return the record of a pair as a dialogue of Word2World."""
    messages = [
        {"role": word2world.SPEAKERS[str(one[role]).lower()], "content": one.get(content)}
        for one in record["conversations"]
    ]
    system = [{"role": "system", "content": text_of(record["system"])}] if record.get("system") else []
    rest = {key: value for key, value in record.items() if key not in ("conversations", "system")}
    return {**rest, "messages": [*system, *messages]}
