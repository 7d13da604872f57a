"""WMAct's text protocol: the policy writes `<think>…</think><action>move up; push left</action>` instead of calling a tool.

`in_tags(SokobanEnvironment)` is the environment with one tool, `act`, and with a last paragraph in its first observation that
asks for this form. The hosts' loops read answers with `actions_of`, show no tools in the prompt, and write observations as the
user's. Both use it by `protocol: tags`.

In an answer the thinking is left out, and what stands between action tags after it is one text of actions; of several pairs of
tags, all are run in their order. An answer without a closed pair has no action, and neither has one that was cut.

As in the paper, every observation is followed by a request for this form (`REMINDER`), shorter here than the first and the same
for all environments. Hosts write it as scaffold: it is no part of what is observed, and ECHO does not predict it.
"""

import inspect
import re
from functools import lru_cache
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.protocol import tool_names

PROTOCOLS = ("tools", "tags")
TOOL, PARAMETER = "act", "actions"  # of any environment in this protocol
_TAG = re.compile(r"</?(?:think|action)>")

FORM = """
Answer every turn in two parts. First think, between <think> and </think>: about what the map or text shows, what your last
actions did and what to do next. Right after it write what you do between <action> and </action>, and end your turn: {example}
"""
REMINDER = "\n\nUntil the episode is over, think between <think> and </think>, then act between <action> and </action>."
ONE, SEVERAL = (
    "<action>your action</action>",
    "<action>first action; second action</action>, one action or several, separated by semicolons.",
)


def actions_of(answer: str, *, thinking: bool = False) -> str | None:
    """The text of the actions in an answer; None if there is none. Takes time in proportion to the answer.

    Args:
        answer: with its special tokens, since some tokenizers count the tags among them.
        thinking: the prompt has begun the answer with `<think>`, as some templates do (`begins_to_think`).
    """
    texts: list[str] = []
    inside, start = "think" if thinking else "", 0
    for tag in _TAG.finditer(answer):
        name = tag[0]
        if inside == "action":
            if name == "</action>":
                texts.append(answer[start : tag.start()])
                inside = ""
        elif name == "</think>":
            if not inside:  # somebody else began to think: what stood before it were thoughts
                texts.clear()
            inside = ""
        elif name in ("<think>", "<action>") and not inside:
            inside, start = name[1:-1], tag.end()
    return "; ".join(texts) if texts else None


def begins_to_think(prompt: str) -> bool:
    """Whether a prompt ends in an open `<think>`."""
    return prompt.rstrip().endswith("<think>")


def takes_tags(environment: Any) -> bool:
    """Whether an environment, or its class, is one of `in_tags`."""
    return bool(getattr(environment, "_wm_in_tags", False))


@lru_cache  # the same class each time a config is read
def in_tags(environment: Any) -> type:
    """A subclass of `environment`, of the same name, whose one tool is `act(actions)`.

    Raises:
        UserError: the environment has more than one tool, or one of other arguments than a text.
    """
    names = tool_names(environment)
    method: Any = getattr(environment, names[0]) if len(names) == 1 else None
    parameters = list(inspect.signature(method).parameters.values())[1:] if method else []
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if (
        method is None
        or inspect.iscoroutinefunction(method)
        or inspect.iscoroutinefunction(environment.reset)
        or len(required) != 1
        or required[0].annotation not in (str, "str")
    ):
        raise UserError(
            f"protocol: tags writes one text of actions, and {environment.__name__} has the tools {', '.join(names) or 'none'}; "
            "take an environment of one tool with one text that is not awaited, or protocol: tools"
        )
    form = FORM.replace("{example}", SEVERAL if getattr(environment, "_max_actions", 1) > 1 else ONE)

    class Tagged(environment):  # type: ignore[misc]
        _wm_in_tags = True

        def reset(self, *args: Any, **columns: Any) -> str:
            observation = super().reset(*args, **columns)
            return f"{'' if observation is None else observation}\n{form}"

        def act(self, actions: str) -> str:
            """Run the actions.

            Args:
                actions: One action or several, separated by semicolons.

            Returns:
                What is observed after the last.
            """
            return str(method(self, actions))

    Tagged.reset.__signature__ = inspect.signature(environment.reset)  # type: ignore[attr-defined]  # its columns
    if names[0] != TOOL:
        setattr(Tagged, names[0], _Hidden(method))
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Tagged, name, getattr(environment, name))
    return Tagged


class _Hidden:
    """A method that is none to those who list a class's functions; the class itself may still call it."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._method.__get__(instance, owner)
