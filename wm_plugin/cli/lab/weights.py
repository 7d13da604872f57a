"""`wm lab weights`."""

from typing import Any

from wm_plugin.cli import measures
from wm_plugin.cli.numbers import Share
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import progress


@prints(measures.show)
def weights(*, model: str, before: str, eta: Share = 1e-3, out: str | None = None) -> dict[str, Any]:
    """Which share of a model's weights did a training change?

    The share of weights with |after - before| > eta * max(|before|, |after|), of all that are finite and not zero in both (RWML,
    appendix E), by layer and module. Reads safetensors files, and runs no code of a model.

    Args:
        model: The trained model: a folder, or a file or an index in it.
        before: The model that it was trained from.
        eta: Changes up to this share are none.
        out: Folder that keeps the shares, by tensor, and the measures.
    """
    from wm_plugin.lab.evaluation.weights import changes, evaluation, pair, row  # imports torch

    pairs = pair(before, model)
    folder = measures.open_folder(out, "weights", model, before)
    compared = list(progress(changes(pairs, eta), "tensors"))
    result = evaluation(compared, pairs, before, model, eta)
    return measures.kept(result, map(row, compared), folder, ok=result.measure("changed").value is not None)
