"""Chat messages to turns, for every format of tool-calling conversations.

A turn is an assistant's message with its answers: the results of its calls, in order, and the user's reply. Where users call
tools too (τ²-bench), their calls and results are turns of the actor `user`, and their reply answers the agent's last turn.

A system message in the middle of a conversation is an observation of the turn before it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wm_plugin.data.errors import RowError
from wm_plugin.data.schema import Action, Actor, Fields
from wm_plugin.data.thoughts import joined, split
from wm_plugin.errors import shown
from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import DEEPEST, deeper, loads

_ACTORS: dict[str, Actor] = {"user": "user", "assistant": "agent"}  # the requestors of τ²-bench
_THOUGHTS = ("reasoning_content", "reasoning", "thought")  # in order of preference
# The keys of a message that become fields. The others (cost, usage, timestamp, ...) go to `Conversation.rest`.
_READ = {
    "system": {"role", "content"},
    "developer": {"role", "content"},
    "user": {"role", "content", "tool_calls", "function_call"},
    "assistant": {"role", "content", "tool_calls", "function_call"},
    "tool": {"role", "content", "name", "error", "requestor", "tool_call_id", "id", "tool_call_ids"},
}
_READ["function"] = _READ["tool"]
_TEXTS = (
    "text",
    "input_text",
    "output_text",
    "reasoning_text",
    "summary_text",
)  # types of parts, OpenAI's Responses' too


class Conversation:
    """A conversation's messages as a context and turns.

    Args:
        exact: a result with the id of no open call answers none: it is the environment's, after the agent's last turn.
    """

    def __init__(self, messages: Iterable[Any] = (), *, exact: bool = False) -> None:
        self.exact = exact
        self.system: list[str] = []
        self.opening: list[str] = []  # the user's messages before the agent's first turn
        self.turns: list[_Open] = []
        self._agent: _Open | None = None  # its last turn
        # Turns with unanswered calls, of an actor or (None) of both, by their number; and those that wait for a call's id.
        self._waiting: dict[Actor | None, dict[int, _Open]] = {"agent": {}, "user": {}, None: {}}
        self._by_id: dict[tuple[Actor | None, str], list[_Open]] = {}
        self._rest: dict[str, Any] = {}
        for number, message in enumerate(messages, 1):
            self.add(message, number)

    @property
    def task(self) -> str:
        """The system messages before the first turn, joined."""
        return "\n\n".join(self.system)

    @property
    def initial_state(self) -> str:
        """The user's messages before the first turn, joined."""
        return "\n\n".join(self.opening)

    def add(self, message: Any, number: int, **observed: Any) -> None:
        """Add the next message of the conversation.

        Args:
            observed: fields of the observation that the message becomes, in place of what its role says.
        """
        if not isinstance(message, dict):
            raise RowError(f"message {number} is {type(message).__name__}, not an object")
        role = message.get("role")
        read = _READ.get(role) if isinstance(role, str) else None
        if read is None:
            raise RowError(f"message {number} has the role {role!r}")
        if not message.keys() <= read:
            self._keep(message, number, message.keys() - read)
        if role == "assistant":
            self._agent = self._open(_action(message, number), "agent")
            self._agent.train = trains(message)
        elif role == "user":
            self._user(message, number, observed)
        elif role in ("tool", "function"):
            self._result(message, number, observed)
        else:
            text = text_of(message.get("content"))
            if self.turns:
                self.turns[-1].others.append({"kind": "environment", "text": text, "data": {"role": role}, **observed})
            else:
                self.system.append(text)

    def fields(self) -> list[Fields]:
        """Return the turns as fields, to be validated together with their trajectory, which is faster than one by one."""
        return [turn.close() for turn in self.turns]

    @property
    def rest(self) -> dict[str, Any]:
        """The keys of messages that have no field, for the metadata: `message_data`, by the message's number from 1 on.

        They are not stored in the turns, because a transition's history repeats its turns.
        """
        return {"message_data": self._rest} if self._rest else {}

    def _keep(self, message: Message, number: int, unread: set[str]) -> None:
        thought = next((key for key in _THOUGHTS if message.get(key)), None)
        if message["role"] == "assistant":
            unread -= {thought, *(() if message.get("content") else ("refusal",))}
        kept = {key: value for key, value in message.items() if key in unread and value is not None}
        if kept:
            self._rest[str(number)] = kept

    def _open(self, action: Fields, actor: Actor) -> "_Open":
        turn = _Open(action, actor, len(self.turns))
        self.turns.append(turn)
        if turn.calls:
            for side in (actor, None):
                self._waiting[side][turn.number] = turn
                for call_id in turn.unanswered:
                    self._by_id.setdefault((side, call_id), []).append(turn)
        return turn

    def _user(self, message: Message, number: int, observed: Fields) -> None:
        if message.get("tool_calls") or message.get("function_call"):
            self._open(_action(message, number), "user")
        elif self._agent is None:
            self.opening.append(text_of(message.get("content")))
        else:
            self._agent.others.append({"kind": "user", "text": text_of(message.get("content")), **observed})

    def _result(self, message: Message, place: int, observed: Fields) -> None:
        side = _ACTORS.get(str(message["requestor"])) if "requestor" in message else None
        waiting, call_id = self._waiting[side], call_id_of(message)
        if self.exact and self._agent and not (self._open_calls(side, call_id) if call_id is not None else waiting):
            self._agent.others.append({**_observation(message), **observed, "kind": "environment"})
            return
        if not waiting:
            named = "" if call_id is None else f" (it names the call {shown(call_id)})"
            raise RowError(f"message {place} is a tool's result, but no call is unanswered{named}", "orphan result")
        number, turn = waiting.popitem()  # `next(reversed(waiting))` would pass by all that were removed
        waiting[number] = turn
        if call_id is not None:
            by_id = self._open_calls(side, call_id)
            turn = by_id[-1] if by_id else turn
            turn.unanswered[call_id] -= 1
        turn.results.append((call_id, _observation(message) | observed))
        if not turn.waiting:
            del self._waiting[turn.actor][turn.number], self._waiting[None][turn.number]

    def _open_calls(self, side: Actor | None, call_id: str) -> "list[_Open]":
        """Return the turns with calls of an id, the last of them with an unanswered one."""
        by_id = self._by_id.get((side, call_id), [])
        while by_id and not (by_id[-1].waiting and by_id[-1].unanswered[call_id] > 0):
            by_id.pop()
        return by_id


