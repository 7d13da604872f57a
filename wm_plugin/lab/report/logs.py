"""Reads trainers' logs: `trainer_state.json`, files of TensorBoard, wandb and verl's file logger, trackio's databases, `wm demo`.

What is no finite number is left out.
"""

import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from wm_plugin.data import files
from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads, number

_LONGEST = 200  # characters of a metric's name
_PEEK = 1 << 16  # bytes of a file that tell its kind
_LAST_STEP = 1 << 53
_STEPS = ("step", "global_step", "epoch")  # no metrics
_DEMO = "result.json"
DATABASES = (".db", ".sqlite", ".sqlite3")
_SQLITE = b"SQLite format 3\0"
_WANDB = b":W&B"  # and a version: 7 bytes before the first block
_BLOCK, _FULL, _FIRST, _LAST = 1 << 15, 1, 2, 4  # LevelDB's log, in which wandb writes


@dataclass
class Run:
    """The log of one training run."""

    name: str  # for people
    place: str  # its path, to which a database adds the run's own name
    values: dict[str, dict[int, float]] = field(default_factory=dict)  # for each metric: step to value
    sources: list[str] = field(default_factory=list)  # the files
    notes: list[str] = field(default_factory=list)  # what was left out, and why
    titled: bool = False  # it has a name of its own, not a file's
    names: dict[str, str] = field(default_factory=dict)  # shared name: the host's, as `training.shared` finds them

    def add(self, metric: str, step: Any, value: Any, *, again: bool = True) -> None:
        """Keep a value, unless it is no number.

        Args:
            again: whether it replaces an earlier value of the same step.
        """
        at, scalar = number(step), number(value)
        metric = _plain(metric)
        if at is None or abs(at) > _LAST_STEP or scalar is None or metric in _STEPS:
            return
        steps = self.values.setdefault(metric, {})
        if again or int(at) not in steps:
            steps[int(at)] = scalar

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def merge(self, other: "Run") -> None:
        """Add what another log of the same run has besides."""
        for metric, step, value in rows_of(other):
            self.add(metric, step, value, again=False)
        self.sources += other.sources
        for text in other.notes:
            self.note(text)

    def curve(self, metric: str) -> dict[int, float]:
        """Return a metric's values by step, by its shared name or the host's."""
        return self.values.get(self.names.get(metric, metric), {})

    @property
    def metrics(self) -> set[str]:
        """The names of all metrics: the shared ones in place of the host's."""
        return (self.values.keys() - set(self.names.values())) | self.names.keys()

    @property
    def last_step(self) -> int:
        return max((max(steps) for steps in self.values.values() if steps), default=0)


def kind_of(path: Path) -> str:
    """Return `trl`, `tensorboard`, `trackio`, `wandb`, `verl` or `demo` by a file's name and beginning; "" for any other file."""
    if not path.is_file():
        return ""
    if "tfevents" in path.name:
        return "tensorboard"
    if path.suffix == ".wandb":
        return "wandb"
    if path.suffix not in (".json", ".jsonl", *DATABASES):
        return ""
    try:
        with path.open("rb") as file:
            start = file.read(_PEEK)
    except OSError:
        return ""
    if start.startswith(_SQLITE):
        return "trackio"
    if path.name == _DEMO and start.replace(b" ", b"").replace(b"\n", b"").startswith(b'{"arms":[{"coeff":'):
        return "demo"
    if path.suffix == ".json":
        return "trl" if path.name == "trainer_state.json" or b'"log_history"' in start else ""
    head = start.lstrip().partition(b"\n")[0][:200].replace(b" ", b"")
    is_verl = path.suffix == ".jsonl" and head.startswith(b'{"step":') and b',"data":{' in head
    return "verl" if is_verl else ""


def read(path: Path) -> list[Run]:
    """Read the runs in a trainer's file; a database has several.

    Raises:
        UserError: it cannot be read, or no trainer wrote it.
    """
    kind = kind_of(path)
    if not kind:
        raise UserError(
            f"{path}: no log of a trainer (TensorBoard, trackio, wandb, verl's file logger, trainer_state.json)"
        )
    return READERS[kind](path)


def rows_of(run: Run) -> Iterator[tuple[str, int, float]]:
    """Yield (metric, step, value), by metric and step."""
    for metric in sorted(run.values):
        for step, value in sorted(run.values[metric].items()):
            yield metric, step, value


def _of_folder(path: Path) -> Run:
    return Run(path.parent.name, str(path.parent), sources=[str(path)])


def _trl(path: Path) -> list[Run]:
    """Read a `trainer_state.json`: what was logged up to a checkpoint."""
    record = files.whole(path)
    history = record.value.get("log_history") if isinstance(record.value, dict) else None
    if not isinstance(history, list):
        raise UserError(f"{path}: {record.error or 'no log_history in it'}")
    run = _of_folder(path)
    for entry in history:
        for name, value in entry.items() if isinstance(entry, dict) else ():
            run.add(name, entry.get("step"), value)
    return [run]


