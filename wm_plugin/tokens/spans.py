"""Where a rollout's tokens came from: spans by provenance, and the tool content inside them, exact to the token.

A host appends the results of one turn's tool calls as one block of tokens: chat-template scaffold, content, scaffold, content, …,
scaffold. The contents (the tool messages) and the template are known, so nothing is searched for: the block's text is built
again, and must be what the host's tokens spell, or tokenize to exactly these tokens with character offsets. Searching the decoded
text instead breaks on a result that looks like scaffold, on repeated results, and on tokenizers that normalise.
"""

import itertools
import operator
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple, get_args

import torch

from wm_plugin.errors import UserError, shown
from wm_plugin.tokens.message import Message

# Letters and digits only, so that escaping, stripping and tokenising templates all leave it as it is.
_SENTINEL = "wmContent{}q7Zk3Vx9Lp2"
_MAX_SCAFFOLDS = 64  # that a locator caches; a policy may invent tool names

Role = Literal["tool", "user", "environment", "system"]  # environment: unknown, or of no message
ROLES = get_args(Role)
OTHER = -1  # in a column of tool numbers: a tool without figures of its own, such as a name that a policy invented
SPAN_FIELD = "env_spans"  # the column for the spans of a user's own rollouts, on either host

Mask = Any  # of a completion's tokens: a tensor, or a numpy array, whose rows are taken faster
Decode = Callable[[list[int]], str]


class Span(NamedTuple):
    """Tokens [start, end) of a completion that the policy did not sample."""

    start: int
    end: int
    role: str
    tool: str | None
    content: bool  # False: chat-template scaffold


class Ending(StrEnum):
    """How a completion ends."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"


def ending(
    ids: Sequence[int], sampled: Sequence[int] | Mask | None, *, end_ids: Container[int], limit: int | None
) -> Ending:
    """Return whether a completion is complete or truncated; the same rule on both hosts.

    It is truncated if the policy's last turn has no end token, or if it ends in environment tokens at the length limit.

    Args:
        ids: (T,) the completion's tokens, without padding.
        sampled: (T,), 1 = sampled by the policy; None: all of them.
        end_ids: the tokens that end a turn.
        limit: maximum number of a completion's tokens; None: no limit.
    """
    if not ids:
        return Ending.COMPLETE
    if sampled is None or sampled[-1]:
        return Ending.COMPLETE if ids[-1] in end_ids else Ending.TRUNCATED
    return Ending.TRUNCATED if limit is not None and len(ids) >= limit else Ending.COMPLETE


class Origin(NamedTuple):
    """A span and the facts about it. Rollouts carry these; `objectives.weigh` turns them into weights."""

    span: Span
    message: Message | None = None  # the tool's
    failed: bool = False  # the host wrote the message, because the call failed
    category: str | None = None  # the turn's, if `turn_information` is on
    ending: Ending = Ending.COMPLETE  # of the completion

    def pack(self) -> tuple[Any, ...]:
        """Convert to plain values, which survive any transport between processes."""
        return (*self.span, self.message, self.failed, self.category, self.ending.value)

    @classmethod
    def unpack(cls, values: Sequence[Any]) -> "Origin":
        *span, message, failed, category, how = values
        return cls(Span(*span), message, failed, category, Ending(how))


class ToolBlock(NamedTuple):
    """The results of one turn's tool calls, as the host appended them."""

    tools: tuple[str | None, ...]  # one name a result; None: it is the user's message
    contents: tuple[str, ...]
    ids: list[int]  # the block's tokens in the completion
    full_ids: list[int] | None = None  # the whole block, if the completion ends inside it


class SpanError(RuntimeError):
    """The origin of tokens cannot be determined exactly. Training on a guess would be silent, so this stops the run."""


# Texts in which white space begins a token: some tokenizers drop it, write it differently, or leave it out of the offsets.
_PROBES = ["\n ", "a b", "\n a"]
_UNKNOWN = "\ufffd"  # stands for a token that spells nothing; no compared text contains it

_Key = tuple[
    tuple[str | None, ...], tuple[str, ...], tuple[int, ...], tuple[int, ...] | None
]  # a ToolBlock as a dict's key
Encode = Callable[[list[str]], list[tuple[list[int], list[int]]]]
Render = Callable[[Sequence[str | None], Sequence[str]], str]


