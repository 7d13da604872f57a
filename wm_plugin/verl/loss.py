"""The world-model term, added to whatever loss the actor already has: one more weighted sum of the same log-probabilities."""

from typing import Any, Protocol

import torch
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from wm_plugin.objectives import EchoConfig, echo_loss, within_bounds
from wm_plugin.objectives.metrics import token_sums

# Columns of the actor's batch, written by the trainer.
WEIGHTS = "wm_weights"  # (rows, response) float32, 0 = the token does not count
TOOL_IDS = "wm_tool_ids"  # (rows, response) int16, 0 = not selected, k = the k-th tool
COUNTS = "wm_counts"  # (rows, 1) int64: what the row adds to N
COLUMNS = (WEIGHTS, TOOL_IDS, COUNTS)
# Single values that travel with a batch.
COEFF = "wm_coeff"
NUM_TOOLS = "wm_num_tools"
NUM_TOKENS = "wm_num_tokens"  # N of the mini-batch, over all ranks; written by the worker
SILENT = "wm_silent"  # 1.0 if all advantages of the mini-batch are 0; written by the worker

SUMS = "wm_sums"  # prefix of the metrics that carry the sums to the trainer: not averaged there


class Loss(Protocol):
    """verl's form of a loss: (model output, batch, process group) -> loss, metrics."""

    def __call__(
        self, *, model_output: Any, data: Any, dp_group: Any = None
    ) -> tuple[torch.Tensor, dict[str, Any]]: ...


def world_model_loss(
    model_output: Any, data: Any, dp_group: Any = None, *, base: Loss, config: EchoConfig
) -> tuple[torch.Tensor, dict[str, Any]]:
    """`base`'s loss of a micro-batch plus its share of the term.

    verl averages gradients over data-parallel ranks what is a sum over them, so that the term is multiplied by their number, as
    verl's own losses are. At coefficient 0 the tensor of `base` goes back as it is.

    Raises:
        KeyError: the batch lacks one of our columns.
    """
    loss, metrics = base(model_output=model_output, data=data, dp_group=dp_group)
    logps = no_padding_2_padding(model_output["log_probs"], data)
    weights, tool_ids = (_padded(data[name], logps.size(1)) for name in (WEIGHTS, TOOL_IDS))
    coeff, ranks = float(data[COEFF]), int(data["dp_size"])
    with torch.set_grad_enabled(torch.is_grad_enabled() and coeff > 0):
        loss_weights = within_bounds(logps, weights, config)
        term = coeff * echo_loss(logps, loss_weights, float(data[NUM_TOKENS]))
    sums = token_sums(
        logps.detach(),
        weights,
        tool_ids,
        int(data[NUM_TOOLS]),
        loss_weights=loss_weights,
        loss=term.detach(),
        masked=torch.zeros((), device=logps.device),
    )
    for index, value in enumerate(sums.tolist()):  # one transfer from the device
        # verl adds over micro-batches, but averages over ranks
        metrics[f"{SUMS}/{index}"] = Metric(AggregationType.SUM, value * ranks)
    metrics[f"{SUMS}/silent"] = Metric(AggregationType.MEAN, float(data[SILENT]))
    return (loss + ranks * term if coeff > 0 else loss), metrics


def _padded(column: torch.Tensor, width: int) -> torch.Tensor:
    column = column.to_padded_tensor(0) if column.is_nested else column
    return torch.nn.functional.pad(column, (0, width - column.size(1)))
