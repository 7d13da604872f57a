"""`wm lab coefficient`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from wm_plugin.cli.masks import CountFlags
from wm_plugin.cli.numbers import Count
from wm_plugin.cli.output import prints, table
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import rollout_rows

Preset = Literal["blog", "paper", "prime-rl", "verl-recipe", "rllm", "openenv"]


def show(result: dict[str, Any]) -> None:
    rows = [
        {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
        for row in result["presets"]
    ]
    table(rows)
    print(
        f"equal is the weight on the content of tools' results, which all of them train ({result['rollouts']} rollouts as one "
        f"optimizer batch of {result['micro_batches']} micro-batches)"
    )


@prints(show)
def coefficient(
    rollouts: str,
    /,
    *,
    preset: Annotated[Preset, Parameter(name="--from")],
    alpha: float | None = None,
    count: CountFlags = CountFlags(),
    micro_batches: Count = 1,
) -> dict[str, Any]:
    """Which coefficient of another trainer's ECHO pulls as hard as this one?

    The presets select other tokens and divide by other counts (docs/coefficient.md), so that a coefficient cannot be carried
    over. ROLLOUTS is what `wm masks` takes: an optimizer batch of your own run.

    Args:
        rollouts: A .jsonl file, or a .parquet file that TRL wrote.
        preset: The trainer that the coefficient is of.
        alpha: The coefficient; by default that trainer's own.
        micro_batches: How many micro-batches the batch has, on which openenv depends.
    """
    from wm_plugin.lab.evaluation.coefficients import equivalents
    from wm_plugin.objectives.echo import EchoConfig
    from wm_plugin.tokens.spans import Origin, Span

    if not count.tokenizer:
        raise UserError("--tokenizer PATH is missing: it is the policy's, by which the rollouts are tokenized")
    if alpha is not None and not 0 <= alpha < float("inf"):
        raise UserError(f"--alpha is {alpha}; write a number >= 0")
    inspections, _ = count.inspect(list(rollout_rows.read_rows(Path(rollouts))), EchoConfig(1.0))
    batch = [
        [
            Origin(Span(piece.start, piece.end, piece.role, piece.tool, piece.kind == "content"), failed=piece.failed)
            for piece in inspection.pieces
            if piece.kind in ("content", "scaffold")
        ]
        for _, inspection in inspections
    ]
    return {
        "presets": list(equivalents(batch, preset, alpha, micro_batches)),
        "rollouts": len(batch),
        "micro_batches": micro_batches,
    }
