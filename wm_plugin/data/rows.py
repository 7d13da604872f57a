"""Samples as the rows that stock TRL and stock verl read, and the files that hold them.

| host | form | columns |
|---|---|---|
| trl | sft | `prompt` and `completion`, or `messages` (with `assistant_only_loss`); tools as JSON text |
| verl | sft | `messages`, `tools` |
| trl | sft, tokens | `input_ids`, `assistant_masks` |
| verl | sft, tokens | `input_ids`, `loss_mask`, read by `wm_plugin.verl.sft:TokenisedSFTDataset` |
| trl | rl | `prompt`, and the sample's columns |
| verl | rl | `data_source`, `prompt`, `ability`, `reward_model`, `extra_info` |

A row of messages is rendered and tokenised by the host, each in its own way; neither can exclude an assistant's turn from the
loss. Rows of tokens are the same for both. Those of an agent's
dialogues also have `env_spans`, what the environment said (`tokens.spans.Span`), and `reward`, for `WorldModelSFTTrainer` and
`+wm=sft`; stock trainers leave them alone.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import atomic, check_out
from wm_plugin.data.parquet import pyarrow_modules
from wm_plugin.data.sample import Sample
from wm_plugin.data.tokenize import Tokens
from wm_plugin.data.write import SUFFIXES
from wm_plugin.errors import UserError
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.spans import SPAN_FIELD

Row = dict[str, Any]
HOSTS = ("trl", "verl")
ABILITY = "world_model"  # verl only groups by it
REWARD = "reward"  # column of a dialogue's reward
_MASKS = {"trl": "assistant_masks", "verl": "loss_mask"}
_INSTEAD = "give a tokenizer, and the rows are tokens, or write a .jsonl file instead"
_SPAN = {"start": "int32", "end": "int32", "role": "string", "tool": "string", "content": "bool_"}
_BATCH = 1000  # rows in a row group of parquet
_NEEDS_TOKENS = "neither host can leave an assistant's message out: give a tokenizer, and the rows are tokens"


def sft_row(sample: Sample, host: str, *, single: bool) -> Row:
    """Make a row of messages for fine-tuning.

    Args:
        single: whether the kind counts only its last message. TRL then gets `prompt` and `completion`.
    """
    messages = [_plain(message) for message in sample.messages]
    flags = [counts for message, counts in zip(sample.messages, sample.train, strict=True) if _speaks(message)]
    tools = list(sample.tools)
    if host == "trl" and single:
        if not flags or flags != [False] * (len(flags) - 1) + [True] or not _speaks(messages[-1]):
            raise UserError(f"a sample has other messages that count than its last one; {_NEEDS_TOKENS}")
        row: Row = {"prompt": messages[:-1], "completion": messages[-1:]}
    else:
        if not all(flags):
            raise UserError(f"a sample has assistant's messages that do not count; {_NEEDS_TOKENS}")
        row = {"messages": messages}
    if tools:
        row["tools"] = json.dumps(tools, ensure_ascii=False) if host == "trl" else tools
    return row


def token_row(tokens: Tokens, host: str, sample: Sample | None = None) -> Row:
    """Make a row of tokens for fine-tuning: the ids and a mask, 1 = the token counts; of an agent's dialogue also the spans of
    what the environment said, and its reward.
    """
    row: Row = {"input_ids": tokens.ids, _MASKS[host]: tokens.mask}
    if sample is not None and sample.observed:
        row |= {SPAN_FIELD: [one._asdict() for one in tokens.spans or ()], REWARD: sample.columns.get(REWARD)}
    return row


def rl_row(sample: Sample, host: str, *, index: int, split: str, data_source: str) -> Row:
    """Make a row for RL. The sample's messages are the prompt, and its columns hold the `target`.

    TRL passes all columns to rewards by name; verl passes `reward_model.ground_truth` and `extra_info`.
    """
    prompt = [_plain(message) for message in sample.messages]
    if host == "trl":
        return {"prompt": prompt, **sample.columns}
    columns = {name: value for name, value in sample.columns.items() if name != "target"}
    return {
        "data_source": data_source,
        "prompt": prompt,
        "ability": ABILITY,
        "reward_model": {"style": "rule", "ground_truth": sample.columns["target"]},
        "extra_info": {"index": index, "split": split, **columns},
    }


def check_rows_out(out: Path, host: str, form: str) -> None:
    """Refuse an output that cannot be written, or that the host would not read."""
    check_out(out, SUFFIXES)
    if host == "verl" and form == "sft" and out.suffix != ".parquet":
        raise UserError(f"{out}: verl's SFT reads parquet only; write a name that ends in .parquet")


def write_rows(rows: Iterable[Row], out: Path, left_out: Mapping[str, int] | None = None) -> int:
    """Write rows to a .jsonl or .parquet file, completely or not at all. Returns their number.

    `left_out` has the samples that became no rows, by reason, for the error that there are no rows.

    Parquet gives every object of a column the keys of all others, with null where it has none. Hosts ignore nulls in messages;
    anywhere else they would be read as data.
    """
    with atomic(out) as unfinished:
        try:
            count = (_write_parquet if out.suffix == ".parquet" else _write_lines)(rows, unfinished)
        except UnicodeEncodeError:
            raise UserError(
                f"{out}: a row holds half a surrogate pair, which no tokenizer takes; leave it out"
            ) from None
        if not count:
            why = ", ".join(f"{reason}: {number}" for reason, number in (left_out or {}).items())
            raise UserError(f"{out}: no sample is left to write{why and f' (left out: {why})'}")
    return count


def _write_lines(rows: Iterable[Row], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _write_parquet(rows: Iterable[Row], path: Path) -> int:
    pyarrow, parquet = pyarrow_modules()
    rows, writer, count = iter(rows), None, 0
    with ExitStack() as stack:
        while batch := list(islice(rows, _BATCH)):
            names = writer.schema.names if writer else list(dict.fromkeys(name for row in batch for name in row))
            if not set(names).issuperset(name for row in batch for name in row):
                raise UserError(f"row {count} has columns that the first rows have not; write a .jsonl file instead")
            try:
                table = pyarrow.Table.from_pylist(batch, writer.schema if writer else _schema(batch, names))
                _check_unchanged(batch, table)
                writer = writer or stack.enter_context(parquet.ParquetWriter(path, table.schema))
                writer.write_table(table)
            except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
                raise UserError(f"a column has values of different types in different rows: {error}") from None
            except OverflowError:
                raise UserError(f"parquet cannot hold a number of more than 64 bits; {_INSTEAD}") from None
            except pyarrow.ArrowNotImplementedError as error:  # an object without keys: a tool without parameters
                raise UserError(f"parquet cannot hold these rows: {error}; {_INSTEAD}") from None
            count += len(batch)
    return count


def _schema(batch: list[Row], names: list[str]) -> Any:
    """Return the schema of the first rows. What holds only nulls is text; token ids and masks get small integers."""
    pyarrow, _ = pyarrow_modules()
    kinds = {
        "input_ids": pyarrow.list_(pyarrow.int32()),
        **dict.fromkeys(_MASKS.values(), pyarrow.list_(pyarrow.int8())),
        REWARD: pyarrow.float64(),
        SPAN_FIELD: pyarrow.list_(pyarrow.struct([(name, getattr(pyarrow, kind)()) for name, kind in _SPAN.items()])),
    }
    return pyarrow.schema(
        (name, kinds.get(name) or _without_nulls(pyarrow.array([row.get(name) for row in batch]).type))
        for name in names
    )


def _without_nulls(kind: Any) -> Any:
    """Replace null by text in a type, at any depth: the rows of later batches may have values there."""
    pyarrow, _ = pyarrow_modules()
    if pyarrow.types.is_null(kind):
        return pyarrow.string()
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(_without_nulls(kind.value_type))
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([(field.name, _without_nulls(field.type)) for field in kind])
    return kind


def _check_unchanged(batch: list[Row], table: Any) -> None:
    for row, written in zip(batch, table.to_pylist() if "input_ids" not in table.schema.names else (), strict=False):
        if changed := [name for name in row if _bare(written[name], name) != _bare(row[name], name)]:
            raise UserError(
                f"column {changed[0]!r} holds objects with different keys, which parquet would change; {_INSTEAD}"
            )


def _bare(value: Any, name: str) -> Any:
    """Return a value without the nulls that parquet adds to messages."""
    if name in ("messages", "prompt", "completion"):
        return [{key: item for key, item in message.items() if item is not None} for message in value]
    return value


def _speaks(message: Mapping[str, Any]) -> bool:
    return bool(message["role"] == "assistant")


def _plain(message: Message) -> Message:
    """Return a message with arguments as JSON text, as in OpenAI's API: in parquet, objects would get each other's keys."""
    calls = message.get("tool_calls")
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    plain = []
    for call in calls:
        arguments = call["function"].get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        plain.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": plain}