class _Open:
    """A turn that may still get answers."""

    __slots__ = ("action", "actor", "calls", "number", "others", "results", "train", "unanswered")

    def __init__(self, action: Fields, actor: Actor, number: int) -> None:
        self.action, self.actor, self.number = action, actor, number
        self.calls: list[Fields] = action.get("calls", [])
        self.unanswered = Counter(call["id"] for call in self.calls if call["id"] is not None)
        self.results: list[tuple[str | None, Fields]] = []  # observations, each with the id of the call that it names
        self.others: list[Fields] = []
        self.train = True

    @property
    def waiting(self) -> bool:
        return len(self.results) < len(self.calls)

    def close(self) -> Fields:
        """Return the turn's fields, with the results in the order of their calls before all other observations.

        A result belongs to the call of its id, else to the next call without a result: old formats have no ids, and real files
        repeat them.
        """
        turn = {"action": self.action, "observations": self.others, "actor": self.actor, "train": self.train}
        if not self.results:
            return turn
        calls = self.calls
        if len(calls) == 1:
            turn["observations"] = [_answer(self.results[0][1], 0, calls[0]["name"]), *self.others]
            return turn
        by_id: dict[str, list[int]] = {}
        for index in reversed(range(len(calls))):
            by_id.setdefault(calls[index]["id"], []).append(index)
        by_call: dict[int, Fields] = {}
        rest = []
        for call_id, result in self.results:
            if call_id is not None and by_id.get(call_id):
                by_call[by_id[call_id].pop()] = result
            else:
                rest.append(result)
        open_calls = (index for index in range(len(calls)) if index not in by_call)
        by_call |= dict(zip(open_calls, rest, strict=False))  # `waiting` ensures that there are enough calls
        tools = [_answer(by_call[index], index, calls[index]["name"]) for index in sorted(by_call)]
        turn["observations"] = [*tools, *self.others]
        return turn


