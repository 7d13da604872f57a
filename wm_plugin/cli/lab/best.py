"""`wm lab best`."""

from pathlib import Path
from typing import Any

from wm_plugin.cli.flags import ModelFlags, WorkFlags
from wm_plugin.cli.lab.flags import SampleFlags
from wm_plugin.cli.support import progress, work_folder
from wm_plugin.data.best import BestOptions, Report, best_of_n


def best(
    source: str,
    /,
    *,
    out: Path,
    options: BestOptions,
    predictor: ModelFlags = ModelFlags(temperature=1.0),
    samples: SampleFlags = SampleFlags(),
    work: WorkFlags = WorkFlags(),
) -> dict[str, Any]:
    """Keep the best of n outputs for each transition, to fine-tune on (Qwen-AgentWorld).

    A model predicts each transition n times, a judge scores the predictions, a second one may compare them in pairs, and the best
    output is kept with its reasoning, if its score is good enough. A run that was killed continues where it was.

    As JSON: counts of `transitions`, `candidates` (with a scored prediction), `compared` pairs and `retained`; `retain_rate` of
    the candidates; and `rows` written, which may be fewer, since too long samples and half surrogate pairs are left out.

    Args:
        source: Transitions, as wm data expand writes them, or trajectories.
        out: X.jsonl or X.parquet.
    """
    predictor.check()
    samples.check(out)
    report = Report()
    kept = best_of_n(
        source,
        out,
        lambda: predictor.predictor(thinking=True),
        work_folder(out, work.work),
        options,
        report,
        inputs=[predictor.model, samples.tokenizer],
        shard_size=work.shard_size,
        watch=lambda outputs: progress(outputs, "transitions"),
    )
    return {"rows": samples.write(kept, out), **report.as_dict(), "out": str(out)}
