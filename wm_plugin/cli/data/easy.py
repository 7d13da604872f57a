"""`wm data easy`."""

from pathlib import Path
from typing import Any

from wm_plugin.cli.flags import ModelFlags, WorkFlags
from wm_plugin.cli.support import progress, quiet, work_folder
from wm_plugin.data.easy import EasyOptions, thin_out
from wm_plugin.options import option


class Filter(ModelFlags):
    """The filter model."""

    model: str | None = option("The base that the filter model is trained from.", default=None)
    filter_model: str | None = option("A trained filter model; then all samples are predicted.", default=None)


def easy(
    source: str,
    /,
    *,
    out: Path,
    options: EasyOptions = EasyOptions(),
    predictor: Filter = Filter(temperature=1.0),
    work: WorkFlags = WorkFlags(),
) -> dict[str, Any]:
    """Thin out what a briefly trained model predicts already (RWML).

    A filter model is trained on a share of the tasks and predicts the rest K times. Some of what it gets right is kept. The
    share that trained it is left out of the result. A run that was killed continues where it was.

    As JSON: counts of transitions, also by who was observed, `easy_share`, `threshold`, `means` (transitions by the share of
    right predictions), counts of `failed` and `malformed` predictions, and of transitions whose predictions are `alike`.

    Args:
        source: Transitions, as wm data expand writes them, or trajectories.
        out: X.jsonl; X.easy.jsonl beside it has every sample's distances.
    """
    predictor.check({"--filter-model": predictor.filter_model})
    if predictor.model:
        quiet()
    result = thin_out(
        source,
        out,
        lambda model: predictor.predictor(thinking=False, path=model),
        work_folder(out, work.work),
        options,
        base=predictor.model,
        filter_model=predictor.filter_model,
        shard_size=work.shard_size,
        watch=lambda outputs: progress(outputs, "transitions"),
    )
    if result["alike"] == result["predicted"] > 0:
        result["notes"] = [
            "each transition's predictions are all the same: was anything sampled? (transformers serve samples only if the "
            "model's generation_config.json has do_sample true)"
        ]
    return result
