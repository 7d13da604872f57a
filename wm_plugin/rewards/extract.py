"""What a model predicts, taken out of all that it says: reasoning in `<think>`, the prediction in a tag or after the reasoning.

A reward sees the prediction alone. Whatever else a model writes, praise of its own prediction above all, must not reach it: the
rules are strict, and an output that does not follow them has no prediction.

    <think> ... </think> <next_state> ... </next_state>      RWML
    <predicted_observation> ... </predicted_observation>     Qwen-AgentWorld
    the whole answer                                         Word2World
"""

import re
from typing import NamedTuple

from wm_plugin.errors import UserError

# What chat templates end a turn with, where a host did not cut it off.
_ENDS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|user|>",
    "<|observation|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<｜end▁of▁sentence｜>",
)
_ENDS_BACKWARDS = re.compile(
    rf"(?:\s|{'|'.join(re.escape(mark[::-1]) for mark in _ENDS)})*"
)  # always matches, in one go
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class Prediction(NamedTuple):
    """What an output says. Both are stripped of surrounding white space.

    Attributes:
        reasoning: what the model thought, without the tags.
        prediction: None: there is none. An empty text is one: that nothing will be observed.
    """

    reasoning: str
    prediction: str | None


def extract(text: str, tag: str = "next_state") -> Prediction:
    """The reasoning and the prediction of a model's output. Takes any text, in time linear in its length.

    * Reasoning ends at the last `</think>`. Chat templates may open it in the prompt, so `<think>` need not be there.
    * A `<think>` after that was never closed: what follows it is reasoning too.
    * A tag in the reasoning is part of it, not a prediction.
    * Of several `<tag>` the last one counts, also inside another, up to the first `</tag>` after it. Without one, up to the end
      of the text, or to a mark there that ends a turn, such as `<|im_end|>`.
    * No `<tag>` after the reasoning: no prediction.

    Args:
        text: all that the model wrote.
        tag: without angle brackets; empty: what comes after the reasoning, all of it, is the prediction.
    """
    before, _, answer = text.rpartition("</think>")
    answer, opened, unclosed = answer.partition("<think>")
    thoughts = (before.strip().removeprefix("<think>").strip(), unclosed.strip())
    reasoning = "\n".join(filter(None, thoughts))
    if tag:
        _, found, answer = answer.rpartition(f"<{tag}>")
        if not found:
            return Prediction(reasoning, None)
        answer, closed, _ = answer.partition(f"</{tag}>")
        return Prediction(reasoning, answer.strip() if closed else _without_ends(answer))
    answer = _without_ends(answer)
    return Prediction(reasoning, None if opened and not answer else answer)


def check_tag(tag: str | None) -> None:
    """Raises UserError if this cannot be a tag."""
    if tag and not _NAME.fullmatch(tag):
        raise UserError(f"tag is {tag!r}; write its name without angle brackets, such as next_state, or '' for none")


def _without_ends(text: str) -> str:
    found = _ENDS_BACKWARDS.match(text[::-1])
    return text[: len(text) - found.end()].strip() if found else text
