"""Logs of trainers in their real forms: TensorBoard's files, trackio's databases, verl's file logger, trainer_state.json."""

import base64
import gzip
import json
import sqlite3
import struct
from pathlib import Path

import pytest

# A file that TensorBoard's own writer made: train/loss 0.5, 0.25 and NaN at steps 1 to 3; a text; big 3 at step 2**40; and, as a
# tensor, eval/reward -1.5 at step 2.
REAL = gzip.decompress(
    base64.b64decode(
        "H4sIAKypA2sC//NggIB/kzzmcko8Ysl+deCWoxRvUlFiZp6ea1lqXomVUZAel05Jal5xflFSfmJRil5xaW5uYlGlXnlRZklqkV4qSFV8WmZO"
        "ajxE5OunS1MUoOZqvl0ZwLn7FcRcAUYtYS5BLq4SkOn6OfnFxaJAJfYlYk9FUNRffwtVz4RFfYMd9/xN3Sjqhd5B1TNjUX+g3sRSTMsYqp5n"
        "uUIYZ9s7uPlqXCpc3KlliTn6RanlQM85cXAwarEAde334ubi5GIvTk7MSSwqvmUz6ZUc1Iibd4SMONfBjGgAAQUtHi4uLuakzHSghQ4OKwTZ"
        "RW2gqk9sXxzEqfweHgD6XLpcgnn5Jan6JakVJfHQsHTi42AXYhFi4mB0YgGJe3FwsXGBWQ8LL5sBAN/eyF2lAQAA"
    )
)
# trackio's tables: today's, and that of its first releases
TABLES = (
    "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL, "
    "run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)",
    "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT NOT NULL, project_name TEXT NOT NULL, "
    "run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)",
)

Points = dict[str, dict[int, float]]


def write_events(folder: Path, points: Points) -> Path:
    """A file of TensorBoard's writer; skips the test without TensorBoard."""
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "events.out.tfevents.1700000000.host.1.0"
    rows = [(step, tag, value) for tag, steps in points.items() for step, value in steps.items()]
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for step, tag, value in sorted(rows):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.write(Event(step=step, summary=summary).SerializeToString())
    return path


def write_state(folder: Path, points: Points, checkpoint: int | None = None) -> Path:
    """A `trainer_state.json`, with the fields that transformers writes beside the history."""
    steps = sorted({step for values in points.values() for step in values})
    history = [{n: v[step] for n, v in points.items() if step in v} | {"step": step, "epoch": 0.1} for step in steps]
    state = {
        "best_metric": None,
        "epoch": 1.0,
        "global_step": steps[-1],
        "log_history": history,
        "max_steps": steps[-1],
    }
    folder = folder / f"checkpoint-{checkpoint}" if checkpoint is not None else folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({**state, "stateful_callbacks": {}}, indent=2, sort_keys=True))
    return path


def write_verl(path: Path, points: Points) -> Path:
    steps = sorted({step for values in points.values() for step in values})
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"step": step, "data": {n: v[step] for n, v in points.items() if step in v}} for step in steps]
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return path


def write_wandb(path: Path, records: list[bytes]) -> Path:
    """A log of LevelDB with wandb's header: records in parts, none across blocks of 32 KiB."""
    data = b":W&B\xe1\xbe\x00"
    for record in records:
        first = True
        while first or record:
            left = (1 << 15) - len(data) % (1 << 15)
            if left < 7:
                data += b"\0" * left
                continue
            part, record = record[: left - 7], record[left - 7 :]
            kind = (1 if first else 4) if not record else 2 if first else 3
            data += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_trackio(path: Path, runs: dict[str, Points], *, form: int = 0) -> Path:
    """As transformers' callback does: names with `train/`, and the trainer's step among the metrics."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute(TABLES[form])
    column = ("run_id", "project_name")[form]
    for run, points in runs.items():
        for call, step in enumerate(sorted({step for values in points.values() for step in values})):
            metrics = {f"train/{n}": v[step] for n, v in points.items() if step in v} | {"train/global_step": step}
            key = (f"id-{run}", "project")[form]
            row = (key, "2026-01-01T00:00:00", run, call, json.dumps(metrics))
            database.execute(
                f"INSERT INTO metrics ({column}, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)", row
            )
    database.commit()
    database.close()
    return path


def write_demo(folder: Path, points: Points, coeffs: tuple[float, ...] = (0.0, 1.0)) -> Path:
    """The `result.json` of `wm demo`, with the same points in each arm; names with eval_ are of its evaluations."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = sorted({step for values in points.values() for step in values})
    parts = {"training": {}, "evaluations": {}}
    for name, values in points.items():
        parts["evaluations" if name.startswith("eval_") else "training"][name.removeprefix("eval_")] = values
    arm = {
        part: [{"step": step} | {n: v[step] for n, v in metrics.items() if step in v} for step in steps]
        for part, metrics in parts.items()
    }
    path = folder / "result.json"
    arms = [{"coeff": coeff, "success_start": 0.0, **arm} for coeff in coeffs]
    path.write_text(json.dumps({"arms": arms, "look_ahead": {}, "claims": [], "warm_start": {}}, indent=1) + "\n")
    return path
