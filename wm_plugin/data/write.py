"""Write trajectories, rejected rows and transitions. A file gets its name once it is complete."""

import gc
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from wm_plugin.data import exports
from wm_plugin.data.compact import compact
from wm_plugin.data.host_dumps import lacks_tools, strange_tools
from wm_plugin.data.outputs import atomic, check_apart, check_derived, check_out
from wm_plugin.data.parquet import pyarrow_modules
from wm_plugin.data.readers.base import Outcome, Reject
from wm_plugin.data.schema import Line, Trajectory, Transition
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.untrusted import LARGEST, finite, loads

SUFFIXES = (".jsonl", ".parquet")
FORMS = (OWN := "own", *exports.TO)  # `own` is the form that every command takes
_REJECT = ("file", "row", "reason", "raw")  # the keys of a rejected row
_BATCH = 1000  # trajectories in a row group
_OBJECTS = 100_000  # more objects than a row has


@dataclass
class Counts:
    """Counts of what was written and rejected."""

    trajectories: int = 0
    turns: int = 0  # of the agent
    observations: Counter[str] = field(default_factory=Counter)  # of the agent, by kind
    rejected: Counter[str] = field(default_factory=Counter)  # rows, by reason
    first_reason: str = ""  # of a rejected row, with its file and number
    without_schemas: int = 0  # trajectories whose agent calls tools, and whose tools are not known
    strange: Counter[str] = field(
        default_factory=Counter
    )  # trajectories, by a tool that is called and not among the known ones
    lost: Counter[str] = field(default_factory=Counter)  # trajectories, by what the written form cannot hold of them

    def add(self, trajectory: Trajectory) -> None:
        self.trajectories += 1
        self.turns += sum(turn.actor == "agent" for turn in trajectory.turns)
        self.observations.update(observation.kind for _, _, observation in trajectory.observed())
        self.without_schemas += lacks_tools(trajectory)
        self.strange.update(strange_tools(trajectory))

    def merge(self, other: "Counts") -> None:
        self.trajectories += other.trajectories
        self.turns += other.turns
        self.observations += other.observations
        self.rejected += other.rejected
        self.first_reason = self.first_reason or other.first_reason
        self.without_schemas += other.without_schemas
        self.strange += other.strange
        self.lost += other.lost

    def as_dict(self) -> dict[str, Any]:
        return {
            "trajectories": self.trajectories,
            "turns": self.turns,
            "transitions": self.observations.total(),
            "observations": {kind: self.observations[kind] for kind in ("tool", "user", "environment")},
            "rejected": self.rejected.total(),
            "rejected_by_reason": dict(self.rejected.most_common()),
            "without_schemas": self.without_schemas,
        }