class ContentLocator:
    """Locates each result's content inside the blocks of a batch.

    Args:
        encode: texts -> for each, its token ids and the index of each token's first character.
        render: (tool names, contents) -> the text in which a block ends, whatever conversation stands before it. The name None
            is the user's.
        decode: token ids -> text. If given, a block whose tokens spell the text one by one is not tokenized again, which pays off
            over many blocks.
    """

    def __init__(self, encode: Encode, render: Render, decode: Decode | None = None) -> None:
        self._encode = encode
        self._render = render
        self._scaffolds: dict[tuple[str | None, ...], list[str]] = {}
        self._spellings = None if decode is None else _Spellings(decode)
        if self._spellings is not None and not self._spellings.agree(_PROBES, encode(_PROBES)):
            self._spellings = None

    def locate(self, blocks: Sequence[ToolBlock]) -> list[list[tuple[int, int]]]:
        """Return the content tokens [start, end) of each result of each block, counted from the block's start.

        A token belongs to the region in which its first character lies.

        Raises:
            SpanError: the tokens cannot be reproduced from the messages and the template.
        """
        # the completions of one prompt often share results: each is located once
        keys = [(b.tools, b.contents, tuple(b.ids), None if b.full_ids is None else tuple(b.full_ids)) for b in blocks]
        distinct = dict(zip(keys, blocks, strict=True))
        found: dict[_Key, list[tuple[int, int]]] = {}
        texts: dict[_Key, tuple[str, list[tuple[int, int]]]] = {}  # texts to tokenize, and their contents' ranges
        for key, block in distinct.items():
            text, chars = _interleave(self._scaffold(block.tools), block.contents)
            ranges = self._spelt_ranges(block, text, chars)
            if ranges is None:
                texts[key] = text, chars
            else:
                found[key] = ranges
        encoded = self._encode([text for text, _ in texts.values()]) if texts else []
        for (key, (_, chars)), tokens in zip(texts.items(), encoded, strict=True):
            ranges = _token_ranges(distinct[key], tokens, chars)
            found[key] = self._locate_transformed(distinct[key]) if ranges is None else ranges
        return [found[key] for key in keys]

    def _spelt_ranges(
        self, block: ToolBlock, text: str, chars: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]] | None:
        """Return the token ranges of the character ranges from the tokens alone, or None if they do not spell the text."""
        ids = block.ids if block.full_ids is None else block.full_ids
        starts = None if self._spellings is None else self._spellings.starts(text, ids)
        return None if starts is None else _token_ranges(block, (ids, starts), chars)

    def _scaffold(self, tools: tuple[str | None, ...]) -> list[str]:
        """Return the literal text around the contents: one piece more than there are results."""
        if tools not in self._scaffolds:
            if len(self._scaffolds) >= _MAX_SCAFFOLDS:
                self._scaffolds.pop(next(iter(self._scaffolds)))
            sentinels = [_SENTINEL.format(index) for index in range(len(tools))]
            self._scaffolds[tools] = _split_at(self._render(tools, sentinels), sentinels)
        return self._scaffolds[tools]

    def _locate_transformed(self, block: ToolBlock) -> list[tuple[int, int]]:
        """Handle templates that change a content (strip it, write it as JSON): render each alone to see what becomes of it."""
        rendered = []
        for tool, content in zip(block.tools, block.contents, strict=True):
            before, after = self._scaffold((tool,))
            text = self._render((tool,), (content,))
            if not (text.startswith(before) and text.endswith(after) and len(text) >= len(before) + len(after)):
                raise SpanError(_mismatch(block, "the chat template changes its scaffold with the content"))
            rendered.append(text[len(before) : len(text) - len(after)])
        text, chars = _interleave(self._scaffold(block.tools), rendered)
        ranges = _token_ranges(block, self._encode([text])[0], chars)
        if ranges is None:
            raise SpanError(_mismatch(block, "the tokens in the rollout are not those of the tool messages"))
        return ranges