def _tensorboard(path: Path) -> list[Run]:
    """Read an event file by TensorBoard's own loader, which ends at a damaged record."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise UserError(f"{path}: TensorBoard reads its files, and is not installed: pip install tensorboard") from None
    run = _of_folder(path)
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                run.add(value.tag, event.step, make_ndarray(value.tensor).item())
    return [run]


def _verl(path: Path) -> list[Run]:
    """Read a file of `trainer.logger=file`: a step and its metrics a line."""
    run = Run(path.stem, str(path), sources=[str(path)])
    left = ""  # one note for all such lines
    for record in files.lines(path):
        value = record.value
        if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
            left = left or f"{path.name}: lines that are no metrics are left out, the first is row {record.row}"
            continue
        for name, scalar in value["data"].items():
            run.add(name, value.get("step"), scalar)
    if left:
        run.note(left)
    return [run]


def _demo(path: Path) -> list[Run]:
    """Read the `result.json` of `wm demo`: a run for each arm, with its log and its held-out measurements."""
    record = files.whole(path)
    arms = record.value.get("arms") if isinstance(record.value, dict) else None
    if not isinstance(arms, list):
        raise UserError(f"{path}: {record.error or 'no arms in it'}")
    runs = []
    for arm in arms:
        coeff = number(arm.get("coeff")) if isinstance(arm, dict) else None
        if coeff is None:
            raise UserError(f"{path}: an arm without a coefficient")
        name = f"{path.resolve().parent.name} coeff_{coeff:g}"
        run = Run(name, f"{path}:coeff_{coeff:g}", sources=[str(path)], titled=True)
        for prefix, part in (("", "training"), ("eval_", "evaluations")):
            for entry in arm[part] if isinstance(arm.get(part), list) else ():
                for metric, value in entry.items() if isinstance(entry, dict) else ():
                    run.add(metric if metric in _STEPS else f"{prefix}{metric}", entry.get("step"), value)
        runs.append(run)
    _number_same_names(runs)
    return runs


def _trackio(path: Path) -> list[Run]:
    """Read a trackio database, a project with its runs. Its schema has changed: runs have ids in later ones."""
    uri = f"file:{quote(bytes(path.resolve()))}?mode=ro"  # a name need not be UTF-8
    if not (path.parent / f"{path.name}-wal").exists():
        uri += "&immutable=1"  # nothing is written beside it
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return _of_project(path, database)
    except (sqlite3.Error, UnicodeError) as error:
        raise UserError(f"{path}: cannot be read as a database of trackio ({error})") from None


def _of_project(path: Path, database: sqlite3.Connection) -> list[Run]:
    columns = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
    if not {"id", "run_name", "metrics"} <= columns:
        raise UserError(f"{path}: no database of trackio, or of another version (it has no metrics with run names)")
    key = "run_id" if "run_id" in columns else "run_name"
    step = "step" if "step" in columns else "id"
    runs: dict[str, Run] = {}
    for run_key, name, at, text in database.execute(
        f"SELECT {key}, run_name, {step}, metrics FROM metrics ORDER BY id"
    ):
        made = Run(str(name), f"{path}:{name}", sources=[str(path)], titled=True)
        run = runs.setdefault(str(run_key), made)
        values = None
        with suppress(ValueError):
            values = loads(text) if isinstance(text, str | bytes) else None
        if not isinstance(values, dict):
            run.note("rows that are no metrics are left out")
            continue
        own = values.get("train/global_step")  # transformers' callback counts by itself; trackio counts its calls
        for metric, value in values.items():
            run.add(metric, at if own is None else own, value)
    _number_same_names(runs.values())
    return list(runs.values())


def _wandb(path: Path) -> list[Run]:
    """Read the file of an online or offline run, by wandb's own messages, up to a damaged record, as in a killed run's."""
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError:
        raise UserError(f"{path}: wandb reads its files, and is not installed: pip install wandb") from None
    from google.protobuf.message import DecodeError

    data = path.read_bytes()
    if not data.startswith(_WANDB):
        raise UserError(f"{path}: no file of wandb (it does not begin with {_WANDB.decode()})")
    run = Run(path.parent.name, str(path.parent), sources=[str(path)])
    for text in _records(data):
        try:
            record = Record.FromString(text)
        except DecodeError:
            run.note(f"{path.name}: ends in a damaged record; what is before it is read")
            break
        if record.run.display_name:
            run.name, run.titled = record.run.display_name, True
        values = {}
        for item in record.history.item:
            with suppress(ValueError):
                values["/".join(item.nested_key) or item.key] = loads(item.value_json)
        own = values.get("train/global_step", values.get("_step"))  # transformers' callback counts by itself
        for metric, value in values.items():
            if not metric.startswith("_"):
                run.add(metric, own, value)
    return [run]


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log after wandb's header, up to the first that is not whole."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        at += 7 + length
        if not _FULL <= kind <= _LAST or at > len(data):
            return
        parts = data[at - length : at] if kind in (_FULL, _FIRST) else parts + data[at - length : at]
        if kind in (_FULL, _LAST):
            yield parts


def _number_same_names(runs: Iterable[Run]) -> None:
    count: dict[str, int] = {}
    for run in runs:
        count[run.name] = count.get(run.name, 0) + 1
        if count[run.name] > 1:
            run.name, run.place = f"{run.name} ({count[run.name]})", f"{run.place} ({count[run.name]})"


def _plain(name: str) -> str:
    """Return a metric's one name: transformers also writes `train/` before it, and `eval/` for `eval_`."""
    name = name.removeprefix("train/")
    if name.startswith("eval_"):
        name = f"eval/{name[5:]}"
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


READERS: dict[str, Callable[[Path], list[Run]]] = {
    "demo": _demo,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "trl": _trl,
    "verl": _verl,
    "wandb": _wandb,
}
