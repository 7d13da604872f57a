"""The scores of a file's rows on TRL, whose policy says what a test wants."""

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets

from wm_plugin.trl.rewards import reward_functions

WAYS = ("function",)


def score(
    spec: dict[str, Any], path: Path, say: Callable[[str], str], way: str
) -> tuple[list[str], list[float], dict[str, float]]:
    """The targets of the rows, the score of what is said of each, and the figures."""
    kind = {".jsonl": "json", ".parquet": "parquet"}[path.suffix]
    rows = list(datasets.load_dataset(kind, data_files=str(path), split="train"))
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    figures: dict[str, float] = {}
    host = {"completion_ids": [[0]] * len(rows), "trainer_state": None, "log_extra": None}
    completions = [[{"role": "assistant", "content": say(target)}] for target in columns["target"]]
    (function,) = reward_functions([spec])
    prompts = [row["prompt"] for row in rows]
    found = function(prompts=prompts, completions=completions, log_metric=figures.__setitem__, **host, **columns)
    return columns["target"], asyncio.run(found) if inspect.isawaitable(found) else found, figures