class _Spellings(dict[int, str]):
    """The spelling of each token on its own: the characters that it was made of, for most of today's tokenizers."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def __missing__(self, token: int) -> str:
        spelling = self[token] = self._decode([token]) or _UNKNOWN
        return spelling

    def agree(self, texts: list[str], encoded: list[tuple[list[int], list[int]]]) -> bool:
        """Whether the tokens of some of these texts spell them, and begin where the tokenizer says."""
        pairs = [(self.starts(text, ids), starts) for text, (ids, starts) in zip(texts, encoded, strict=True) if ids]
        spelt = [(found, given) for found, given in pairs if found is not None]
        return bool(spelt) and all(found == given for found, given in spelt)

    def starts(self, text: str, ids: Sequence[int]) -> list[int] | None:
        """Return the index of each token's first character, if the tokens spell the end of `text`.

        None: they do not, or the text has characters that normalisers change or that span several tokens.
        """
        spellings = [self[token] for token in ids]
        spelt = "".join(spellings)
        if not text.isascii() or not text.endswith(spelt):
            return None
        return list(itertools.accumulate(map(len, spellings), initial=len(text) - len(spelt)))[:-1]


def block_spans(block: ToolBlock, contents: Sequence[tuple[int, int]], offset: int) -> list[tuple[Span, int]]:
    """Return the spans of a block that starts at token `offset`, each with the index of the result that it belongs to.

    Scaffold before a content belongs to that result, the scaffold at the end (including the next turn's header) to the last one.
    Empty spans are left out.
    """
    spans: list[tuple[Span, int]] = []
    position, index = 0, 0

    def add(index: int, start: int, end: int, content: bool) -> None:
        if end > start:
            tool = block.tools[index]
            role = "user" if tool is None else "tool"
            spans.append((Span(offset + start, offset + end, role, tool, content), index))

    for index, (start, end) in enumerate(contents):
        add(index, position, start, False)
        add(index, start, end, True)
        position = end
    add(index, position, len(block.ids), False)
    return spans


def read_spans(values: Iterable[Any], sampled: Mask) -> list[Span]:
    """Read a user's own `env_spans`: (start, end, role, tool, content) each, clipped where the completion was.

    Args:
        sampled: (T,), 1 = sampled by the policy.

    Raises:
        UserError: a value is no span, lies on sampled tokens, or overlaps another.
    """
    spans: list[Span] = []
    length = len(sampled)
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise UserError(
            f"{SPAN_FIELD} is {shown(values)}; write a list of (start, end, role, tool or None, content: bool)"
        )
    for value in values:
        try:
            span = Span(**value) if isinstance(value, Mapping) else Span(*value)
            start, end = operator.index(span.start), operator.index(span.end)
            fits = span.role in ROLES and isinstance(span.tool, str | None) and span.content in (True, False)
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise UserError(
                f"{SPAN_FIELD}: {shown(value)} is not a span; write (start, end, role, tool or None, content: bool), with a role "
                f"of {', '.join(ROLES)}"
            ) from None
        if not 0 <= start <= end:
            raise UserError(f"{SPAN_FIELD}: {shown(value)} ends before it starts, or starts below 0")
        clipped = span._replace(start=min(start, length), end=min(end, length))
        if sampled[clipped.start : clipped.end].any():
            raise UserError(f"{SPAN_FIELD}: {shown(value)} covers tokens that the policy sampled")
        spans.append(clipped)
    spans.sort(key=lambda span: span[:2])
    for before, after in itertools.pairwise(spans):
        if after.start < before.end:
            raise UserError(f"{SPAN_FIELD}: {tuple(before)} and {tuple(after)} overlap")
    return [span for span in spans if span.end > span.start]


def zero_runs(mask: Mask) -> list[tuple[int, int]]:
    """Return the maximal runs [start, end) of 0 in a mask (T,), 1 = sampled by the policy."""
    sampled = mask != 0
    # searching bytes is fifty times faster than scanning a tensor
    values = (sampled.cpu().numpy() if isinstance(sampled, torch.Tensor) else sampled).tobytes()
    runs: list[tuple[int, int]] = []
    end = 0
    while (start := values.find(0, end)) >= 0:
        end = values.find(1, start)
        if end < 0:
            return [*runs, (start, len(values))]
        runs.append((start, end))
    return runs


def texts_of(spans: Sequence[Span], ids: Sequence[int], sampled: Mask, decode: Decode) -> list[tuple[str, str]]:
    """Return the texts (action, observation) of the turn of each span without messages, from the tokens.

    The action is what the policy sampled right before the environment's tokens, the same for several results in a row. The
    observation is a content span's own text; for scaffold it is that of the content it belongs to, the next or the last one.

    Args:
        ids: (T,). sampled: (T,), 1 = sampled by the policy.
        decode: token ids -> text, without special tokens.
    """
    texts: dict[Span, tuple[str, str]] = {}
    ordered = sorted(spans, key=lambda span: span.start)
    starts = [span.start for span in ordered]
    before = 0
    for start, end in zero_runs(sampled):
        action = decode(list(ids[before:start]))
        inside = ordered[bisect_left(starts, start) : bisect_left(starts, end)]
        contents = [span for span in inside if span.content]
        begins = [content.start for content in contents]
        said = [decode(list(ids[content.start : content.end])) for content in contents]
        for span in inside:
            place = min(bisect_left(begins, span.start), len(said) - 1)
            texts[span] = action, said[place] if said else decode(list(ids[span.start : span.end]))
        before = end
    return [texts.get(span, ("", "")) for span in spans]  # an empty span has neither


def token_weights(
    rows: Sequence[Sequence[tuple[Span, float]]], length: int, tools: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert spans and their multipliers to the columns that travel with a batch.

    Args:
        rows: for each completion, its spans and the multiplier of each (0 = not selected).
        length: T, the padded length of a completion.
        tools: names that have metrics of their own, in order.

    Returns:
        weights: (B, T) float32; 0 = the token does not count.
        tool_ids: (B, T) int16; 0 = not selected or of no tool, k = `tools[k - 1]`, `OTHER` = any other tool.
    """
    number = {tool: index + 1 for index, tool in enumerate(tools)}
    weights = torch.zeros(len(rows), length, dtype=torch.float32)
    tool_ids = torch.zeros(len(rows), length, dtype=torch.int16)
    selected = [
        (row, span.start, span.end - span.start, weight, 0 if span.tool is None else number.get(span.tool, OTHER))
        for row, spans in enumerate(rows)
        for span, weight in spans
        if weight != 0
    ]
    if selected:  # one write for all spans: a loop over them would cost more than locating them
        of_row, starts, counts, values, numbers = map(torch.tensor, zip(*selected, strict=True))
        # Token k of a span lies k after its start: its index over all spans, minus the tokens of earlier spans.
        before = counts.cumsum(0) - counts
        columns = torch.arange(int(counts.sum())) + (starts - before).repeat_interleave(counts)
        index = of_row.repeat_interleave(counts), columns
        weights[index] = values.float().repeat_interleave(counts)
        tool_ids[index] = numbers.to(torch.int16).repeat_interleave(counts)
    return weights, tool_ids


def _interleave(pieces: Sequence[str], contents: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text piece, content, piece, …, and the character range of each content."""
    text, ranges = "", []
    for index, piece in enumerate(pieces):
        text += piece
        if index < len(contents):
            ranges.append((len(text), len(text) + len(contents[index])))
            text += contents[index]
    return text, ranges


def _split_at(text: str, sentinels: Sequence[str]) -> list[str]:
    pieces, place = [], 0
    for sentinel in sentinels:
        start = text.find(sentinel, place)
        if start < 0:
            raise SpanError(
                "the chat template does not write a tool result's content as text; "
                "use a template that does, or coeff 0 to train without the world-model term"
            )
        pieces.append(text[place:start])
        place = start + len(sentinel)
    return [*pieces, text[place:]]


def _token_ranges(
    block: ToolBlock, encoded: tuple[list[int], list[int]], chars: Sequence[tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """Return the token ranges of the character ranges, or None if the encoded text does not end in the block's tokens."""
    ids, starts = encoded
    full = block.ids if block.full_ids is None else block.full_ids
    first = len(ids) - len(full)
    if first < 0 or ids[first:] != full or (full is not block.ids and full[: len(block.ids)] != block.ids):
        return None
    starts = starts[first : first + len(block.ids)]
    return [(bisect_left(starts, begin), bisect_left(starts, end)) for begin, end in chars]


def _mismatch(block: ToolBlock, reason: str) -> str:
    return (
        f"cannot tell which tokens are the content of {', '.join(name or 'a user message' for name in block.tools)}: {reason}. "
        "Use a chat template that renders tool results as they are, or coeff 0 to train without the world-model term"
    )
