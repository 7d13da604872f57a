"""Where a trajectory's tokens came from, on verl: the content of each tool result among the tokens that verl appended for it.

verl tokenises a block of tool messages behind a conversation that it makes up for the purpose. The same text is put together
here; the arithmetic is `objectives.spans`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from verl.utils.tokenizer import continuous_token
from verl.utils.tokenizer.chat_template import apply_chat_template

from wm_plugin.tokens.chat import Chat, users
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.spans import ContentLocator, Origin, Span, SpanError, ToolBlock, block_spans, zero_runs
from wm_plugin.tokens.tokenizer import turn_ends


class Block(NamedTuple):
    """The results of one turn's calls in a response."""

    start: int  # first token, counted from the response's start
    ids: list[int]
    messages: list[Message]  # each with the `name` of its tool
    failed: list[bool]  # for each message, whether the host made it up
    categories: list[str] | None = None  # of each message's turn, where they are asked for


def make_locator(
    builder: Any, schemas: Sequence[Mapping[str, Any]] | None, reminder: str | None = None
) -> ContentLocator:
    """For the blocks that `builder`, a `ContinuousTokenBuilder`, makes of tool messages; `schemas` are those in the prompt.

    Args:
        reminder: None: results are a tool's messages. A text: they are the user's, one a turn, with this text after it.
    """

    def render(tools: Sequence[str | None], contents: Sequence[str]) -> str:
        before = [continuous_token._SYNTHETIC_SYSTEM_MESSAGE, continuous_token._SYNTHETIC_USER_MESSAGE]
        results = _results(builder, tools, contents) if reminder is None else users(contents, reminder)
        if reminder is None:
            before.append(builder._synthetic_assistant_for_tools(results))
        fused = builder._should_fuse_generation_prompt_with_last_group()
        if reminder is None and isinstance(builder, continuous_token.GptOssContinuousTokenBuilder):
            # verl writes these itself: the template would write the first call's name into each
            text = "".join(map(builder._format_tool_response, results, tools))
        else:
            text = apply_chat_template(
                builder.tokenizer,
                [*before, *results],
                tokenize=False,
                add_generation_prompt=fused,
                tools=schemas,
                **builder.chat_template_kwargs,
            )
        if not fused:
            ids = builder._tokenize_generation_prompt_delta([*before, *results], tools=schemas)
            text += builder.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text

    return ContentLocator(Chat(builder.tokenizer).encode, render)


def _results(builder: Any, tools: Sequence[str | None], contents: Sequence[str]) -> list[Message]:
    """Results as the builder has them: without names, except for Gemma 4, whose template writes the name of each."""
    results: list[Message] = [{"role": "tool", "content": content} for content in contents]
    if isinstance(builder, continuous_token.Gemma4ContinuousTokenBuilder):
        for place, (result, tool) in enumerate(zip(results, tools, strict=True)):
            result |= {"name": tool, "tool_call_id": f"call_{place}"}
    return results


def locate(blocks: Sequence[Block], response_mask: Sequence[int], locator: ContentLocator) -> list[Origin]:
    """Return the environment's spans in a response, in order.

    Args:
        blocks: the tool results in it.
        response_mask: (T,), 1 = sampled by the policy.

    Raises:
        SpanError: a block's tokens are not those of its messages, or cover tokens that the policy sampled.
    """
    tool_blocks = [
        ToolBlock(tuple(m["name"] for m in block.messages), tuple(_text(m) for m in block.messages), block.ids)
        for block in blocks
    ]
    all_origins: list[Origin] = []
    first: dict[int, Origin] = {}  # by the token at which a block starts
    rest = torch.tensor(response_mask)
    for block, tool_block, ranges in zip(blocks, tool_blocks, locator.locate(tool_blocks), strict=True):
        end = block.start + len(block.ids)
        if end > len(rest) or rest[block.start : end].any():
            raise SpanError(
                f"the results of {', '.join(map(str, tool_block.tools))} lie on tokens that the policy sampled, or outside the "
                "response: an agent loop that moves tokens afterwards must give env_spans itself"
            )
        rest[block.start : end] = 1
        categories: Sequence[str | None] = block.categories or [None] * len(block.messages)
        origins = [
            Origin(span, block.messages[index], block.failed[index], categories[index])
            for span, index in block_spans(tool_block, ranges, block.start)
        ]
        if origins:
            first[block.start] = origins[0]
        all_origins += origins
    for start, end in zero_runs(rest):
        # what verl puts between a turn's end and the results, such as a line break, is scaffold of the first result
        origin = first.get(end, Origin(Span(start, end, "environment", None, False), category="other"))
        all_origins.append(origin._replace(span=origin.span._replace(start=start, end=end, content=False)))
    return sorted(all_origins, key=lambda origin: origin.span.start)


def probe(builder: Any, reminder: str | None = None, *, parallel: bool = True) -> None:
    """Try the locator on made-up results; `reminder` is as in `make_locator`.

    Args:
        parallel: whether a turn may have several calls.

    Raises:
        SpanError: the chat template or the tokenizer cannot be followed.
    """
    contents = ("first result", "second\nresult")
    for count in (1, 2) if parallel and reminder is None else (1,):
        messages = [{"role": "tool", "name": "tool", "content": content} for content in contents[:count]]
        answer: dict[str, Any] = {"role": "assistant", "content": "a"}
        if reminder is None:
            call = {"type": "function", "function": {"name": "tool", "arguments": {}}}
            answer = {"role": "assistant", "content": "", "tool_calls": [call] * count}
            results = [{"role": "tool", "content": content} for content in contents[:count]]
        else:
            results = users(contents[:count], reminder)
        previous = [{"role": "user", "content": "q"}, answer]
        ids = builder.tokenize_context_incremental_messages(previous, [*previous, *results])
        block = Block(0, list(ids), messages, [False] * count)
        locate([block], [0] * len(ids), make_locator(builder, None, reminder))


def _text(message: Message) -> str:
    content = message["content"]
    if message["role"] != "tool" or not isinstance(content, str):
        raise SpanError(
            f"a {message['role']} message was added that is not a tool's text; the world-model term covers text results "
            "of tools: use coeff 0, or give env_spans"
        )
    return content


def end_token_ids(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a turn: the tokenizer's own, and those of the generation config beside it."""
    return frozenset({tokenizer.eos_token_id, tokenizer.pad_token_id, *_turn_ends(str(tokenizer.name_or_path))})


@cache  # read once a process: the loop asks for every trajectory
def _turn_ends(name: str) -> list[int]:
    return turn_ends(name, local_files_only=True)
