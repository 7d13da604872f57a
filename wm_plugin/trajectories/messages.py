"""Chat messages to turns: what tool-calling conversations of every kind have in common.

A turn is an assistant's message with what answers it: the results of its calls, in order, and the user's reply. Where users call
tools too (τ²-bench), their calls and results are turns of the actor `user`, and their reply answers the agent's last turn.

What the system says in the middle is observed too: before the first turn, nobody knew it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.schema import Action, Actor, Call, Observation, Turn, too_deep

_ACTORS: dict[str, Actor] = {"user": "user", "assistant": "agent"}  # τ²-bench's requestors
ROLES = {"system", "developer", "user", "assistant", "tool", "function"}


class Conversation:
    """Takes messages one by one, and gives the turns that they make."""

    def __init__(self) -> None:
        self.system: list[str] = []
        self.opening: list[str] = []  # what the user said before the agent's first turn
        self.turns: list[_Open] = []

    def add(self, message: Any, number: int) -> None:
        """The next message of the conversation.

        Raises:
            RowError: it is none, or answers nothing.
        """
        if not isinstance(message, Mapping):
            raise RowError(f"message {number} is {type(message).__name__}, not an object")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise RowError(f"message {number} has the role {role!r}")
        if role in ("system", "developer"):
            text = text_of(message.get("content"))
            if self.turns:
                self.turns[-1].others.append(Observation(kind="environment", text=text, data={"role": role}))
            else:
                self.system.append(text)
        elif role == "assistant":
            self.turns.append(_Open(action_of(message, number), "agent"))
        elif role == "user":
            self._user(message, number)
        else:
            self._result(message, number)

    def finish(self) -> tuple[Turn, ...]:
        return tuple(turn.close() for turn in self.turns)

    def _user(self, message: Mapping[str, Any], number: int) -> None:
        action = action_of(message, number)
        if action.calls:
            self.turns.append(_Open(action, "user"))
            return
        agent = next((turn for turn in reversed(self.turns) if turn.actor == "agent"), None)
        if agent is None:
            self.opening.append(action.text)
        else:
            agent.others.append(Observation(kind="user", text=action.text))

    def _result(self, message: Mapping[str, Any], number: int) -> None:
        actor: Actor | None = _ACTORS.get(str(message.get("requestor")))
        waiting = [t for t in reversed(self.turns) if t.waiting and (actor is None or t.actor == actor)]
        if not waiting:
            raise RowError(f"message {number} is a tool's result, but no call is unanswered", "orphan result")
        wanted = call_id_of(message)
        next((turn for turn in waiting if turn.wants(wanted)), waiting[0]).results.append((wanted, message))


class _Open:
    """A turn whose answers are still coming."""

    def __init__(self, action: Action, actor: Actor) -> None:
        self.action, self.actor = action, actor
        self.results: list[tuple[str | None, Mapping[str, Any]]] = []  # with the id of the call that each names
        self.others: list[Observation] = []

    @property
    def waiting(self) -> bool:
        return len(self.results) < len(self.action.calls)

    def wants(self, identity: str | None) -> bool:
        """Whether a call of this id is unanswered."""
        asked = sum(call.id == identity for call in self.action.calls)
        return identity is not None and asked > sum(named == identity for named, _ in self.results)

    def close(self) -> Turn:
        """Results in the order of their calls, and then what else was said.

        Calls are found by id where that says which, else by position: ids are missing in old formats, and repeated in real files.
        """
        open_calls = list(range(len(self.action.calls)))
        found: dict[int, Mapping[str, Any]] = {}
        rest = []
        for identity, message in self.results:
            index = next((i for i in open_calls if identity is not None and self.action.calls[i].id == identity), None)
            if index is None:
                rest.append(message)
            else:
                open_calls.remove(index)
                found[index] = message
        found |= dict(zip(open_calls, rest, strict=False))  # `waiting` has seen to it that there are enough calls
        tools = [_observation(found[index], index, self.action.calls[index].name) for index in sorted(found)]
        return Turn(action=self.action, observations=(*tools, *self.others), actor=self.actor)


def _observation(message: Mapping[str, Any], call: int, name: str) -> Observation:
    error = message.get("error")
    flag = flag_of(error)
    return Observation(
        kind="tool",
        text=text_of(message.get("content")),
        tool=message.get("name") or name,
        call=call,
        error=flag if flag is not None else bool(error),
        data={"error": error} if flag is None and error else {},  # some say what went wrong in it
    )


def call_id_of(message: Mapping[str, Any]) -> str | None:
    """The id under which formats name the call that a result answers."""
    for key in ("tool_call_id", "id"):
        if isinstance(message.get(key), str | int):
            return str(message[key])
    several = message.get("tool_call_ids")
    return str(several[0]) if isinstance(several, Sequence) and not isinstance(several, str) and several else None


def text_of(content: Any) -> str:
    """A message's content as text: parts are joined, other JSON values are written out, None is empty."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return json.dumps(content, ensure_ascii=False)


def arguments_of(value: Any) -> Any:
    """Arguments as a JSON value; text that is none stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
        return value if too_deep(found) else found
    except (ValueError, RecursionError):
        return value


def flag_of(value: Any) -> bool | None:
    """A boolean, which some files write as a string or a number."""
    if isinstance(value, str):
        return {"true": True, "false": False, "1": True, "0": False}.get(value.strip().lower())
    return bool(value) if isinstance(value, bool) or value in (0, 1) else None


def action_of(message: Mapping[str, Any], number: int = 1) -> Action:
    """What the actor of a message did.

    Raises:
        RowError: its calls are no list of named calls; `number` is said for the message.
    """
    calls = message.get("tool_calls") or []
    if (legacy := message.get("function_call")) and isinstance(calls, list):
        calls = [*calls, {"function": legacy} if isinstance(legacy, Mapping) else legacy]
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise RowError(f"message {number} has tool_calls that are no list of objects")
    thought = message.get("reasoning_content") or message.get("reasoning") or message.get("thought")
    return Action(
        text=text_of(message.get("content")) or text_of(message.get("refusal")),
        calls=tuple(_call(call, number) for call in calls),
        thought=text_of(thought) or None,
    )


def _call(call: Mapping[str, Any], number: int) -> Call:
    function = call["function"] if isinstance(call.get("function"), Mapping) else call
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RowError(f"message {number} has a tool call without a name")
    identity = call.get("id")
    return Call(
        name=name, arguments=arguments_of(function.get("arguments")), id=None if identity is None else str(identity)
    )
