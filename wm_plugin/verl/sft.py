"""A dataset class for verl's SFT trainer, for the rows of tokens that `wm data build --host verl --tokenizer ...` writes.

    data.custom_cls.path=pkg://wm_plugin.verl.sft data.custom_cls.name=TokenisedSFTDataset

verl's own class tokenises messages one by one and trains on every assistant message. Here the file has a mask of the tokens that
count. `wm_plugin.verl.sft_trainer` also trains on what the environment said, if the rows are an agent's dialogues.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import torch
from torch.utils.data import Dataset

from wm_plugin.data import parquet
from wm_plugin.data.errors import RowError
from wm_plugin.data.rows import REWARD
from wm_plugin.errors import UserError, shown
from wm_plugin.hosting.dialogues import Dialogue, Dialogues
from wm_plugin.tokens.spans import SPAN_FIELD, read_spans

ASKED = "world_model"  # of verl's `data`: the block wm asks for the term, which verl's own main would leave out
COLUMNS = ("input_ids", "loss_mask")
_SCHEMA = pyarrow.schema([(COLUMNS[0], pyarrow.list_(pyarrow.int32())), (COLUMNS[1], pyarrow.list_(pyarrow.int8()))])
PAD_MODES = ("no_padding", "right")
TRUNCATIONS = ("error", "left", "right")


class TokenisedSFTDataset(Dataset):
    """Rows `input_ids` and `loss_mask` (1 = the token counts), both lists of one length.

    As with verl's own class, an item has `input_ids`, `position_ids` and `loss_mask`, each (T,) int64. With `pad_mode=right`, T
    is `max_length`, and there is also an `attention_mask`.

    Args:
        parquet_files: one file, or several.
        tokenizer: only its padding token is used.
        config: verl's `data`; `pad_mode`, `max_length` and `truncation` have the same meaning as in verl's own class (without
            padding, rows are always cut on the right). With `shuffle`, `max_samples` rows are drawn with `seed`.
        processor: not used.
        max_samples: maximum number of rows; -1 for all.

    Raises:
        UserError: a file lacks these columns, or a setting is unknown; from an item: the row is longer than `max_length` and
            `truncation` is error, or its mask has another length.
    """

    def __init__(
        self,
        parquet_files: str | Sequence[str],
        tokenizer: Any,
        config: Mapping[str, Any],
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        del processor
        if config.get(ASKED):
            raise UserError(
                "verl.trainer.sft_trainer would train without the world-model term of +wm=sft; start with -m "
                "wm_plugin.verl.sft_trainer in its place"
            )
        self._dialogues: Dialogues | None = None
        self._held_out = False
        self.pad_mode = _one_of(config, "pad_mode", "no_padding", PAD_MODES)
        self.truncation = _one_of(config, "truncation", "error", TRUNCATIONS)
        self.max_length = int(config.get("max_length", 1024))
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self._rows = pyarrow.concat_tables([_read(file) for file in files], promote_options="default")
        if 0 < max_samples < len(self._rows):
            every = range(len(self._rows))
            chosen = random.Random(config.get("seed")).sample(every, max_samples) if config.get("shuffle") else every
            self._rows = self._rows.take(list(chosen[:max_samples]))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        ids, mask = (torch.tensor(self._rows[name][item].as_py(), dtype=torch.int64) for name in COLUMNS)
        if len(ids) != len(mask):
            raise UserError(f"row {item} has {len(ids)} tokens but a mask of {len(mask)}")
        length = len(ids)
        if length > self.max_length and self.truncation == "error":
            raise UserError(
                f"row {item} has {length} tokens, more than data.max_length={self.max_length}: build with --max-tokens, or set "
                "data.truncation"
            )
        positions = torch.arange(length)
        start = max(0, length - self.max_length) if self._cuts_left() else 0
        stop = min(length, start + self.max_length)
        part = slice(start, stop)
        tensors = {"input_ids": ids[part], "position_ids": positions[part], "loss_mask": mask[part]}
        if self._dialogues is not None:
            row = self._dialogue(item)
            tensors |= self._dialogues.columns(row, start, stop, held_out=self._held_out)
        if self.pad_mode == "no_padding":
            return tensors
        tensors["attention_mask"] = torch.ones_like(tensors["input_ids"])
        padding = max(0, self.max_length - length)
        fills = {"input_ids": self._pad}
        return {name: torch.nn.functional.pad(v, (0, padding), value=fills.get(name, 0)) for name, v in tensors.items()}

    def measure(self, dialogues: Dialogues, *, held_out: bool) -> None:
        """Add the objectives' columns to items; see `Dialogues.columns`."""
        self._dialogues, self._held_out = dialogues, held_out

    def tools(self) -> set[str]:
        """Return the names of the tools in the rows."""
        return {span.tool for row in self.dialogues() for span in row.spans if span.tool is not None}

    def dialogues(self) -> Iterator[Dialogue]:
        return (self._dialogue(item) for item in range(len(self)))

    def _dialogue(self, item: int) -> Dialogue:
        row = {name: self._rows[name][item].as_py() for name in self._rows.column_names}
        ids = row[COLUMNS[0]]
        try:
            spans = read_spans(row.get(SPAN_FIELD) or (), torch.zeros(len(ids), dtype=torch.uint8).numpy())
        except UserError as error:
            raise UserError(f"row {item}: {error}") from None
        return Dialogue(ids, row[COLUMNS[1]], spans, row.get(REWARD))

    def _cuts_left(self) -> bool:
        return self.truncation == "left" and self.pad_mode == "right"


def _read(file: str) -> Any:
    from verl.utils.fs import copy_local_path_from_hdfs

    path = copy_local_path_from_hdfs(file, verbose=True)
    tables: list[Any] = []
    try:
        for table in parquet.tables(Path(path), (*COLUMNS, SPAN_FIELD, REWARD)):
            if isinstance(table, RowError):
                raise table
            missing = [name for name in COLUMNS if name not in table.column_names]
            if missing:
                raise UserError(
                    f"{file} has no column {missing[0]!r}: write it by wm data build --host verl --tokenizer PATH, or leave "
                    "data.custom_cls out for rows of messages"
                )
            spans = [name for name in (SPAN_FIELD, REWARD) if name in table.column_names]
            own = table.select(COLUMNS).cast(_SCHEMA)
            for name in spans:
                own = own.append_column(name, table[name])
            tables.append(own)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        raise UserError(f"{file}: {' and '.join(COLUMNS)} are no lists of token ids and of 0 and 1") from None
    except RowError as error:
        raise UserError(f"{file}, row {sum(map(len, tables))}: {error}") from None
    if not tables:
        raise UserError(f"{file} has no rows")
    return pyarrow.concat_tables(tables, promote_options="default")


def _one_of(config: Mapping[str, Any], name: str, default: str, known: Sequence[str]) -> str:
    value = config.get(name, default)
    if value not in known:
        raise UserError(f"data.{name} is {shown(value)}; write {' or '.join(known)}")
    return str(value)
