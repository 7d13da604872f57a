"""Refilling a generation batch: groups whose rewards are all equal give way to groups of further prompts.

Here are the rows and their places. The trainer generates, and says which groups have an advantage.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

LEFT = ("prompt_ids", "prompt_mask")  # padded on this side; everything else on the right
Row = dict[str, torch.Tensor]


class Prompts:
    """Which prompts of the training set come next: an order of its own for each optimizer step, the same on every rank and after
    a resume. The random numbers of the run are not touched."""

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._seed = size, seed
        self._step: int | None = None
        self._order: list[int] = []

    def draw(self, step: int, count: int) -> list[int]:
        """Indices of `count` prompts; one comes twice in a step only after all others did."""
        if step != self._step:
            self._step, self._order = step, []
            self._random = random.Random(f"{self._seed} {step}")
        while len(self._order) < count:
            self._order += self._random.sample(range(self._size), self._size)
        drawn, self._order = self._order[:count], self._order[count:]
        return drawn


def groups_to_sample(missing: int, *, batch: int, rows: int, group_size: int, ranks: int) -> int:
    """Return how many further groups to sample at once: twice those that are missing, as verl does, and at most a batch.

    Every rank gets whole groups if it has whole groups in the batch.

    Args:
        missing: groups without an advantage. batch: groups in a batch. rows: a rank's completions in a batch.
    """
    if rows % group_size:
        return batch
    return min(batch, -(-2 * missing // ranks) * ranks)


def split(output: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a generation batch. Columns without rows are left out."""
    size = len(output["completion_ids"])
    columns = {name: value for name, value in output.items() if not (torch.is_tensor(value) and value.dim() == 0)}
    for name, value in columns.items():
        if not torch.is_tensor(value) or len(value) != size:
            raise RuntimeError(f"zero_variance_groups refill cannot move rows of the trainer's column {name!r}")
    return [{name: value[row] for name, value in columns.items()} for row in range(size)]


def join(rows: Sequence[Row], padding: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Rows as one batch again, padded to the longest.

    Args:
        padding: the values that pad columns, where it is not 0.
    """
    output = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if first.dim() == 0:
            output[name] = torch.stack(values)
            continue
        width = max(len(value) for value in values)
        column = first.new_full((len(rows), width, *first.shape[1:]), padding.get(name, 0))
        for place, value in zip(column, values, strict=True):
            place[slice(width - len(value), None) if name in LEFT else slice(len(value))] = value
        output[name] = column
    return output


def move(
    rows: list[Row],
    further: Sequence[Row],
    places: Mapping[int, int],
    *,
    group_size: int,
    rank: int,
    gather: Callable[[list[Any]], list[Any]],
) -> None:
    """Put groups of a further batch into this rank's rows, in place.

    Args:
        rows: this rank's rows of the batch. further: this rank's rows of the further batch.
        places: the group of the further batch -> the group of the batch that it replaces. Groups are counted over all ranks.
        gather: the lists of all ranks as one.
    """
    device = rows[0]["completion_ids"].device
    sent = {}  # rows by their places in the batch of all ranks
    for number, row in enumerate(further, rank * len(further)):
        group, member = divmod(number, group_size)
        if group in places:
            sent[places[group] * group_size + member] = {name: value.cpu() for name, value in row.items()}
    for arrived in gather([sent]):
        for number, row in arrived.items():
            if rank * len(rows) <= number < (rank + 1) * len(rows):
                rows[number - rank * len(rows)] = {name: value.to(device) for name, value in row.items()}
