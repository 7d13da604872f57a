"""One accumulation window of TRL's trainer: the micro-batches of an optimizer step, whose tokens are counted together."""

from typing import Any

import torch


class Window:
    """Where a trainer is in its accumulation window.

    Attributes:
        batches: the window's raw batches, one a micro-batch.
        position: micro-batches that are done.
        num_tokens: N of the window, over all ranks.
        selected: its selected tokens, and environment: all of its environment tokens, likewise.
        in_loss: selected tokens inside the loss floor and ceiling, in the micro-batches that are done, on this rank.
        signal: Σ|advantage| over the micro-batches that are done, on this rank.
        sums: (2,) NLL of the environment tokens that count and their number, likewise.
        entropy: the policy's, as the host measures it, of each micro-batch that is done, over all ranks.
        generated: generation batches that were made ahead of the host, by the identity of the raw batch.
    """

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.position = 0
        self.num_tokens = torch.tensor(0)
        self.selected = self.environment = 0
        self.in_loss = torch.tensor(0)
        self.signal = torch.tensor(0.0)
        self.sums: torch.Tensor | float = 0.0
        self.entropy: list[float] = []
        self.generated: dict[int, dict[str, Any]] = {}

    def open(self, batches: list[Any]) -> None:
        """A new window of these raw batches."""
        self.batches, self.position = batches, 0

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
