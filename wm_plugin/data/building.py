"""Convert trajectories or transitions to a file for a stock trainer: `kinds` makes the samples, `rows` the rows."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wm_plugin.data.contexts import load_contexts
from wm_plugin.data.kinds import Exclusions, Kind, kind_of
from wm_plugin.data.outputs import check_apart
from wm_plugin.data.rows import HOSTS, Row, check_rows_out, rl_row, sft_row, token_row, write_rows
from wm_plugin.data.sample import Sample
from wm_plugin.data.tokenize import Tokeniser, Tokens
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.tokens.tokenizer import load_tokenizer

TOO_LONG = ("drop", "truncate")


@dataclass
class Report:
    """Counts of what was written and left out."""

    rows: int = 0
    tokens: int = 0  # of all rows (for RL, of the prompts); 0 without a tokenizer
    counted: int = 0  # tokens that count for the loss
    truncated: int = 0  # rows that were cut to the limit
    tokens_cut: int = 0  # from the ends of these rows
    unlocated: int = 0  # rows of tokens without spans, as the chat template hides where the environment's words are
    calls_as_text: int = 0  # rows of messages with tool calls
    assistant_only_loss: bool = False  # whether stock `trl sft` needs this flag: without it users' messages count too
    exclusions: Exclusions = field(default_factory=Exclusions)

    def as_dict(self) -> dict[str, Any]:
        kept, dropped = self.exclusions.kept, self.exclusions.dropped
        categories = {name: {"kept": kept[name], "dropped": dropped[name]} for name in kept | dropped}
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "counted_tokens": self.counted,
            "truncated": self.truncated,
            "tokens_cut": self.tokens_cut,
            "left_out": dict(self.exclusions.reasons.most_common()),
            "categories": dict(sorted(categories.items())),
            "unlocated": self.unlocated,
            "calls_as_text": self.calls_as_text,
            "assistant_only_loss": self.assistant_only_loss,
            "notes": self.exclusions.lacking.notes,
        }


def build(
    source: str | Path,
    kind: str | Kind,
    host: str,
    out: str | Path,
    *,
    tokenizer: Any = None,
    max_tokens: int | None = None,
    too_long: str = "drop",
    context_file: str | Path | None = None,
    split: str = "train",
    watch: Callable[[Iterable[Sample]], Iterable[Sample]] = iter,
    **options: Any,
) -> Report:
    """Write the samples of `source` to `out`.

    Args:
        source: the trajectories or transitions, as `kinds.samples` takes them.
        kind: what the samples are for, by name or as a model of `data.kinds`.
        options: the fields of that kind.
        host: `trl` or `verl`.
        out: X.jsonl or X.parquet; verl's SFT reads parquet only.
        tokenizer: a fast transformers tokenizer, its directory or its name on the Hub. With it, rows for fine-tuning are token
            ids and a mask, the same for both hosts; rows for RL stay messages, and the tokenizer only counts.
        max_tokens: the limit of a sample (for RL, of a prompt). Needs a tokenizer.
        too_long: what happens to longer samples. `drop` leaves them out. `truncate`, for dialogues, keeps their first
            `max_tokens` tokens, as Word2World's released configuration does: later turns are lost, earlier ones still count. A
            sample without a token that counts is then left out. Both are counted.
        context_file: hidden contexts (see `data.contexts`), for the option `contexts`; at least one of its keys must be a task of
            the source.
        split: the split's name in verl's `extra_info`.

    Raises:
        UserError: an invalid argument, a row that cannot be read, or no sample is left.
    """
    out = Path(out)
    if host not in HOSTS:
        raise UserError(f"there is no host {host!r}{nearest(host, HOSTS)}")
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens is {max_tokens}; write a number >= 1")
    if max_tokens is not None and tokenizer is None:
        raise UserError("max_tokens needs a tokenizer to count with")
    if too_long not in TOO_LONG:
        raise UserError(f"too_long is {shown(too_long)}{nearest(too_long, TOO_LONG)}")
    if isinstance(kind, str):
        contexts = None if context_file is None else load_contexts(context_file)
        kind = kind_of(kind, contexts=contexts, **options)
    sft, single = kind.form == "sft", kind.of == "transitions"
    if too_long == "truncate" and max_tokens is None:
        raise UserError("too_long is 'truncate', which needs max_tokens")
    if too_long == "truncate" and (single or not sft):
        raise UserError(f"{kind.name} ends with the part that counts, and cannot be cut: leave too_long at 'drop'")
    check_rows_out(out, host, kind.form)
    tokenizer_path = tokenizer if isinstance(tokenizer, str | Path) else None
    inputs = [*getattr(kind, "corpora", ()), getattr(kind, "prompts", None), tokenizer_path, context_file]
    check_apart([source, *inputs], {"--out": out})
    report = Report(assistant_only_loss=host == "trl" and sft and not single and tokenizer is None)
    made = kind.samples(source, report.exclusions)
    if tokenizer_path is not None:
        tokenizer = load_tokenizer(tokenizer_path, field="tokenizer")
    tokeniser = None if tokenizer is None else Tokeniser(tokenizer)

    def rows() -> Iterator[Row]:
        measured = _measured(watch(made), tokeniser, sft, max_tokens, too_long, report)
        for index, (sample, tokens) in enumerate(measured):
            if tokens:
                yield token_row(tokens, host, sample)
            elif sft:
                yield sft_row(sample, host, single=single)
            else:
                yield rl_row(sample, host, index=index, split=split, data_source=f"wm_{kind.name}")

    report.rows = write_rows(rows(), out, report.exclusions.reasons)
    return report


def _measured(
    samples: Iterable[Sample],
    tokeniser: Tokeniser | None,
    sft: bool,
    max_tokens: int | None,
    too_long: str,
    report: Report,
) -> Iterator[tuple[Sample, Tokens | None]]:
    """Yield the samples that are kept, with their tokens if the rows are tokens, and count them in the report."""
    reasons = report.exclusions.reasons
    for sample in samples:
        if not _is_unicode(sample):
            reasons["half a surrogate pair"] += 1
            continue
        tokens, length = None, 0
        if tokeniser and sft:
            tokens = tokeniser(sample)
            length = len(tokens.ids)
        elif tokeniser:
            length = tokeniser.prompt_length(sample.messages, sample.tools)
        if max_tokens is not None and length > max_tokens:
            kept = tokens.cut(max_tokens) if tokens else None
            if too_long == "drop" or kept is None or not any(kept.mask):
                reasons["too long"] += 1
                continue
            report.truncated += 1
            report.tokens_cut += length - max_tokens
            tokens, length = kept, max_tokens
        report.tokens += length
        report.counted += sum(tokens.mask) if tokens else 0
        report.unlocated += sample.observed and tokens is not None and tokens.spans is None
        report.calls_as_text += tokens is None and any(message.get("tool_calls") for message in sample.messages)
        yield sample, tokens


def last_message_rows(
    samples: Iterable[Sample],
    host: str,
    tokeniser: Tokeniser | None = None,
    max_tokens: int | None = None,
    left_out: Counter[str] | None = None,
) -> Iterator[Row]:
    """Yield fine-tuning rows of samples in which only the last message counts.

    With a tokenizer they are tokens and a mask, else messages and the samples' columns.
    """
    report = Report()
    if left_out is not None:
        report.exclusions.reasons = left_out
    for sample, tokens in _measured(samples, tokeniser, True, max_tokens, "drop", report):
        yield token_row(tokens, host) if tokens else sft_row(sample, host, single=True) | sample.columns


def _is_unicode(sample: Sample) -> bool:
    """Return whether all texts can be encoded. A text cut between UTF-16 units holds half a surrogate pair."""
    try:
        json.dumps([sample.messages, sample.tools, sample.columns], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
