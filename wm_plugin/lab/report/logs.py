"""What trainers log: `trainer_state.json` of TRL, TensorBoard's event files, trackio's databases, verl's file logger; and what
`wm demo` wrote.

All of it is read as data that others wrote: in linear time, within bounds, and what is no finite number is left out.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from wm_plugin.data import files
from wm_plugin.errors import UserError
from wm_plugin.lab.report import events
from wm_plugin.untrusted import loads, number

POINTS, METRICS = 2_000_000, 5_000  # of a run that are kept
RUNS = 1_000  # of a database
_LONGEST = 200  # characters of a metric's name
_ROW = 1 << 20  # bytes of what a database logs at once
_PEEK = 1 << 16  # bytes of a file by which its kind is told
_OPERATIONS = 1_000_000  # of SQLite between two looks at what a query has cost
_LOOKS = 500
_LAST_STEP = 1 << 53
_STEPS = ("step", "global_step", "epoch")  # no metrics
_DEMO = "result.json"
SQLITE = b"SQLite format 3\0"


@dataclass
class Run:
    """What one training run logged.

    Attributes:
        name: for people.
        place: the path that it is known by, to which a database adds the run's own name.
        values: of each metric: step to value.
        sources: the files.
        notes: what was left out, and why.
    """

    name: str
    place: str
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    points: int = 0
    titled: bool = False  # it has a name of its own, which is not that of a file

    def add(self, metric: str, step: Any, value: Any, *, again: bool = True) -> None:
        """Keep a value, unless it is no number.

        Args:
            again: whether it takes the place of an earlier value of the same step.
        """
        at, scalar = number(step), number(value)
        metric = _plain(metric)
        if at is None or abs(at) > _LAST_STEP or scalar is None or metric in _STEPS:
            return
        if metric not in self.values and len(self.values) >= METRICS:
            self.note(f"only the first {METRICS:,} metrics are read")
            return
        steps = self.values.setdefault(metric, {})
        if int(at) in steps:
            if again:
                steps[int(at)] = scalar
        elif self.points < POINTS:
            steps[int(at)] = scalar
            self.points += 1
        else:
            self.note(f"only the first {POINTS:,} values are read")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def merge(self, other: "Run") -> None:
        """Take what another log of the same run has besides."""
        for metric, steps in other.values.items():
            for step, value in steps.items():
                self.add(metric, step, value, again=False)
        self.sources += other.sources
        for text in other.notes:
            self.note(text)

    @property
    def last_step(self) -> int:
        return max((max(steps) for steps in self.values.values() if steps), default=0)


def kind_of(path: Path) -> str:
    """`trl`, `tensorboard`, `trackio`, `verl` or `demo`, by a file's name and its beginning; "" of any other file."""
    if not path.is_file():  # a pipe has no end
        return ""
    if "tfevents" in path.name:
        return "tensorboard"
    if path.suffix not in (".json", ".jsonl", ".db", ".sqlite", ".sqlite3"):
        return ""
    try:
        with path.open("rb") as file:
            start = file.read(_PEEK)
    except OSError:
        return ""
    if start.startswith(SQLITE):
        return "trackio"
    if path.name == _DEMO and start.replace(b" ", b"").replace(b"\n", b"").startswith(b'{"arms":[{"coeff":'):
        return "demo"
    if path.suffix == ".json":
        return "trl" if path.name == "trainer_state.json" or b'"log_history"' in start else ""
    line = start.lstrip().partition(b"\n")[0]
    return "verl" if path.suffix == ".jsonl" and _is_verl(line) else ""


def read(path: Path) -> list[Run]:
    """The runs in a file of a trainer; a database has several.

    Raises:
        UserError: it cannot be read, or no trainer wrote it.
    """
    kind = kind_of(path)
    if not kind:
        raise UserError(f"{path}: no log of a trainer (TensorBoard, trackio, verl's file logger, trainer_state.json)")
    return READERS[kind](path)


def _trl(path: Path) -> list[Run]:
    """A `trainer_state.json`: what was logged up to a checkpoint."""
    record = files.whole(path)
    history = record.value.get("log_history") if isinstance(record.value, dict) else None
    if not isinstance(history, list):
        raise UserError(f"{path}: {record.error or 'no log_history in it'}")
    run = Run(path.parent.name, str(path.parent), sources=[str(path)])
    for entry in history:
        if isinstance(entry, dict):
            for name, value in entry.items():
                run.add(name, entry.get("step"), value)
    return [run]


