"""One conversation for the data's reader and both hosts: the same turn has the same category, and so the same ratio, everywhere.

In it are reasoning, text beside calls, parallel calls, letters beyond ASCII and line breaks in arguments. Each would change a
category if it were taken for something else.
"""

import json
from typing import Any

from wm_plugin.data.schema import Action, Observation
from wm_plugin.data.turn_texts import action_text
from wm_plugin.objectives.information import KEEP, category

THOUGHT = "I wonder about many things that nobody will ever see"
NUMBERS = "one two three four five six seven eight nine"
ANSWERS = {
    "echo": "ask key echo note größer 漢字",
    "page": " ".join(f"word{number}" for number in range(30)),
    "form": "form alpha beta done now",
    "count": "one two yes",
}
# Each turn: reasoning, text, and the arguments of its calls of `ask`.
TURNS: list[tuple[str, str, list[dict[str, str]]]] = [
    (THOUGHT, "Now.", [{"key": "echo", "note": "größer 漢字"}, {"key": "page", "note": "go"}]),
    ("", "", [{"key": "form", "note": "alpha\nbeta"}]),
    (THOUGHT, "", [{"key": "count", "note": NUMBERS}]),
    ("", "done", []),
]
CATEGORIES = ["echo", "retrieval", "boilerplate", "transform"]  # by hand, in the order of the calls
RATIOS = [0.05, 1.0, 0.1, 0.5]


def keep_ratio(action: Action, observation: Observation) -> float:
    return KEEP[category(action_text(action, observation.call), observation.text)]


class Oracle:
    """Answers by the key alone."""

    def reset(self, **_: Any) -> None: ...

    def ask(self, key: str, note: str) -> str:
        """Ask.

        Args:
            key: What.
            note: Anything.

        Returns:
            The answer.
        """
        return ANSWERS[key]


def said() -> list[str]:
    """What the policy says, turn by turn, in the form of Qwen's templates."""
    texts = []
    for thought, text, calls in TURNS:
        parts = [f"<think>\n{thought}\n</think>\n\n"] if thought else []
        written = [json.dumps({"name": "ask", "arguments": arguments}, ensure_ascii=False) for arguments in calls]
        parts += [text, *(f"\n<tool_call>\n{call}\n</tool_call>" for call in written)]
        texts.append("".join(parts))
    return texts


def messages() -> list[dict[str, Any]]:
    """The same in OpenAI's form: reasoning apart, arguments as JSON text, results by the id of their call."""
    found: list[dict[str, Any]] = []
    for number, (thought, text, calls) in enumerate(TURNS):
        message = {"role": "assistant", "content": text, "reasoning_content": thought}
        ids = [f"{number}-{index}" for index in range(len(calls))]
        functions = [{"name": "ask", "arguments": json.dumps(arguments)} for arguments in calls]
        if calls:
            message["tool_calls"] = [
                {"id": identity, "type": "function", "function": function}
                for identity, function in zip(ids, functions, strict=True)
            ]
        found.append(message)
        found += [
            {"role": "tool", "tool_call_id": identity, "content": ANSWERS[arguments["key"]]}
            for identity, arguments in zip(ids, calls, strict=True)
        ]
    return found
