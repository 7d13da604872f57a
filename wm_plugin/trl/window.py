"""One accumulation window of TRL's trainer: the micro-batches of an optimizer step, whose tokens are counted together."""

from typing import Any

import torch


class Window:
    """Where a trainer is in its accumulation window.

    Args:
        objectives: how many the run has, K.

    Attributes:
        batches: the window's raw batches, one a micro-batch.
        position: micro-batches that are done.
        num_tokens: (K,) N of the window, over all ranks.
        counts: for each objective N, its selected tokens and all environment tokens of the window, likewise.
        sums: (K, 3) NLL of the tokens that count, their number, and how many are inside the loss floor and ceiling, in the
            micro-batches that are done, on this rank.
        signal: Σ|advantage| over the micro-batches that are done, on this rank.
        entropy: the policy's, as the host measures it, of each micro-batch that is done, over all ranks.
        generated: generation batches that were made ahead of the host, by the identity of the raw batch.
    """

    def __init__(self, objectives: int) -> None:
        self.batches: list[Any] = []
        self.position = 0
        self.generated: dict[int, dict[str, Any]] = {}
        self.start(torch.zeros(objectives, 3, dtype=torch.int64))

    def open(self, batches: list[Any]) -> None:
        """Begin a new window of these raw batches."""
        self.batches, self.position = batches, 0

    def start(self, counts: torch.Tensor) -> None:
        """Begin the window's first micro-batch with its `counts`, (K, 3)."""
        self.num_tokens, self.counts = counts[:, 0], counts.tolist()
        self.sums = torch.zeros((), device=counts.device)
        self.signal = torch.zeros((), device=counts.device)
        self.entropy: list[float] = []

    def begins(self) -> bool:
        """Whether the next micro-batch is the window's first.

        Raises:
            RuntimeError: the window has no more micro-batches, or rollouts that were made ahead were not used.
        """
        if self.position == len(self.batches):
            raise RuntimeError(
                "a training step outside Trainer.train(): the tokens of its optimizer batch cannot be counted"
            )
        if self.position == 0 and self.generated:
            raise RuntimeError(
                "generation batches made ahead were not used: the host no longer generates per raw batch"
            )
        return self.position == 0

    @property
    def complete(self) -> bool:
        return self.position == len(self.batches)
