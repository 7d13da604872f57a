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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import Start, Wrapper, dress, layers_of, tool_names

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
    """Return the text of the actions in an answer, or None. Takes time in proportion to the answer.

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
    """Return whether a prompt ends in an open `<think>`."""
    return prompt.rstrip().endswith("<think>")


def takes_tags(environment: Any) -> bool:
    """Return whether an environment, or its class, is one of `in_tags`."""
    return any(issubclass(kind, Tagged) for kind, *_ in layers_of(environment))


def in_tags(environment: Any, protocol: str = "tags") -> type:  # noqa: ARG001 - called as all wrappers are
    """Return the class of `environment` whose one tool is `act(actions)`.

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
    if any(getattr(options, "depth", 1) > 1 for _, options, _ in layers_of(environment)):
        raise UserError("verify.depth is of an agent that calls tools; write depth: 1, or protocol: tools")
    return dress(environment, Tagged)


class Tagged(Wrapper):
    """A world whose one tool takes the text between tags."""

    def __init__(self, world: Wrapper, options: Any, environment: type) -> None:
        super().__init__(world, options, environment)
        (self._tool,) = tool_names(environment)
        self._parameter = list(inspect.signature(getattr(environment, self._tool)).parameters)[1]
        several = getattr(environment, "_max_actions", 1) > 1
        self._form = FORM.replace("{example}", SEVERAL if several else ONE)

    @classmethod
    def tools(cls, environment: type, options: Any) -> dict[str, Callable[..., Any]]:  # noqa: ARG003
        return {TOOL: cls.act}

    def reset(self, columns: dict[str, Any], start: Start) -> str:
        observation = self.world.reset(columns, start)
        return f"{'' if observation is None else observation}\n{self._form}"

    def act(self, actions: str) -> str:
        """Run the actions.

        Args:
            actions: One action or several, separated by semicolons.

        Returns:
            What is observed after the last.
        """
        return str(self.world.call(self._tool, {self._parameter: actions}))

    def call(self, tool: str, arguments: dict[str, Any]) -> str:  # noqa: ARG002 - there is one
        return self.act(**arguments)

    def turn(self, action: Action, results: Sequence[str]) -> None:
        # in the words of the world's tool, since no world model of tools was shown the answer's text
        calls = tuple(
            Call(name=self._tool, arguments={self._parameter: _only(call.arguments)}) for call in action.calls
        )
        self.world.turn(action.model_copy(update={"text": "" if calls else action.text, "calls": calls}), results)


def _only(arguments: Any) -> Any:
    return next(iter(arguments.values()), "") if isinstance(arguments, Mapping) else arguments
