"""What the objective logs: sums over tokens, added up over micro-batches and steps, reduced over ranks once, divided at the end.

Averages of averages would depend on the micro-batch size; these do not.
"""

import math
from collections.abc import Callable

import torch

Reduce = Callable[[torch.Tensor], torch.Tensor]  # element-wise sum over ranks


class EchoMeter:
    """Adds up the figures of one mode (training or evaluation) until they are logged.

    Keys, the same on every rank and micro-batch: `nll`, `perplexity`, `tokens`, `coeff`, `loss`, `tokens_in_loss` (the share of
    the selected tokens inside the loss floor and ceiling), `policy_silent` (the share of steps whose advantages were all 0),
    `masked_by_host` (completions a step whose environment tokens the host's truncation masking took away) and
    `tool/<name>/{nll,tokens}`. Means are over selected tokens; `tokens` is a mean over optimizer steps.
    """

    _TOTALS = ("nll", "tokens", "in_loss", "loss", "masked")

    def __init__(self, prefix: str = "echo") -> None:
        self.prefix = prefix
        self.clear()

    def clear(self) -> None:
        self._totals: torch.Tensor | float = 0.0  # 0-d entries in the order of _TOTALS
        self._tools: dict[str, torch.Tensor] = {}  # name -> (NLL sum, tokens)
        self._steps: list[float] = []  # coefficient of each optimizer step
        self._signal: list[torch.Tensor] = []  # Σ|advantage| of each optimizer step, this rank's

    def add(
        self,
        logps: torch.Tensor,
        weights: torch.Tensor,
        tool_ids: torch.Tensor,
        tools: list[str],
        *,
        loss_weights: torch.Tensor,
        loss: torch.Tensor,
        masked: torch.Tensor,
    ) -> None:
        """One micro-batch of this rank.

        Args:
            logps: (B, T), detached. weights, loss_weights: (B, T), 0 = not selected; the second after floor and ceiling.
            tool_ids: (B, T), 0 = not selected, k = `tools[k - 1]`.
            loss: 0-d, this micro-batch's share of the term, coefficient included. masked: 0-d count of completions.
        """
        # float64 keeps counts exact; Apple's GPUs have none
        dtype = torch.float32 if logps.device.type == "mps" else torch.float64
        nll = torch.where(weights != 0, -logps, torch.zeros_like(logps)).to(dtype)
        totals = [nll.sum(), (weights != 0).sum(), (loss_weights != 0).sum(), loss, masked]
        self._totals = self._totals + torch.stack([value.to(dtype) for value in totals])
        for index, name in enumerate(tools):
            mine = tool_ids == index + 1
            sums = torch.stack([torch.where(mine, nll, torch.zeros_like(nll)).sum(), mine.sum().to(dtype)])
            self._tools[name] = self._tools[name] + sums if name in self._tools else sums

    def end_step(self, coeff: float, signal: torch.Tensor) -> None:
        """An optimizer step is complete. `signal`: 0-d, Σ|advantage| over its micro-batches on this rank."""
        self._steps.append(coeff)
        self._signal.append(signal)

    def result(self, reduce: Reduce) -> dict[str, float]:
        """The figures so far, and a fresh start. Every rank must call it. Nothing was added: an empty dict.

        A mean over no tokens is NaN.
        """
        if not self._steps or isinstance(self._totals, float):
            return {}
        dtype, names = self._totals.dtype, sorted(self._tools)
        parts = [self._totals, torch.stack(self._signal).to(dtype), *(self._tools[name] for name in names)]
        values = reduce(torch.cat(parts)).tolist()
        steps = len(self._steps)
        nll, tokens, in_loss, loss, masked = values[: len(self._TOTALS)]
        signal = values[len(self._TOTALS) : len(self._TOTALS) + steps]
        mean = nll / tokens if tokens else math.nan
        figures = {
            "nll": mean,
            "perplexity": math.exp(min(mean, 700.0)) if tokens else math.nan,  # exp(710) overflows
            "tokens": tokens / steps,
            "coeff": sum(self._steps) / steps,
            "loss": loss / steps,
            "tokens_in_loss": in_loss / tokens if tokens else math.nan,
            "policy_silent": sum(value == 0 for value in signal) / steps,
            "masked_by_host": masked / steps,
        }
        for index, name in enumerate(names):
            tool_nll, tool_tokens = values[len(self._TOTALS) + steps + 2 * index :][:2]
            figures[f"tool/{name}/nll"] = tool_nll / tool_tokens if tool_tokens else math.nan
            figures[f"tool/{name}/tokens"] = tool_tokens / steps
        self.clear()
        return {f"{self.prefix}/{key}": value for key, value in figures.items()}
