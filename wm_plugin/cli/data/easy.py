"""`wm data easy`."""

from collections import Counter
from pathlib import Path
from typing import Any

from wm_plugin.cli.flags import Count, EmbeddingFlags, ModelFlags, Share, WorkFlags, default
from wm_plugin.cli.support import progress, quiet, work_folder
from wm_plugin.errors import UserError
from wm_plugin.options import Number, option

TARGET_SHARE = 0.3  # the paper's share, on both its benchmarks


class Filter(ModelFlags):
    model: str | None = option("The base that the filter model is trained from.", default=None)
    filter_model: str | None = option("A trained filter model; then all samples are predicted.", default=None)
    temperature: Number = default(ModelFlags, "temperature", 1.0)


def easy(
    source: str,
    /,
    *,
    out: Path,
    predictor: Filter = Filter(),
    prompts: str = "rwml",
    k: Count = 10,
    reward: str = "rwml",
    embedding: EmbeddingFlags = EmbeddingFlags(),
    threshold: Share | None = None,
    target_easy_share: Share | None = None,
    tau_easy: Share = 0.0,
    keep: Share = 0.1,
    filter_share: Share = 0.1,
    filter_data: str | None = None,
    epochs: float = 2.0,
    learning_rate: float = 2e-6,
    train_batch_size: Count = 32,
    work: WorkFlags = WorkFlags(),
    seed: int = 0,
) -> dict[str, Any]:
    """Thin out what a briefly trained model predicts already (RWML).

    A filter model is trained on a share of the tasks and predicts the rest K times. Some of what it gets right is kept. The
    share that trained it is left out of the result. A run that was killed continues where it was.

    As JSON: counts of transitions, also by who was observed, `easy_share`, `threshold`, `means` (transitions by the share of
    right predictions), counts of `failed` and `malformed` predictions, and of transitions whose predictions are `alike`.

    Args:
        source: Transitions, as wm data expand writes them, or trajectories.
        out: X.jsonl; X.easy.jsonl beside it has every sample's distances.
        prompts: A family of prompts, or a file of your own.
        k: Predictions of each sample.
        reward: rwml (rouge for tools, else embedding), rouge, embedding, exact, ..., or package.module:NAME.
        threshold: A prediction below this distance is right.
        target_easy_share: Find the threshold for this share of easy samples (default: 0.3).
        tau_easy: A sample is easy if more than this share of its predictions is right.
        keep: Share of the easy transitions that stays.
        filter_share: Share of the tasks that train the filter model.
        filter_data: Train on these instead, e.g. the validation split; then all samples are predicted.
        epochs: Of the filter model's training.
        learning_rate: Of the filter model's training.
        train_batch_size: Samples of a training step.
        seed: Seed of all draws.
    """
    from wm_plugin.data import easy as room
    from wm_plugin.data.outputs import check_apart, check_out
    from wm_plugin.data.predictions import Repeatable, predictions
    from wm_plugin.data.prompts import load
    from wm_plugin.data.scores import NO_MODEL, real_valued
    from wm_plugin.data.transitions import transitions_in

    predictor.check({"--filter-model": predictor.filter_model})
    check_out(out, (".jsonl",))
    scores = room.check_scores(out)
    inputs = (source, filter_data, prompts, predictor.model, predictor.filter_model, embedding.embedding_model)
    check_apart(inputs, {"--out": out, "the scores": scores})
    if threshold is not None and target_easy_share is not None:
        raise UserError("--target-easy-share finds the threshold: leave it or --threshold out")
    if filter_data and not predictor.model:
        raise UserError("--filter-data is for training: name the base with --model")
    folder = work_folder(out, work.work)
    family = load(prompts)
    similarity = real_valued(reward, embedding.embedding_model, embedding.embedding_server)
    share = filter_share if predictor.model and not filter_data else 0.0
    everything = Repeatable(lambda: transitions_in(source))
    rest = Repeatable(lambda: (one for one in everything if not room.trains_filter(one, share, seed)))
    kinds = Counter(one.observation.kind for one in everything)
    if reward == "rwml" and not embedding.embedding_model and kinds.total() > kinds["tool"]:
        raise UserError(f"not all observations are tools' results: {NO_MODEL}")

    trained_on, model = 0, predictor.filter_model
    if predictor.model:
        quiet()
        train = (one for one in everything if room.trains_filter(one, share, seed))
        trained_on = room.train_filter(
            transitions_in(filter_data) if filter_data else train,
            family,
            predictor.model,
            folder / "filter",
            seed=seed,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=train_batch_size,
        )
        model = str(folder / "filter")
    outputs = predictions(
        rest,
        predictor.predictor(thinking=False, path=model),
        family,
        k=k,
        folder=folder / "predictions",
        shard_size=work.shard_size,
        seed=seed,
        stage=room.STAGE,
        thinking=False,
    )
    distances = list(room.distances(progress(outputs, "transitions"), similarity, family))
    if threshold is None:
        target = TARGET_SHARE if target_easy_share is None else target_easy_share
        threshold = room.solve_threshold((row.values for row in distances), tau_easy, target)
    report = room.write_filtered(rest, distances, out, threshold=threshold, tau_easy=tau_easy, keep=keep, seed=seed)
    result: dict[str, Any] = {
        "transitions": kinds.total(),
        "observations": {kind: kinds[kind] for kind in ("tool", "user", "environment")},
        "trained_on": trained_on,
        **report.as_dict(),
        "failed": sum(k - len(row.values) for row in distances),
        "malformed": sum(row.malformed for row in distances),
        "alike": sum(row.alike for row in distances),
        "out": str(out),
        "scores": str(scores),
    }
    if result["alike"] == result["predicted"] > 0:
        result["notes"] = [
            "each transition's predictions are all the same: was anything sampled? (transformers serve samples only if the "
            "model's generation_config.json has do_sample true)"
        ]
    return result
