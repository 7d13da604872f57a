"""`wm lab mix`."""

from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError, shown


def mix(
    sources: list[str], /, *, out: Path, count: tuple[str, ...], successful: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Draw so many trajectories or rows from each of several files, and shuffle them.

    Draws by a seed and without replacement; with the same seed a smaller draw is a subset of a larger one. Rows must be built
    alike; trajectories keep what says where they come from.

    ```
    wm lab mix real.jsonl synthetic.jsonl --successful --count 500 --count 500 --out half.jsonl
    wm lab mix transitions.parquet imitation.parquet --count all --out iwm.parquet
    ```

    As JSON: `what` was mixed; `parts`, each with `source`, `there`, `drawn` and `synthetic`; and sums of them.

    Args:
        sources: Trajectories, or rows that wm data build wrote.
        out: X.jsonl or X.parquet.
        count: How many of a file, or all: once for each file, in their order, or once for every file.
        successful: Take successful trajectories alone.
        seed: Seed of what is drawn and of the order.
    """
    from wm_plugin.data import mix as room  # imports torch

    counts = [_count(text) for text in count]
    if len(counts) == 1:
        counts *= len(sources)
    if len(counts) != len(sources):
        raise UserError(f"--count is there {len(counts)} times for {len(sources)} files; write it once for each")
    report = room.mix(sources, counts, out, successful=successful, seed=seed).as_dict()
    if report["repeated"]:
        report["notes"] = [f"{report['repeated']} are in more than one file, and were drawn from each"]
    return {**report, "out": str(out)}


def _count(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text)):
        raise UserError(f"--count is {shown(text)}; write a number >= 1, or all")
    return int(text)