def write(
    rows: Iterable[Outcome],
    out: str | Path,
    rejects: str | Path | None = None,
    *,
    strict: bool = False,
    sources: Iterable[str | Path | None] = (),
    to: str = OWN,
) -> Counts:
    """Write trajectories to `out` (.jsonl or .parquet), and rejected rows with their reasons to `rejects`.

    Args:
        to: their form: our own, or one of `exports.TO`.
        rejects: the default is `X.rejects.jsonl` beside `out`. Not written if nothing was rejected.
        strict: stop at the first rejected row and write nothing.
    """
    counts = Counts()
    check_form(Path(out), to)
    with outputs(out, rejects, counts, sources) as (unfinished, reject_file), _few_collections():
        kept = _kept(rows, counts, reject_file, strict)
        if Path(out).suffix == ".parquet":
            write_parquet(kept, unfinished, to, counts)
        elif to == OWN:
            _write_lines(kept, unfinished)
        else:
            with unfinished.open("wb", 1 << 20) as file:
                for row in exported(kept, to, counts):
                    file.write(json.dumps(finite(row), ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
    return counts


def check_form(out: Path, to: str) -> None:
    """Refuse an unknown form, and a file that cannot hold it."""
    if to not in FORMS:
        raise UserError(f"--to is {shown(to)}{nearest(to, FORMS)}")
    if to == "atif" and out.suffix != ".jsonl":
        raise UserError(f"{out}: ATIF is JSON: write a name that ends in .jsonl")


def exported(trajectories: Iterable[Trajectory], to: str, counts: Counts) -> Iterator[dict[str, Any]]:
    """Yield trajectories in a form of `exports.TO`, and count what it cannot hold of them."""
    make, lost = exports.TO[to]
    for trajectory in trajectories:
        counts.lost.update(lost(trajectory))
        yield make(trajectory)


def path_of_rejects(out: str | Path, rejects: str | Path | None = None) -> Path:
    """Return where rejected rows go, for the output `out`."""
    return Path(out).with_name(f"{Path(out).stem}.rejects.jsonl") if rejects is None else Path(rejects)


@contextmanager
def outputs(
    out: str | Path, rejects: str | Path | None, counts: Counts, sources: Iterable[str | Path | None] = ()
) -> Iterator[tuple[Path, IO[bytes]]]:
    """Open the temporary file for trajectories, and the file for rejected rows. Both get their names if nothing failed."""
    out = Path(out)
    rejects_path = check_outputs(out, rejects, sources)
    rejected = atomic(rejects_path, lambda: counts.rejected.total() > 0, lambda: _check_rejects(out, rejects))
    with atomic(out) as unfinished, rejected as unfinished_rejects:
        with unfinished_rejects.open("wb") as file:
            yield unfinished, file
        if not counts.rejected and holds(rejects_path, _REJECT):  # of an earlier run
            rejects_path.unlink()


def check_outputs(out: Path, rejects: str | Path | None = None, sources: Iterable[str | Path | None] = ()) -> Path:
    """Refuse outputs of `write` that cannot be written or are one of `sources`. Returns where rejected rows go."""
    check_out(out, SUFFIXES)
    rejects_path = _check_rejects(out, rejects)
    check_apart(sources, {"--out": out, "--rejects": rejects_path})
    return rejects_path


def _check_rejects(out: Path, rejects: str | Path | None) -> Path:
    path = path_of_rejects(out, rejects)
    if rejects is None:
        mend = "name another --out, or another file with --rejects where there is that flag"
        check_derived(path, lambda path: holds(path, _REJECT), "rejected rows", mend)
    else:
        check_out(path)
    return path


def holds(path: Path, keys: Iterable[str]) -> bool:
    """Tell by the keys of its first line whether we wrote a file."""
    try:
        with path.open("rb") as file:
            line = file.readline(LARGEST)
        return not path.is_symlink() and list(loads(line)) == list(keys)
    except (OSError, ValueError, TypeError):
        return False


def holds_lines(path: Path) -> bool:
    """Tell whether `write_transitions` wrote a file."""
    return any(holds(path, record.model_fields) for record in (Line, Transition))


def write_transitions(
    transitions: Iterable[Transition],
    out: str | Path,
    sources: Iterable[str | Path | None] = (),
    *,
    repeat_history: bool = False,
    check: Callable[[], object] = lambda: None,
) -> int:
    """Write transitions to a .jsonl file, none of `sources`. Returns their number.

    Args:
        repeat_history: a line for each transition, with its whole history; otherwise a trajectory's turns are written once (see
            `compact`). `read_transitions` reads both.
    """
    out = Path(out)
    check_out(out, (".jsonl",))
    check_apart(sources, {"--out": out})
    with atomic(out, check=check) as unfinished:
        return _write_lines(transitions if repeat_history else compact(transitions), unfinished)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Collect garbage less often: rows have no cycles, and looking for cycles takes a fifth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _write_lines(records: Iterable[Trajectory | Transition | Line], path: Path) -> int:
    """Write a record a line. Returns the number of trajectories or transitions."""
    count = 0
    with path.open("wb", 1 << 20) as file:
        for record in records:
            file.write(record.to_bytes() + b"\n")
            count += len(record.transitions) if isinstance(record, Line) else 1
    return count


def _kept(rows: Iterable[Outcome], counts: Counts, rejects: IO[bytes], strict: bool) -> Iterator[Trajectory]:
    for row in rows:
        if not isinstance(row, Reject):
            counts.add(row)
            yield row
            continue
        reason = f"{row.file}, row {row.row}: {row.reason}"
        if strict:
            raise UserError(reason)
        counts.first_reason = counts.first_reason or reason
        counts.rejected[row.kind] += 1
        entry = {key: getattr(row, key) for key in _REJECT}
        rejects.write(f"{json.dumps(entry, ensure_ascii=False)}\n".encode(errors="backslashreplace"))


def write_parquet(trajectories: Iterable[Trajectory], path: Path, to: str, counts: Counts) -> None:
    """Write a parquet file: `exports.messages` as rows, or our own trajectories."""
    pyarrow, parquet = pyarrow_modules()
    if to == OWN:
        columns, rows = _columns(pyarrow), map(_row, trajectories)
    else:
        columns, rows = exports.columns(pyarrow), map(exports.flat, exported(trajectories, to, counts))
    schema = pyarrow.schema(columns.items())
    with parquet.ParquetWriter(path, schema) as writer:
        while batch := list(islice(rows, _BATCH)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))


def _columns(pyarrow: Any) -> dict[str, Any]:
    """Return the columns of our own rows: `trajectory` holds each as JSON, the others are for queries."""
    return {
        "task_id": pyarrow.string(),
        "success": pyarrow.bool_(),
        "reward": pyarrow.float64(),
        "turns": pyarrow.int32(),
        "trajectory": pyarrow.large_string(),
    }


def _row(one: Trajectory) -> dict[str, Any]:
    return {
        "task_id": one.task_id.encode(errors="backslashreplace").decode(),
        "success": one.success,
        "reward": one.reward,
        "turns": len(one.turns),
        "trajectory": one.to_bytes().decode(),
    }
