"""Makes chat templates' control tokens in a text harmless, and leaves every other character as it is.

A policy's actions and a world model's answers become messages of the next question. A tokenizer reads `<|im_end|>` in a message
as the message's end, so a policy that writes it could write its own observation, or another role's turn. A space after the
first character turns such a token into plain text, which every tokenizer reads letter by letter. It neither joins separate
characters nor removes any, so that no other token can result. No paper says how it handles this.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

# Lookaheads consume only the first character, so that overlapping tokens are all found.
_TOKEN = re.compile(
    r"<(?=[|｜][^<>\n]{1,80}[|｜]>"  # <|im_end|>, <|start_header_id|>, <｜User｜>
    r"|/?(?:s|bos|eos|pad|unk|mask|cls|sep|sop|eop|gmask)>"  # </s>
    r"|/?(?:start|end)_of_(?:turn|image|text|role)>"  # <end_of_turn>
    r"|/?(?:turn|reserved|extra)[_|][^<>\n]{0,40}>|turn\|>|\|turn>"  # <turn|>, <|turn>
    r"|<(?:/?SYS)>>)"  # <<SYS>>
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK|gMASK|sMASK|CLS|SEP|PAD|BOS|EOS)\])",
    re.IGNORECASE,
)


def harmless(text: str, further: tuple[str, ...] = ()) -> str:
    """Insert a space after the first character of every control token in a text, in linear time.

    Args:
        further: a tokenizer's control tokens of unusual form.
    """
    text = _TOKEN.sub(lambda match: f"{match[0]} ", text)
    return _of(further).sub(lambda match: f"{match[0]} ", text) if further else text


def control_tokens(tokenizer: object) -> tuple[str, ...]:
    """Return a tokenizer's control tokens that `harmless` would not recognise by their form."""
    return tuple(sorted(token for token in _special(tokenizer) if len(token) > 1 and harmless(token) == token))


def _special(tokenizer: object) -> Iterable[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {
        *getattr(tokenizer, "all_special_tokens", ()),
        *(token.content for token in added.values() if token.special),
    }


@lru_cache
def _of(tokens: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in tokens))
