"""The objectives' terms, added to whatever loss the actor already has: weighted sums of the same log-probabilities."""

from typing import Any, Protocol

import torch
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from wm_plugin.objectives.run import Objectives, column
from wm_plugin.verl.names import COEFF, NUM_TOKENS, NUM_TOOLS, SILENT, SUMS, TOOL_IDS, WEIGHTS


class Loss(Protocol):
    """verl's form of a loss: (model output, batch, process group) -> loss, metrics."""

    def __call__(
        self, *, model_output: Any, data: Any, dp_group: Any = None
    ) -> tuple[torch.Tensor, dict[str, Any]]: ...


def world_model_loss(
    model_output: Any, data: Any, dp_group: Any = None, *, base: Loss, objectives: Objectives
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return `base`'s loss of a micro-batch, or 0 without a policy loss, with its share of each objective's term.

    verl averages gradients over data-parallel ranks, and a term is a sum over them: it is multiplied by their number, as verl's
    own losses are. At coefficient 0 the tensor of `base` goes back as it is.

    Args:
        model_output: `log_probs` (jagged, of prompts and responses), with gradient.
        data: the micro-batch. Beside what `base` reads, it has for each objective
            `wm_weights` (rows, response), jagged or padded, float32; 0 = the token does not count;
            `wm_tool_ids` (rows, response), int16; 0 = not selected, k = the k-th tool with figures of its own;
            and the single values `wm_coeff`, `wm_num_tools`, `wm_num_tokens` (N of the mini-batch, over all ranks); once
            `wm_silent` (1.0 if all its advantages are 0), and verl's `dp_size`.
        dp_group: passed on to `base`.

    Returns:
        The loss, 0-d, and the metrics of `base` with the sums that the trainer makes figures of, as `wm_sums/<k>`.

    Raises:
        KeyError: the batch lacks one of our columns.
    """
    with torch.set_grad_enabled(torch.is_grad_enabled() and objectives.policy_loss):
        loss, metrics = base(model_output=model_output, data=data, dp_group=dp_group)
    logps = no_padding_2_padding(model_output["log_probs"], data)
    names = [column(one, name) for one in (WEIGHTS, TOOL_IDS) for name in objectives]
    ranks = int(data["dp_size"])
    loss, sums = objectives.add_terms(
        loss,
        logps,
        {name: _padded(data[name], logps.size(1)) for name in names},
        coeffs={name: float(data[column(COEFF, name)]) for name in objectives},
        num_tokens={name: float(data[column(NUM_TOKENS, name)]) for name in objectives},
        num_tools={name: int(data[column(NUM_TOOLS, name)]) for name in objectives},
        ranks=ranks,
        masked=torch.zeros((), device=logps.device),
    )
    for name, own in sums.items():
        for index, value in enumerate(own.tolist()):  # one transfer from the device
            # verl adds over micro-batches, but averages over ranks
            metrics[f"{column(SUMS, name)}/{index}"] = Metric(AggregationType.SUM, value * ranks)
    silent = float(data[SILENT]) if objectives.policy_loss else 1.0
    metrics[f"{SUMS}/silent"] = Metric(AggregationType.MEAN, silent)
    return loss, metrics


def _padded(column: torch.Tensor, width: int) -> torch.Tensor:
    column = column.to_padded_tensor(0) if column.is_nested else column
    return torch.nn.functional.pad(column, (0, width - column.size(1)))
