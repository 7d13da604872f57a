"""`wm lab forgetting`."""

from typing import Any

from wm_plugin.cli import measures
from wm_plugin.cli.numbers import Count
from wm_plugin.cli.output import prints
from wm_plugin.errors import UserError


@prints(measures.show)
def forgetting(
    *,
    model: str | None = None,
    before: str | None = None,
    results: str | None = None,
    before_results: str | None = None,
    config: str = "rwml",
    backend: str = "hf",
    limit: Count | None = None,
    seed: int = 0,
    out: str | None = None,
) -> dict[str, Any]:
    """What did a training make a model forget? General benchmarks, by lm-eval.

    Runs the general benchmarks of the papers by lm-eval (the extra `forgetting`) before and after a training, or reads results
    that lm-eval wrote, and compares them question by question where samples were logged.

    ```
    wm lab forgetting --model runs/trained --before Qwen/Qwen2.5-7B-Instruct --out out/forgetting --backend vllm
    wm lab forgetting --results theirs/trained --before-results theirs/base --out out/forgetting
    ```

    Args:
        model: Run the benchmarks on this model.
        before: And on the model that it was trained from.
        results: Or read lm-eval's results: a file, or a folder with results_*.json.
        before_results: And those of the model that it was trained from.
        config: rwml, wmact, or a config of lm-eval by path.
        backend: What runs the model in lm-eval: hf, vllm, ...
        limit: The first N questions of each benchmark, for a try.
        seed: Seed of the intervals.
        out: Folder that keeps lm-eval's results and the measures; --model needs one.
    """
    from wm_plugin.lab.evaluation import forgetting

    if bool(model) is bool(results):
        raise UserError(
            "name a model to run the benchmarks on (--model), or results of lm-eval (--results); one of them"
        )
    if (before and not model) or (before_results and not results):
        raise UserError("--before goes with --model, and --before-results with --results")
    if model and not out:
        raise UserError("--out is missing: a folder that keeps lm-eval's results")
    subject, earlier = model or results or "", before or before_results
    data = config if model else ""
    if model:
        forgetting.check_installed()
        settings = forgetting.config(config)
    if results:  # bad ones leave no folder behind
        after, base = forgetting.scores(results), forgetting.scores(earlier) if earlier else None
    folder = measures.open_folder(out, "forgetting", subject, data)
    if model and folder:
        for name, path in {"after": model, **({"before": before} if before else {})}.items():
            forgetting.run(path, folder / name, settings, backend=backend, limit=limit)
        after = forgetting.scores(folder / "after")
        base = forgetting.scores(folder / "before") if before else None
    own = {"before": earlier, "config": data, "backend": backend if model else "", "limit": limit}
    result = forgetting.evaluation(after, base, subject=subject, data=data, settings=own, seed=seed)
    return measures.kept(result, forgetting.rows(after, base), folder)
