"""Thoughts in an assistant's content, as servers without a reasoning parser leave them: no part of the action.

A world gets the action and not the thought. The thought becomes `Action.thought` with its tags, which tell that it stood in the
content, so that `content_of` gives back the content as it was, for the agent's own prompts. A thought that was recorded apart has
no tags.

* A thought ends at the last `</think>`. Its `<think>` may be missing: some chat templates put it into the prompt.
* A `<think>` after that is never closed, and all that follows it is thought, too.
* Inside `<tool_call>…</tool_call>` neither counts: it is an argument.
"""

from wm_plugin.data.schema import Action, Fields

OPEN, CLOSE = "<think>", "</think>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"


def split(content: str) -> tuple[str | None, str]:
    """Split a content into its thought, with its tags, and the action; None without a thought. Time is linear in its length."""
    end = _last_end(content) if CLOSE in content else 0
    while end and end < len(content) and content[end].isspace():
        end += 1
    call = content.find(_CALL, end)
    opened = content.find(OPEN, end, call if call >= 0 else len(content))
    stop = opened if opened >= 0 else len(content)
    return content[:end] + content[stop:] or None, content[end:stop]


def content_of(action: Action) -> str:
    """Return the content of an assistant's message: the action's text, with the thought if it stood there."""
    if not is_inline(action.thought):
        return action.text
    thought = action.thought or ""
    end = thought.rfind(CLOSE)
    end = end + len(CLOSE) if end >= 0 else 0
    while end and end < len(thought) and thought[end].isspace():
        end += 1
    return thought[:end] + action.text + thought[end:]


def is_inline(thought: str | None) -> bool:
    """Tell whether a thought stood in the content."""
    return thought is not None and (CLOSE in thought or thought.startswith(OPEN))


def words(thought: str | None) -> str:
    """Return a thought without its tags."""
    return (thought or "").replace(OPEN, "").replace(CLOSE, "").strip()


def joined(*thoughts: str | None) -> str | None:
    """Join thoughts from several places."""
    return "\n\n".join(filter(None, thoughts)) or None


def react(text: str) -> Fields:
    """Read an action that may stand after `Action:`, as in AgentGym's rollouts, with the thought before it."""
    inline, said = split(text)
    thought, mark, action = said.rpartition("Action:")
    return (
        {"text": action.strip(), "thought": joined(inline, thought.strip())}
        if mark
        else {"text": said, "thought": inline}
    )


def _last_end(content: str) -> int:
    """Find the end of the last `</think>` outside of calls; 0 without one."""
    last, place, calls = -1, 0, True
    while calls:
        start = content.find(_CALL, place)
        close = content.find(_CALL_END, start) if start >= 0 else -1
        calls = close >= 0
        last = max(last, content.rfind(CLOSE, place, start if calls else len(content)))
        place = close + len(_CALL_END)
    return last + len(CLOSE) if last >= 0 else 0