def _tensorboard(path: Path) -> list[Run]:
    run = Run(path.parent.name, str(path.parent), sources=[str(path)])
    try:
        for tag, step, value in events.scalars(path):
            run.add(tag, step, value)
    except events.Damaged as error:
        run.note(f"{path.name} is damaged at {error}: what follows is not read")
    return [run]


def _verl(path: Path) -> list[Run]:
    """A file of `trainer.logger=file`: a step and its metrics a line."""
    run = Run(path.stem, str(path), sources=[str(path)])
    left = ""  # one note of all such lines
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
    """The `result.json` of `wm demo`: a run for each arm, with what was logged and what was measured on held-out boards."""
    record = files.whole(path)
    arms = record.value.get("arms") if isinstance(record.value, dict) else None
    if not isinstance(arms, list):
        raise UserError(f"{path}: {record.error or 'no arms in it'}")
    runs = []
    for arm in arms[:RUNS]:
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
    _distinct(runs)
    return runs


def _is_verl(line: bytes) -> bool:
    """Whether a line, which may be cut, is verl's: `{"step": …, "data": {…}}`."""
    head = line[:200].replace(b" ", b"")
    return head.startswith(b'{"step":') and b',"data":{' in head


def _trackio(path: Path) -> list[Run]:
    """A trackio database, a project with its runs. Its schema has changed: runs have ids in later ones."""
    uri = f"file:{quote(bytes(path.resolve()))}?mode=ro"  # a name need not be UTF-8
    if not (path.parent / f"{path.name}-wal").exists():
        uri += "&immutable=1"  # nothing is written beside it
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return list(_of_project(path, database).values())
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read as a database of trackio ({error})") from None
    except UnicodeError:  # of SQLite's own message, which quotes the file
        raise UserError(f"{path}: damaged") from None


def _of_project(path: Path, database: sqlite3.Connection) -> dict[str, Run]:
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        return looks > _LOOKS

    database.set_progress_handler(stop, _OPERATIONS)  # whatever the file makes of a query
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _ROW * 16)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    database.text_factory = lambda data: data.decode(errors="replace")
    tables = database.execute("SELECT type FROM sqlite_master WHERE name = 'metrics'").fetchall()
    kinds = {row[2] for row in database.execute("PRAGMA table_list(metrics)")}
    if tables != [("table",)] or not kinds <= {"table"}:  # a virtual table may run what its file says
        raise UserError(f"{path}: no database of trackio: it has no table of metrics")
    # without generated columns, each of which may take as long as its file likes
    columns = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
    if not {"id", "run_name", "metrics"} <= columns:
        raise UserError(f"{path}: a database of another version of trackio (its metrics have other columns)")
    key = "run_id" if "run_id" in columns else "run_name"
    step = "step" if "step" in columns else "id"
    runs: dict[str, Run] = {}
    left = 0
    for run_key, name, at, text in database.execute(
        f"SELECT {key}, run_name, {step}, metrics FROM metrics ORDER BY id"
    ):
        known, label = str(run_key), str(name)
        if known not in runs:
            if len(runs) >= RUNS or max(len(known), len(label)) > _LONGEST:
                left += 1
                continue
            runs[known] = Run(label, f"{path}:{label}", sources=[str(path)], titled=True)
        run = runs[known]
        values = _object(text)
        if values is None:
            run.note("rows that are no metrics are left out")
            continue
        own = values.get("train/global_step")  # transformers' callback counts by itself; trackio counts its calls
        for metric, value in values.items():
            run.add(metric, at if own is None else own, value)
    if left and runs:
        next(iter(runs.values())).note(
            f"{left:,} rows of other runs are left out: beyond {RUNS:,} runs, or with names of over {_LONGEST} characters"
        )
    _distinct(runs.values())
    return runs


def _distinct(runs: Iterable[Run]) -> None:
    """Number the runs of one name."""
    count: dict[str, int] = {}
    for run in runs:
        count[run.name] = count.get(run.name, 0) + 1
        if count[run.name] > 1:
            run.name, run.place = f"{run.name} ({count[run.name]})", f"{run.place} ({count[run.name]})"


def _object(text: Any) -> Mapping[str, Any] | None:
    if isinstance(text, str | bytes):
        try:
            value = loads(text, largest=_ROW)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None
    return None


def _plain(name: str) -> str:
    """A metric's one name: beside `trainer_state.json`, transformers writes `train/` before it, and `eval/` for `eval_`."""
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
}


def rows_of(run: Run) -> Iterator[tuple[str, int, float]]:
    """(metric, step, value), by metric and step."""
    for metric in sorted(run.values):
        for step, value in sorted(run.values[metric].items()):
            yield metric, step, value
