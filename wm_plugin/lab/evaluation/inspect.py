"""Which tokens of a recorded rollout count, for which tool and with which weight, by the code of training.

A rollout of messages is assembled as in TRL: the prompt, the policy's turns, and after each turn with calls the block of their
results. The environment's tokens are exactly those of training. The chat template renders the policy's turns, which may differ in
white space from the sampled tokens.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch

from wm_plugin.data.host_dumps import is_trls
from wm_plugin.data.turn_texts import categories
from wm_plugin.errors import UserError, shown
from wm_plugin.objectives.base import Objective
from wm_plugin.objectives.weigh import origins_of_tokens
from wm_plugin.runtime import page
from wm_plugin.tokens.chat import Chat, named_results, plain_messages, turns
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.spans import ContentLocator, Origin, Span, SpanError, ToolBlock, block_spans, ending
from wm_plugin.tokens.view import LEGEND, Kind, Token, to_html

_PAGE_TOKENS, _MOST_TOKENS, _LEAST_TOKENS = 20_000, 4000, 200  # on a page, and of one rollout
_PAGE_TOOLS = 100
_IN_FULL = 16  # turns of a rollout that are always rendered after the whole history
_LEGEND: list[tuple[Token, str]] = [
    (Token("text", "prompt"), f"{LEGEND['prompt']}: what the policy was given; never counts"),
    (Token("text", "policy"), f"{LEGEND['policy']}: what it wrote; trained by the reward, not by this objective"),
    (Token("text", "content", weight=1.0), f"{LEGEND['content']}, underlined: counts in the world-model loss"),
    (Token("text", "content"), f"{LEGEND['content']}, faint: left out, for example the result of a failed call"),
    (Token("text", "scaffold"), f"{LEGEND['scaffold']}, around the content; underlined if it counts too"),
    (Token("\n", "content", weight=1.0), "a line end"),
]
_DIFFER = (
    "had other tokens in training, where another tokenizer, chat template, chat_template_kwargs or protocol wrote their prompts; "
    "name the run's own"
)
_PARTIAL = "\ufffd"  # what a decoder writes for an incomplete character


@dataclass(frozen=True)
class Piece:
    """Tokens [start, end) with one origin, counted from the prompt's first token."""

    start: int
    end: int
    kind: Kind
    role: str
    text: str
    tool: str | None = None
    weight: float = 0.0  # 0 if they do not count
    failed: bool = False  # the host wrote this result, because the call failed
    result: int | None = None  # the completion's tool message that they belong to, from 0

    @property
    def source(self) -> str:
        """The environment token's row in summaries: its tool, or its role without a tool."""
        return self.tool or self.role


@dataclass(frozen=True)
class Inspection:
    """One rollout."""

    tokens: list[Token]  # all of its tokens, the prompt's first
    prompt_tokens: int  # how many of them are the prompt's
    ids: list[int]  # their ids
    pieces: list[Piece]  # the same tokens in runs of one origin
    guessed: int = 0  # number of results that count as the host's failures only because of their text

    def tools(self) -> dict[str, dict[str, float]]:
        """Return for each tool: `tokens` that count, their mean `weight`, and all `environment_tokens`."""
        return summary([self])


def summary(inspections: Iterable[Inspection]) -> dict[str, dict[str, float]]:
    """Return `Inspection.tools` over several rollouts."""
    found: dict[str, dict[str, float]] = {}
    for piece in chain.from_iterable(inspection.pieces for inspection in inspections):
        if piece.kind in ("content", "scaffold"):
            size = piece.end - piece.start
            row = found.setdefault(piece.source, {"tokens": 0, "weight": 0.0, "environment_tokens": 0})
            row["environment_tokens"] += size
            if piece.weight:
                row["tokens"] += size
                row["weight"] += (piece.weight - row["weight"]) * size / row["tokens"]  # a running mean
    return dict(sorted(found.items()))


