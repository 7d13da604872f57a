"""What the objective logs: sums over tokens, added up over micro-batches and steps, reduced over ranks once, divided at the end.

Averages of averages would depend on the micro-batch size; these do not.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from wm_plugin.tokens.spans import OTHER

if TYPE_CHECKING:
    from wm_plugin.objectives.base import Objective

Reduce = Callable[[torch.Tensor], torch.Tensor]  # element-wise sum over ranks

TOTALS = ("nll", "tokens", "in_loss", "loss", "masked", "weight")
OTHER_TOOLS = "other"  # all tools without figures of their own together
# Bounds on tool names learnt from rollouts, if nothing declares them: a policy can invent any number, of any length.
LEARNT, LEARNT_LENGTH = 100, 64


def learn_tools(known: Sequence[str], names: Iterable[str]) -> list[str]:
    """Append the new `names` to `known`, within bounds: a tool keeps its place."""
    fitting = sorted(name for name in set(names) - set(known) if len(name) <= LEARNT_LENGTH)
    return [*known, *fitting[: max(0, LEARNT - len(known))]]


def size(num_tools: int) -> int:
    """Return the number of a micro-batch's sums: the totals, and NLL and tokens of each tool and of all others together."""
    return len(TOTALS) + 2 * (num_tools + 1)


def token_sums(
    logps: torch.Tensor,
    weights: torch.Tensor,
    tool_ids: torch.Tensor,
    num_tools: int,
    *,
    loss_weights: torch.Tensor,
    loss: torch.Tensor,
    masked: torch.Tensor,
) -> torch.Tensor:
    """Return what one micro-batch adds to the figures: sums, to be added up over micro-batches, steps and ranks.

    Args:
        logps: (B, T), detached. weights, loss_weights: (B, T), 0 = not selected; the second after floor and ceiling.
        tool_ids: (B, T), 0 = not selected or of no tool, k <= num_tools: a tool with figures of its own, `OTHER`: any other.
        loss: 0-d, this micro-batch's share of the term, coefficient included. masked: 0-d count of completions.

    Returns:
        (6 + 2 * (num_tools + 1),) NLL, tokens, tokens inside floor and ceiling, loss, masked, weight; then NLL and tokens of each
        tool, and of all others together.
    """
    # float64 keeps counts exact; Apple's GPUs have none
    dtype = torch.float32 if logps.device.type == "mps" else torch.float64
    nll = torch.where(weights != 0, -logps, torch.zeros_like(logps)).to(dtype)
    sums = [nll.sum(), (weights != 0).sum(), (loss_weights != 0).sum(), loss, masked, weights.to(dtype).sum()]
    for tool_id in (*range(1, num_tools + 1), OTHER):
        of_tool = tool_ids == tool_id
        sums += [torch.where(of_tool, nll, torch.zeros_like(nll)).sum(), of_tool.sum()]
    return torch.stack([value.to(dtype) for value in sums])


def figures(
    sums: Sequence[float], tools: Sequence[str], *, objective: "Objective", steps: float, coeff: float, silent: float
) -> dict[str, float]:
    """Return the figures of `steps` optimizer steps, from the totals that `token_sums` and its additions gave.

    `silent` is the share of steps whose advantages were all 0. Means are over selected tokens, and those over none are left out;
    `tokens` and `masked_by_host` are means over optimizer steps. `tool/other` covers all tools that are not among `tools`, if
    there were any. With the objective's `turn_information` there is also `information`: the weight of the selected tokens as a
    share of what it would be without.
    """
    nll, tokens, in_loss, loss, masked, weight = sums[: len(TOTALS)]
    values = {
        "tokens": tokens / steps,
        "coeff": coeff,
        "loss": loss / steps,
        "policy_silent": silent,
        "masked_by_host": masked / steps,
    }
    if tokens:
        values["nll"] = nll / tokens
        values["perplexity"] = math.exp(min(nll / tokens, 700.0))  # exp(710) overflows
        values["tokens_in_loss"] = in_loss / tokens
    *pairs, other = zip(sums[len(TOTALS) :: 2], sums[len(TOTALS) + 1 :: 2], strict=True)
    counted = dict(zip(tools, pairs, strict=True))
    if other[1]:  # a declared tool may have this very name
        own = counted.get(OTHER_TOOLS, (0.0, 0.0))
        counted[OTHER_TOOLS] = (own[0] + other[0], own[1] + other[1])
    for name, (tool_nll, tool_tokens) in counted.items():
        values[f"tool/{name}/tokens"] = tool_tokens / steps
        if tool_tokens:
            values[f"tool/{name}/nll"] = tool_nll / tool_tokens
    # elsewhere a token's weight is more than its ratio: a share of its trajectory, or its role's multiplier
    plain = objective.normalization != "per_trajectory" and not isinstance(objective.roles, Mapping)
    if tokens and objective.turn_information and plain:
        without = tokens
        if isinstance(objective.tools, Mapping):  # every token that counts is of one of these tools
            without = sum(multiplier * counted[name][1] for name, multiplier in objective.tools.items())
        values["information"] = weight / without
    return values


