"""A dataset class for verl's SFT trainer, for the rows of tokens that `wm data build --host verl --tokenizer ...` writes.

    data.custom_cls.path=pkg://wm_plugin.verl.sft data.custom_cls.name=TokenisedSFTDataset

verl's own class tokenises messages one by one and trains on every assistant message. Here the file has a mask of the tokens that
count.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import torch
from torch.utils.data import Dataset

from wm_plugin.data import parquet
from wm_plugin.data.errors import RowError
from wm_plugin.errors import UserError, shown

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
        self.pad_mode = _one_of(config, "pad_mode", "no_padding", PAD_MODES)
        self.truncation = _one_of(config, "truncation", "error", TRUNCATIONS)
        self.max_length = int(config.get("max_length", 1024))
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self._rows = pyarrow.concat_tables([_read(file) for file in files])
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
        part = slice(-self.max_length, None) if self._cuts_left() else slice(0, self.max_length)
        tensors = {"input_ids": ids[part], "position_ids": positions[part], "loss_mask": mask[part]}
        if self.pad_mode == "no_padding":
            return tensors
        tensors["attention_mask"] = torch.ones_like(tensors["input_ids"])
        padding = max(0, self.max_length - length)
        fills = {"input_ids": self._pad}
        return {name: torch.nn.functional.pad(v, (0, padding), value=fills.get(name, 0)) for name, v in tensors.items()}

    def _cuts_left(self) -> bool:
        return self.truncation == "left" and self.pad_mode == "right"


def _read(file: str) -> Any:
    from verl.utils.fs import copy_local_path_from_hdfs

    path = copy_local_path_from_hdfs(file, verbose=True)
    tables: list[Any] = []
    try:
        for table in parquet.tables(Path(path), COLUMNS):
            if isinstance(table, RowError):
                raise table
            missing = [name for name in COLUMNS if name not in table.column_names]
            if missing:
                raise UserError(
                    f"{file} has no column {missing[0]!r}: write it by wm data build --host verl --tokenizer PATH, or leave "
                    "data.custom_cls out for rows of messages"
                )
            tables.append(table.select(COLUMNS).cast(_SCHEMA))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        raise UserError(f"{file}: {' and '.join(COLUMNS)} are no lists of token ids and of 0 and 1") from None
    except RowError as error:
        raise UserError(f"{file}, row {sum(map(len, tables))}: {error}") from None
    if not tables:
        raise UserError(f"{file} has no rows")
    return pyarrow.concat_tables(tables)


def _one_of(config: Mapping[str, Any], name: str, default: str, known: Sequence[str]) -> str:
    value = config.get(name, default)
    if value not in known:
        raise UserError(f"data.{name} is {shown(value)}; write {' or '.join(known)}")
    return str(value)
