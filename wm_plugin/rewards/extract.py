"""Extract the prediction from a model's output: reasoning stands in `<think>`, the prediction in a tag or after the reasoning.

A reward must see nothing but the prediction: anything else that the model writes, such as praise of its prediction, could
influence it. The rules are therefore strict, and an output that breaks them has no prediction.

    <think> ... </think> <next_state> ... </next_state>      RWML
    <predicted_observation> ... </predicted_observation>     Qwen-AgentWorld
    the whole answer                                         Word2World
"""

import re
from typing import NamedTuple

from wm_plugin.errors import UserError, shown

# End-of-turn tokens of chat templates, in case a host left them in the text.
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
# Matched on the reversed text, in linear time. The possessive quantifiers keep no backtracking state, which would take 90 bytes
# a character.
_ENDS_BACKWARDS = re.compile(rf"(?:\s++|{'|'.join(re.escape(mark[::-1]) for mark in _ENDS)})*+")
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class Prediction(NamedTuple):
    """The parts of an output, without surrounding white space.

    Attributes:
        reasoning: the text in `<think>`, without the tags.
        prediction: None if there is none. An empty text is a prediction: nothing will be observed.
    """

    reasoning: str
    prediction: str | None


def extract(text: str, tag: str = "next_state") -> Prediction:
    """Split a model's output into reasoning and prediction. Accepts any text; takes linear time.

    * Reasoning ends at the last `</think>`. Its `<think>` may be missing, because some chat templates put it into the prompt.
    * A `<think>` after that is never closed, and everything after it is reasoning too.
    * A tag inside the reasoning holds no prediction.
    * Of several `<tag>` the last one counts, even inside another. It ends at the next `</tag>` or, without one, at the end of the
      text or at an end-of-turn token there, such as `<|im_end|>`.
    * Without a `<tag>` after the reasoning there is no prediction.

    Args:
        tag: the tag's name without angle brackets. Empty: everything after the reasoning is the prediction.
    """
    before, _, answer = text.rpartition("</think>")
    answer, opened, unclosed = answer.partition("<think>")
    thoughts = (before.strip().removeprefix("<think>").strip(), unclosed.strip())
    reasoning = "\n".join(filter(None, thoughts))
    if tag:
        _, opening, answer = answer.rpartition(f"<{tag}>")
        if not opening:
            return Prediction(reasoning, None)
        answer, closed, _ = answer.partition(f"</{tag}>")
        return Prediction(reasoning, answer.strip() if closed else _without_ends(answer))
    answer = _without_ends(answer)
    return Prediction(reasoning, None if opened and not answer else answer)


def check_tag(tag: str | None) -> None:
    """Raise a UserError unless this can be a tag's name; None and an empty text can."""
    if tag and not _NAME.fullmatch(tag):
        raise UserError(
            f"tag is {shown(tag)}; write its name without angle brackets, such as next_state, or '' for none"
        )


def _without_ends(text: str) -> str:
    match = _ENDS_BACKWARDS.match(text[::-1])
    return text[: len(text) - match.end()].strip() if match else text