class Meter:
    """Accumulates an objective's figures in one mode (training, or an evaluation) until they are logged.

    Keys, the same on every rank and micro-batch: `nll`, `perplexity`, `tokens`, `coeff`, `loss`, `tokens_in_loss` (the share of
    the selected tokens inside the loss floor and ceiling), `policy_silent` (the share of steps whose advantages were all 0; 1
    without a policy loss), `masked_by_host` (completions a step whose environment tokens the host's truncation masking removed),
    `tool/<name>/{nll,tokens}`, `tool/other/{nll,tokens}`, and with `turn_information` `information`. `figures` says what each is
    a mean over, and which are left out without anything to average.
    """

    def __init__(self, objective: "Objective", prefix: str = "echo") -> None:
        self.objective, self.prefix = objective, prefix
        self.term_alone = False  # last result: whether a step had tokens that counted but only advantages of 0
        self.nll = self.tokens = 0.0  # last result: sums over its tokens
        self.clear()

    def clear(self) -> None:
        self._totals: torch.Tensor | float = 0.0  # 0-d entries in the order of TOTALS
        self._tools: dict[str, torch.Tensor] = {}  # name -> (NLL sum, tokens)
        self._other: torch.Tensor | float = 0.0  # the same for all other tools
        self._steps: list[float] = []  # coefficient of each optimizer step
        self._signal: list[torch.Tensor] = []  # Σ|advantage| of each optimizer step, this rank's
        self._counted: list[bool] = []  # whether the term trained in each optimizer step

    def add(self, sums: torch.Tensor, tools: Sequence[str]) -> None:
        """Add the `token_sums` of one micro-batch of this rank, tool k being `tools[k - 1]`."""
        self._totals = self._totals + sums[: len(TOTALS)]
        *pairs, other = sums[len(TOTALS) :].view(-1, 2)
        self._other = self._other + other
        for name, pair in zip(tools, pairs, strict=True):
            self._tools[name] = self._tools[name] + pair if name in self._tools else pair

    def end_step(self, coeff: float, signal: torch.Tensor, *, counted: bool = False) -> None:
        """Complete an optimizer step.

        Args:
            signal: 0-d, Σ|advantage| over its micro-batches on this rank.
            counted: whether any token had a part in the term, over all ranks.
        """
        self._steps.append(coeff)
        self._signal.append(signal)
        self._counted.append(counted and coeff > 0)

    def result(self, reduce: Reduce) -> dict[str, float]:
        """Return the figures so far, and start afresh; an empty dict if nothing was added. Every rank must call it."""
        self.nll = self.tokens = 0.0
        if not self._steps or isinstance(self._totals, float) or isinstance(self._other, float):
            return {}
        names, steps = sorted(self._tools), len(self._steps)
        signal = torch.stack(self._signal).to(self._totals.dtype)
        values = reduce(torch.cat([signal, self._totals, *(self._tools[name] for name in names), self._other])).tolist()
        self.nll, self.tokens = values[steps : steps + 2]
        silences = [value == 0 for value in values[:steps]]
        silent = sum(silences) / steps
        self.term_alone = any(no_signal and counted for no_signal, counted in zip(silences, self._counted, strict=True))
        coeff = sum(self._steps) / steps
        self.clear()
        found = self.objective.figures(values[steps:], names, steps=steps, coeff=coeff, silent=silent)
        return {f"{self.prefix}/{key}": value for key, value in found.items()}