def _answer(observation: Fields, call: int, name: str) -> Fields:
    return {"tool": name, "call": call, **observation}


def _observation(message: Message) -> Fields:
    text, error = text_of(message.get("content")), message.get("error")
    observation = {"kind": "tool", "text": text}
    if message.get("name"):
        observation["tool"] = message["name"]
    if not error:
        return observation
    flag = flag_of(error)
    data = {"error": error} if flag is None else {}  # some formats describe the error here
    return observation | {"error": flag is not False, "data": data}


def call_id_of(message: Message) -> str | None:
    """Return the id of the call that a result answers, under any of the keys that formats use; None if there is none."""
    for key in ("tool_call_id", "id"):
        if isinstance(identity := message.get(key), (str, int)):
            return str(identity)
    several = message.get("tool_call_ids")
    return str(several[0]) if isinstance(several, Sequence) and not isinstance(several, str) and several else None


def text_of(content: Any) -> str:
    """Return a message's content as text. Text parts are joined, other JSON values are written as JSON, None is empty."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") in _TEXTS for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return json.dumps(content, ensure_ascii=False)


def arguments_of(value: Any) -> Any:
    """Return a call's arguments as a JSON value. Text that is not JSON, or too deeply nested, stays text."""
    if not isinstance(value, str):
        return value
    try:
        arguments = loads(value)
    except ValueError:
        return value
    return value if len(value) > DEEPEST and deeper(arguments) else arguments


def flag_of(value: Any) -> bool | None:
    """Read a boolean that may be written as a string or a number; None for anything else."""
    if isinstance(value, str):
        return {"true": True, "false": False, "1": True, "0": False}.get(value.strip().lower())
    return bool(value) if isinstance(value, bool) or value in (0, 1) else None


def trains(message: Mapping[str, Any]) -> bool:
    """Tell whether a message may be trained on: not if its `loss` (AgentGym) or `weight` (OpenAI) is false or 0."""
    return all(flag_of(message.get(key)) is not False for key in ("loss", "weight"))


def action_of(message: Mapping[str, Any], number: int = 1) -> Action:
    """Read the action of a message."""
    return Action.model_validate(_action(message, number))


def _action(message: Mapping[str, Any], number: int) -> Fields:
    calls = message.get("tool_calls") or []
    if (legacy := message.get("function_call")) and isinstance(calls, list):
        calls = [*calls, {"function": legacy} if isinstance(legacy, dict) else legacy]
    text = text_of(message.get("content"))
    if not text and "refusal" in message:
        text = text_of(message["refusal"])
    inline, text = split(text)
    action: Fields = {"text": text}
    if calls:
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise RowError(f"message {number} has tool_calls that are no list of objects")
        action["calls"] = [_call(call, number) for call in calls]
    thought = next((message[key] for key in _THOUGHTS if message.get(key)), None)
    if thought := joined(text_of(thought), inline):
        action["thought"] = thought
    return action


def _call(call: Message, number: int) -> Fields:
    function = call.get("function")
    if not isinstance(function, dict):
        function = call
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RowError(f"message {number} has a tool call without a name")
    call_id = call.get("id")
    arguments = arguments_of(function.get("arguments"))
    return {"name": name, "arguments": arguments, "id": None if call_id is None else str(call_id)}
