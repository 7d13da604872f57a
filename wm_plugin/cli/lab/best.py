"""`wm lab best`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wm_plugin.cli.flags import Count, EmbeddingFlags, ModelFlags, WorkFlags, default
from wm_plugin.cli.lab.flags import SampleFlags
from wm_plugin.cli.support import progress, reward_arguments, work_folder
from wm_plugin.options import Number


class Predictor(ModelFlags):
    temperature: Number = default(ModelFlags, "temperature", 1.0)


def best(
    source: str,
    /,
    *,
    out: Path,
    prompts: str,
    judge: str,
    threshold: float,
    predictor: Predictor = Predictor(),
    n: Count = 3,
    judge_args: str = "{}",
    compare: str | None = None,
    compare_args: str = "{}",
    embedding: EmbeddingFlags = EmbeddingFlags(),
    turn_information: bool = False,
    samples: SampleFlags = SampleFlags(),
    work: WorkFlags = WorkFlags(),
    seed: int = 0,
) -> dict[str, Any]:
    """Keep the best of n outputs for each transition, to fine-tune on (Qwen-AgentWorld).

    A model predicts each transition n times, a judge scores the predictions, a second one may compare them in pairs, and the best
    output is kept with its reasoning, if its score is good enough. A run that was killed continues where it was.

    As JSON: counts of `transitions`, `candidates` (with a scored prediction), `compared` pairs and `retained`; `retain_rate` of
    the candidates; and `rows` written, which may be fewer, since too long samples and half surrogate pairs are left out.

    Args:
        source: Transitions, as wm data expand writes them, or trajectories.
        out: X.jsonl or X.parquet.
        prompts: A domain (mcp, search, ...), or a file of your own.
        judge: rubric, rouge, embedding, ..., or package.module:NAME.
        threshold: The score that the best output must reach.
        n: Outputs for each transition.
        judge_args: The judge's arguments as JSON, such as a rubric's server.
        compare: Compare the outputs in pairs by reference, or package.module:NAME (default: by score).
        compare_args: Its arguments as JSON.
        turn_information: Leave transitions out with the probability of their category, as build does.
        seed: Seed of all draws.
    """
    from wm_plugin.data import best as room
    from wm_plugin.data.kinds import Exclusions, informative
    from wm_plugin.data.outputs import check_apart, files_in
    from wm_plugin.data.predictions import Repeatable, predictions
    from wm_plugin.data.prompts import load
    from wm_plugin.data.scores import real_valued
    from wm_plugin.data.transitions import transitions_in
    from wm_plugin.rewards.make import make

    predictor.check()
    samples.check(out)
    arguments = reward_arguments(judge, judge_args, "--judge-args")
    kwargs = reward_arguments(compare, compare_args, "--compare-args") if compare else {}
    inputs = [source, predictor.model, prompts, embedding.embedding_model, samples.tokenizer]
    check_apart([*inputs, *files_in([arguments, kwargs])], {"--out": out})
    folder = work_folder(out, work.work)
    score = real_valued(judge, embedding.embedding_model, embedding.embedding_server, arguments)
    pairs = make({"path": compare, "kwargs": kwargs}, field="--compare") if compare else None
    family, report = load(prompts), room.Report()

    def transitions() -> Iterator[Any]:
        read = transitions_in(source)
        return informative(read, seed, Exclusions()) if turn_information else read

    outputs = predictions(
        Repeatable(transitions),
        predictor.predictor(thinking=True),
        family,
        k=n,
        folder=folder / "predictions",
        shard_size=work.shard_size,
        seed=seed,
        stage=room.STAGE,
    )
    kept = room.best(
        progress(outputs, "transitions"), score, family, threshold=threshold, compare=pairs, seed=seed, report=report
    )
    return {"rows": samples.write(kept, out), **report.as_dict(), "out": str(out)}
