"""From a world through the commands to the rows that a host's reward gets, and a server of embeddings that compares words."""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.serving import Handler, serving
from wm_plugin.cli.main import main
from wm_plugin.data.rows import write_rows
from wm_plugin.worlds.worlds import load

# A world, the tool that is asked about, and who is observed.
ROUTES = [
    ("sql", "run_query", "tool"),
    ("dialogue", "message_user", "user"),
    ("dialogue", "get_order", "tool"),
    ("textworld", "act", "environment"),
    ("alfworld", "act", "environment"),
]
CONTENTLESS = "The answer to the call, in the words and the layout of such answers."
DIMENSIONS = 512


def missing(world: str) -> list[str]:
    """What this machine lacks for a world."""
    return load(world).missing()


def rows_of(world: str, tool: str, host: str, folder: Path, observer: str) -> Path:
    """A file of the rows for RWML on a host, of episodes of the expert, whose observations answer `tool`; checks who observes."""
    rollouts, transitions, rows = (folder / f"{name}.jsonl" for name in ("rollouts", "transitions", "rows"))
    steps = [
        ["env", "rollout", world, "--policy", "expert", "--count", "2", "--out", rollouts, "--host", host],
        ["data", "expand", rollouts, "--out", transitions],
        ["data", "build", transitions, "--as", "rwml", "--host", host, "--out", rows],
    ]
    for step in steps:
        assert main([str(word) for word in step]) == 0
    made: list[dict[str, Any]] = [json.loads(line) for line in rows.read_text().splitlines()]
    columns = [row if host == "trl" else row["extra_info"] for row in made]
    kept = [row for row, own in zip(made, columns, strict=True) if own["tool"] == tool]
    assert {own["observer"] for own in columns if own["tool"] == tool} == {observer}
    write_rows(kept, folder / "kept.parquet")
    return folder / "kept.parquet"


def said(text: str) -> str:
    """A model's output with this prediction."""
    return f"<think>\nHm.\n</think>\n<next_state>\n{text}\n</next_state>"


@contextmanager
def embeddings() -> Iterator[tuple[str, list[str]]]:
    """The address of a server whose vectors count words, and the texts that it was asked for."""
    asked: list[str] = []

    class Embeddings(Handler):
        def do_POST(self) -> None:
            texts = self.body()["input"]
            asked.extend(texts)
            data = [{"object": "embedding", "index": n, "embedding": _vector(text)} for n, text in enumerate(texts)]
            self.reply({"object": "list", "data": data, "model": "words"})

    with serving(Embeddings) as url:
        yield url, asked


def _vector(text: str) -> list[float]:
    vector = [0.0] * DIMENSIONS
    for word in text.lower().split():
        vector[zlib.crc32(word.encode()) % DIMENSIONS] += 1
    return vector if any(vector) else [1.0, *vector[1:]]
