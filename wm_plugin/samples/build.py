"""A file of trajectories or transitions to a file that a stock trainer reads: `kinds` make the samples, `hosts` the rows."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError, nearest
from wm_plugin.samples.hosts import HOSTS, Row, check_out, rl_row, sft_row, token_row, write_rows
from wm_plugin.samples.kinds import KINDS, Left, samples
from wm_plugin.samples.sample import Sample
from wm_plugin.samples.tokenize import Tokeniser
from wm_plugin.tokens.tokenizer import load_tokenizer


@dataclass
class Built:
    """What was written, and what was not."""

    rows: int = 0
    tokens: int = 0  # of all rows (of prompts, where there is a reward); 0 without a tokenizer
    counted: int = 0  # tokens that count for the loss
    calls_as_text: int = 0  # rows of messages with tool calls
    left: Left = field(default_factory=Left)

    def as_dict(self) -> dict[str, Any]:
        left = self.left
        categories = {
            name: {"kept": left.kept[name], "dropped": left.dropped[name]} for name in left.kept | left.dropped
        }
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "counted_tokens": self.counted,
            "left_out": dict(left.out.most_common()),
            "categories": dict(sorted(categories.items())),
            "calls_as_text": self.calls_as_text,
        }


def build(
    source: str | Path,
    kind: str,
    host: str,
    out: str | Path,
    *,
    prompts: str | None = None,
    tokenizer: Any = None,
    max_tokens: int | None = None,
    turn_information: bool = False,
    history: int | None = None,
    corpora: Sequence[str | Path] = (),
    threshold: float | None = None,
    per_task: int | None = None,
    split: str = "train",
    seed: int = 0,
    watch: Callable[[Iterable[Sample]], Iterable[Sample]] = iter,
) -> Built:
    """Write the samples of `source` to `out`.

    Args:
        source, kind, prompts, turn_information, history, corpora, threshold, per_task, seed: as for `kinds.samples`.
        host: `trl` or `verl`.
        out: X.jsonl or X.parquet; verl's SFT reads parquet only.
        tokenizer: a fast transformers tokenizer, or where to load it from. With it, rows to fine-tune on are tokens and a mask,
            the same for both hosts; prompts for a reward stay messages, and are only counted.
        max_tokens: longer samples, or prompts, are left out and counted. Needs a tokenizer.
        split: what verl's `extra_info` says.
        watch: sees every sample go by, for a count on a terminal.

    Raises:
        UserError: an argument that does not fit, a row that cannot be read, or no sample is left.
    """
    if kind not in KINDS:
        raise UserError(f"there is no kind {kind!r}{nearest(kind, KINDS)}")
    if host not in HOSTS:
        raise UserError(f"there is no host {host!r}{nearest(host, HOSTS)}")
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens is {max_tokens}; write a number >= 1")
    if max_tokens is not None and tokenizer is None:
        raise UserError("max_tokens needs a tokenizer to count with")
    check_out(Path(out), host, KINDS[kind].form)
    built = Built()
    found = samples(
        source,
        kind,
        prompts=prompts,
        history=history,
        turn_information=turn_information,
        corpora=corpora,
        threshold=threshold,
        per_task=per_task,
        seed=seed,
        left=built.left,
    )
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    tokeniser = None if loaded is None else Tokeniser(loaded)
    built.rows = write_rows(_rows(watch(found), kind, host, tokeniser, max_tokens, split, built), Path(out))
    return built


def _rows(
    found: Iterable[Sample],
    kind: str,
    host: str,
    tokeniser: Tokeniser | None,
    max_tokens: int | None,
    split: str,
    built: Built,
) -> Iterator[Row]:
    sft, single, left, index = KINDS[kind].form == "sft", KINDS[kind].single, built.left.out, 0
    for sample in found:
        if not _is_unicode(sample):
            left["half a surrogate pair"] += 1
            continue
        tokens = tokeniser(sample) if tokeniser and sft else None
        length = (
            len(tokens.ids) if tokens else tokeniser.prompt_length(sample.messages, sample.tools) if tokeniser else 0
        )
        if max_tokens is not None and length > max_tokens:
            left["too long"] += 1
            continue
        built.tokens += length
        built.calls_as_text += tokens is None and any(message.get("tool_calls") for message in sample.messages)
        if tokens:
            built.counted += sum(tokens.mask)
            yield token_row(tokens, host)
        elif sft:
            yield sft_row(sample, host, single=single)
        else:
            yield rl_row(sample, host, index=index, split=split, data_source=f"wm_{kind}")
        index += 1


def _is_unicode(sample: Sample) -> bool:
    """Texts that were cut by characters of UTF-16 have half pairs, which no file and no tokenizer takes."""
    try:
        json.dumps([sample.messages, sample.columns], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