class Inspector:
    """Inspects rollouts with one tokenizer and one configuration.

    Args:
        config: decides which tokens count. Its coefficient is not used.
        end_ids: tokens besides the tokenizer's own that end a turn (the model's generation config names them).
    """

    def __init__(
        self,
        tokenizer: Any,
        config: Objective,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        end_ids: Iterable[int] = (),
    ) -> None:
        if not tokenizer.is_fast:
            raise UserError(
                f"{type(tokenizer).__name__} is a slow tokenizer: it gives no character offsets; load the fast one"
            )
        self._tokenizer = tokenizer
        self._config = config
        self._chat = Chat(tokenizer, chat_template, chat_template_kwargs)
        self._locator = ContentLocator(self._chat.encode, self._chat.render_results)
        self._turn_ends = {tokenizer.eos_token_id, *end_ids}
        self._end_ids = self._turn_ends | {tokenizer.pad_token_id}

    def fingerprint(self, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """Return what tells whether a run writes rollouts as this inspector does (`Chat.fingerprint`)."""
        return self._chat.fingerprint(tools)

    def messages(
        self, prompt: Sequence[Message], completion: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Inspection:
        """Inspect a rollout of messages in OpenAI's and TRL's form.

        A tool message may have the field `failed`: whether the host wrote its content. Without it the text decides.
        """
        prompt, completion = plain_messages(prompt), named_results(plain_messages(completion))
        known = {str(schema.get("function", schema).get("name")) for schema in tools} if tools else None
        ids: list[int] = []
        blocks: list[tuple[int, ToolBlock, list[Message], list[str]]] = []
        try:
            prompt_ids = self._encode(self._chat.render(prompt, add_generation_prompt=True, tools=tools))
            groups = list(turns(completion))
            written = iter(self._written(prompt, [group for _, group in groups], tools))
            for number, (role, group) in enumerate(groups):
                if role == "assistant":
                    ids += self._turn(next(written))
                else:
                    names = tuple(str(message["name"]) for message in group)
                    contents = tuple(str(message["content"]) for message in group)
                    block = ToolBlock(names, contents, self._chat.result_ids(names, contents))
                    blocks.append((len(ids), block, group, categories(groups[number - 1][1][-1], group)))
                    ids += block.ids
            located = self._locator.locate([block for _, block, *_ in blocks])
        except SpanError as error:
            raise UserError(str(error)) from error
        # all taken for sampled: TRL samples after every result, unless the completion was cut in front of that
        how = ending(ids, None, end_ids=self._end_ids, limit=None)
        origins: list[Origin] = []
        found: list[tuple[bool, int]] = []  # of each: whether its call failed, and the number of its result
        guessed = results = 0
        for (start, block, group, kinds), ranges in zip(blocks, located, strict=True):
            failed = [_failed(message, known) for message in group]
            guessed += sum(flag and "failed" not in message for flag, message in zip(failed, group, strict=True))
            for span, index in block_spans(block, ranges, start):
                origins.append(Origin(span, group[index], failed[index], kinds[index], how))
                found.append((failed[index], results + index))
            results += len(group)
        spans = [(*weighed, *facts) for weighed, facts in zip(self._config.weigh(origins), found, strict=True)]
        return self._inspection(prompt_ids, ids, spans, guessed)

    def spans(
        self, completion_ids: Sequence[int], spans: Sequence[Sequence[Any]], prompt_ids: Sequence[int] = ()
    ) -> Inspection:
        """Inspect a rollout with its token ids and its spans `[start, end, role, tool, content]`; the rest is the policy's."""
        ids, before = (_checked_ids(values, len(self._tokenizer)) for values in (completion_ids, prompt_ids))
        checked = _checked_spans(spans, len(ids))
        sampled = torch.ones(len(ids))
        for span in checked:
            sampled[span.start : span.end] = 0
        how = ending(ids, sampled, end_ids=self._end_ids, limit=None)
        decode = partial(self._tokenizer.decode, skip_special_tokens=True)
        origins = origins_of_tokens(checked, ids, sampled, decode, how, categorize=bool(self._config.turn_information))
        weighed = [(span, value, False, None) for span, value in self._config.weigh(origins)]
        return self._inspection(before, ids, weighed)

    def _encode(self, text: str) -> list[int]:
        return self._chat.encode([text])[0][0]

    def _written(self, prompt: list[Message], groups: Sequence[list[Message]], tools: Any) -> list[str]:
        """Render each of the policy's turns (every other group), in time that is linear in the turns.

        Rendering the whole history before every turn takes quadratic time. A long rollout does this for the first turns, for each
        whose number is a power of two, and for the last; the others are rendered after the prompt and the turn before alone.
        If this gives another text for one of those that were done in full, all are done in full.
        """
        count = (len(groups) + 1) // 2
        checked = {*range(min(count, _IN_FULL)), *(1 << power for power in range(count.bit_length())), count - 1}

        def rendered(turn: int, first: int = 0) -> str:
            before = chain.from_iterable(groups[max(first, 0) : 2 * turn])
            return self._answer([*prompt, *before], groups[2 * turn], tools)

        def near(turn: int) -> str:
            return rendered(turn, 2 * turn - 2)

        texts = {turn: rendered(turn) for turn in sorted(checked) if turn < count}
        try:
            if count > len(texts) and all(near(turn) == text for turn, text in texts.items()):
                texts |= {turn: near(turn) for turn in range(count) if turn not in texts}
        except (SpanError, UserError):  # the template refuses a conversation that is not the rollout's
            pass
        return [texts[turn] if turn in texts else rendered(turn) for turn in range(count)]

    def _answer(self, history: list[Message], group: list[Message], tools: Any) -> str:
        """Return what the template adds for a turn of the policy."""
        before = self._chat.render(history, add_generation_prompt=True, tools=tools)
        after = self._chat.render([*history, *group], tools=tools)
        if not after.startswith(before):
            raise SpanError(
                "the chat template writes the conversation differently once the assistant has answered, so that the answer's "
                "tokens cannot be told apart: use a training template, such as those that TRL ships"
            )
        return after[len(before) :]

    def _turn(self, text: str) -> list[int]:
        """Encode a turn of the policy up to its end token. What a template writes after that was not sampled."""
        ids = self._encode(text)
        ends = [index for index, token in enumerate(ids) if token in self._turn_ends]
        return ids[: ends[-1] + 1] if ends else ids

    def _inspection(
        self,
        prompt_ids: list[int],
        ids: list[int],
        spans: Sequence[tuple[Span, float, bool, int | None]],
        guessed: int = 0,
    ) -> Inspection:
        shift, everything = len(prompt_ids), [*prompt_ids, *ids]
        tokens: list[Token] = []
        pieces: list[Piece] = []

        def add(start: int, end: int, kind: Kind, role: str, **origin: Any) -> None:
            if end > start:
                texts = token_texts(self._tokenizer, everything[start:end])
                pieces.append(Piece(start, end, kind, role, "".join(texts), **origin))
                tokens.extend(Token(text, kind, pieces[-1].tool, pieces[-1].weight) for text in texts)

        add(0, shift, "prompt", "prompt")
        position = shift
        for span, weight, failed, result in spans:
            add(position, shift + span.start, "policy", "assistant")
            position = shift + span.end
            origin = {"tool": span.tool, "weight": weight, "failed": failed, "result": result}
            add(shift + span.start, position, "content" if span.content else "scaffold", span.role, **origin)
        add(position, len(everything), "policy", "assistant")
        return Inspection(tokens, shift, everything, pieces, guessed)


class Inspectors:
    """Inspectors that write each rollout as its run did, as far as a dump says how.

    Args:
        make: makes an inspector; takes `chat_template_kwargs`.
        chat_template_kwargs: for all rollouts; None: those of a rollout's run.
    """

    def __init__(self, make: Callable[..., Inspector], chat_template_kwargs: Mapping[str, Any] | None = None) -> None:
        self._make, self._kwargs = make, chat_template_kwargs
        self._made: dict[str, Inspector] = {}
        self._fingerprints: dict[tuple[str, str], str] = {}
        self.differ = 0  # rollouts that get other tokens than their run gave them

    def of(self, rendered: Any = None, tools: Sequence[Mapping[str, Any]] | None = None) -> Inspector:
        """Return the inspector for a rollout.

        Args:
            rendered: how its run wrote it (`host_dumps.Shown.rendered`); anything else is ignored.
        """
        known = rendered if isinstance(rendered, Mapping) else {}
        kwargs = known.get("chat_template_kwargs") if self._kwargs is None else self._kwargs
        kwargs = kwargs if isinstance(kwargs, Mapping) else {}
        key = json.dumps(kwargs, sort_keys=True, default=str)
        inspector = self._made.get(key) or self._made.setdefault(key, self._make(chat_template_kwargs=kwargs))
        if isinstance(wanted := known.get("fingerprint"), str) and wanted:
            shown = key, json.dumps(tools or (), sort_keys=True)
            if shown not in self._fingerprints:
                self._fingerprints[shown] = inspector.fingerprint(tools)
            self.differ += self._fingerprints[shown] != wanted
        return inspector

    @property
    def notes(self) -> list[str]:
        """The warning, if some rollouts get other tokens."""
        return [f"{self.differ:,} of these rollouts {_DIFFER}"] if self.differ else []


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds. A character of several tokens belongs to the last of them."""
    texts = []
    begin = read = 0  # each token is decoded after the one before it: some decoders drop the space of a single token
    for end in range(1, len(ids) + 1):
        before, now = (
            tokenizer.decode(list(ids[begin:stop]), clean_up_tokenization_spaces=False) for stop in (read, end)
        )
        if now.endswith(_PARTIAL) and end < len(ids) and end - read < 4:  # UTF-8 has at most four bytes a character
            texts.append("")
        else:
            texts.append(now[len(before) :])
            begin, read = read, end
    return texts


def to_page(title: str, rollouts: Sequence[tuple[str, Inspection]]) -> str:
    """Make a self-contained HTML page of rollouts with their headings; all text is escaped, and its size is bounded."""
    tools = summary(inspection for _, inspection in rollouts)
    limit = max(_LEAST_TOKENS, min(_MOST_TOKENS, _PAGE_TOKENS // max(1, len(rollouts))))
    shown = rollouts[: _PAGE_TOKENS // _LEAST_TOKENS]
    parts = [
        (page.short(tool), _part(row["tokens"], row["environment_tokens"], "of the environment"), f"{row['weight']:g}")
        for tool, row in list(tools.items())[:_PAGE_TOOLS]
    ]
    return page.render(
        "wm_plugin.lab.evaluation",
        "inspect.html",
        title=title,
        rollouts=len(rollouts),
        tokens=sum(len(inspection.tokens) for _, inspection in rollouts),
        environment=sum(row["environment_tokens"] for row in tools.values()),
        counted=sum(row["tokens"] for row in tools.values()),
        guessed=sum(inspection.guessed for _, inspection in rollouts),
        legend=[(page.markup(to_html([token], style=False)), meaning) for token, meaning in _LEGEND],
        columns=("tool", "tokens that count", "their weight"),
        rows=parts,
        more_tools=len(tools) - _PAGE_TOOLS,
        shown=[_on_page(head, inspection, limit) for head, inspection in shown],
        more=len(rollouts) - len(shown),
    )


def _on_page(head: str, inspection: Inspection, limit: int) -> tuple[str, str, Any]:
    """Return a rollout's heading, its figures, and its tokens."""
    rows = inspection.tools().values()
    environment = sum(row["environment_tokens"] for row in rows)
    counted = _part(sum(row["tokens"] for row in rows), environment, "tokens of the environment")
    figures = f"{len(inspection.tokens):,} tokens, {inspection.prompt_tokens:,} of them the prompt's; {counted} count"
    return head, figures, page.markup(to_html(inspection.tokens, style=False, limit=limit))


def _part(part: float, whole: float, of: str) -> str:
    return f"{part:,} of {whole:,} {of}" + (f" ({part / whole:.1%})" if whole else "")


def _failed(message: Message, known: set[str] | None) -> bool:
    if "failed" in message:
        return bool(message["failed"])
    return (known is not None and message["name"] not in known) or is_trls(message["content"])


def _checked_ids(values: Any, vocabulary: int) -> list[int]:
    for value in values:
        if type(value) is not int or not 0 <= value < vocabulary:
            raise UserError(
                f"{shown(value)} is not a token id of this tokenizer (0 to {vocabulary - 1}); is it the rollout's?"
            )
    return list(values)


def _checked_spans(values: Any, length: int) -> list[Span]:
    spans = []
    for value in values:
        fields = [value.get(name) for name in Span._fields] if isinstance(value, Mapping) else value
        match fields:
            case [int(), int(), str(), str() | None, bool()]:
                span = Span(*fields)
            case _:
                raise UserError(
                    f"{shown(value)} is not a span; write [start, end, role, tool or null, content: true or false]"
                )
        if not 0 <= span.start <= span.end <= length:
            raise UserError(f"the span {shown(value)} does not lie in the {length} tokens of the completion")
        spans.append(span)
    spans.sort(key=lambda span: span[:2])
    for one, other in pairwise(spans):
        if other.start < one.end:
            raise UserError(f"the spans {shown(list(one))} and {shown(list(other))} overlap")
    return spans
