"""Sorts paths that a user points at: training runs, folders of `wm eval`, files of rollouts."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path

from wm_plugin.data import files
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import RESULT, Evaluation, read_result
from wm_plugin.lab.report import logs
from wm_plugin.lab.report.logs import Run

_DEPTH, _ENTRIES = 8, 100_000  # of a folder that is searched
_CHECKPOINT = "checkpoint-"
_OF_VERL = "latest_checkpointed_iteration.txt"  # in a folder of verl's checkpoints, beside which it writes no log
# of a file that is named itself, and is read as rollouts of any format; in a folder only our own are
_ROLLOUTS = (".jsonl", ".json", ".parquet", ".gz", ".traj")


@dataclass(frozen=True)
class Measured:
    """An evaluation and its folder. `arm`: whose it is, which several may have in common."""

    name: str
    place: str
    evaluation: Evaluation
    arm: str = ""


@dataclass(frozen=True)
class Rollouts:
    """A file of rollouts. `split`: of which tasks, such as "seen"; "" where an arm has no others."""

    name: str
    place: str
    arm: str = ""
    split: str = ""


@dataclass
class Sources:
    """What is at the paths."""

    runs: list[Run] = field(default_factory=list)
    evaluations: list[Measured] = field(default_factory=list)
    rollouts: list[Rollouts] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def collect(paths: Sequence[str]) -> Sources:
    """Everything at `paths`, in their order, each file once. A folder of verl's checkpoints may have its log beside it.

    Raises:
        UserError: there is nothing at a path, or nothing that is known; or a file cannot be read.
    """
    sources = Sources()
    done: set[str] = set()
    without_log: list[Path] = []
    for name in paths:
        path = Path(name)
        try:
            if not path.exists():
                raise UserError(f"{path}: there is no such file or folder")
            known = _folder(path, sources, done) if path.is_dir() else _file(path, sources, done)
        except (OSError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
        if not known:
            if (path / _OF_VERL).is_file():
                without_log.append(path)
                continue
            if sources.notes:
                raise UserError(sources.notes[-1])
            raise UserError(
                f"{path}: holds no log of a trainer (TensorBoard, trackio, verl's file logger, trainer_state.json), no result "
                "of wm eval or wm demo and no rollouts of wm env rollout"
            )
    if without_log and not done:
        raise UserError(
            f"{without_log[0]}: checkpoints of verl, and no log; name the file of VERL_FILE_LOGGER_PATH, too"
        )
    return sources


def expand(patterns: Mapping[str, str], named: Sequence[str] = ()) -> list[str]:
    """The paths that arms' patterns name, in the order of the arms. A pattern may also mean runs by their names in a database.

    Args:
        named: what is read anyway. A pattern that matches some of it chooses among these, and names no others.
    """
    paths: list[str] = []
    for pattern in patterns.values():
        if not any(matches(pattern, path, path) for path in named):
            paths += [path for path in sorted(glob(pattern)) if path not in paths]
    return paths


def matches(pattern: str, name: str, place: str) -> bool:
    """Whether an arm's pattern means a run: by its name, its path, or a folder above it."""
    if fnmatchcase(name, pattern):
        return True
    pattern = os.path.normpath(pattern)
    path = os.path.normpath(place)
    while path not in ("", ".", "/"):
        if fnmatchcase(path, pattern):
            return True
        path = os.path.dirname(path)
    return False


def below(pattern: str, place: str) -> str:
    """What a path has below the highest folder that a pattern means; "" where that is the path itself."""
    pattern, whole = os.path.normpath(pattern), os.path.normpath(place)
    top = path = whole
    while path not in ("", ".", "/"):
        if fnmatchcase(path, pattern):
            top = path
        path = os.path.dirname(path)
    return whole[len(top) :].strip("/")


def names(places: Sequence[str], enough: Callable[[str], object] = bool) -> list[str]:
    """The ends of paths, of as many parts as tell them apart.

    Args:
        enough: whether a name says something by itself, which the number of a seed does not.
    """
    parts = [Path(os.path.abspath(place)).parts for place in places]
    for count in range(1, max(map(len, parts), default=0) + 1):
        short = ["/".join(one[-count:]) for one in parts]
        if len(set(short)) == len(set(parts)) and all(map(enough, short)):
            return short
    return list(places)


def _folder(folder: Path, sources: Sources, done: set[str]) -> bool:
    """Whether there is anything that is known, be it new or not."""
    runs: dict[str, Run] = {}
    known = False
    for path in _walk(folder, sources):
        key = os.path.realpath(path)
        if key in done:
            known = True
            continue
        kind = logs.kind_of(path)
        try:
            if path.name == RESULT and _is_evaluation(path):
                sources.evaluations.append(Measured(path.parent.name, str(path.parent), read_result(path)))
            elif kind:
                for run in logs.read(path):
                    if kind in ("trl", "tensorboard"):
                        root = _root(path, folder, kind)
                        run.place, run.name = str(root), root.name or str(root)
                    if run.place in runs:
                        runs[run.place].merge(run)
                    else:
                        runs[run.place] = run
            elif _own_rollouts(path):
                sources.rollouts.append(Rollouts(path.stem, str(path)))
            else:
                continue
        except UserError as error:  # one file of many
            sources.notes.append(str(error))
            continue
        done.add(key)
        known = True
    sources.runs += sorted((run for run in runs.values() if run.values), key=lambda run: run.place)
    return known


def _file(path: Path, sources: Sources, done: set[str]) -> bool:
    key = os.path.realpath(path)
    if key in done:
        return True
    done.add(key)
    if path.name == RESULT and _is_evaluation(path):
        sources.evaluations.append(Measured(path.parent.name, str(path.parent), read_result(path)))
    elif logs.kind_of(path):
        for run in logs.read(path):
            if path.name == "trainer_state.json" and path.parent.name.startswith(_CHECKPOINT):
                run.place, run.name = str(path.parent.parent), path.parent.parent.resolve().name
            sources.runs.append(run)
    elif path.suffix in _ROLLOUTS:
        sources.rollouts.append(Rollouts(path.stem, str(path)))
    else:
        return False
    return True


def _walk(folder: Path, sources: Sources) -> Iterator[Path]:
    """Files below a folder, by name; of several checkpoints of a run the last one's state, which has what the others have."""
    entries = 0
    for parent, folders, names_of_files in os.walk(folder):
        depth = len(Path(parent).relative_to(folder).parts)
        entries += len(folders) + len(names_of_files)
        if depth >= _DEPTH or entries > _ENTRIES:
            sources.notes.append(
                f"{folder}: searched {_DEPTH} levels deep and up to {_ENTRIES:,} entries; what lies beyond is not read"
            )
            folders[:] = []
            if entries > _ENTRIES:
                return
        checkpoints = [one for one in folders if one.startswith(_CHECKPOINT)]
        with_state = [one for one in checkpoints if Path(parent, one, "trainer_state.json").is_file()]
        folders[:] = sorted(one for one in folders if one not in checkpoints and not one.startswith("."))
        for one in sorted(with_state, key=_number, reverse=True):
            state = Path(parent, one, "trainer_state.json")
            yield state
            if files.whole(state).error is None:  # a full disk cuts the last one
                break
        for name in sorted(names_of_files):
            if not name.startswith(".") and Path(parent, name).is_file():
                yield Path(parent, name)


def _number(checkpoint: str) -> int:
    digits = checkpoint.removeprefix(_CHECKPOINT)
    return int(digits) if digits.isdecimal() and len(digits) < 19 else -1


def _root(path: Path, top: Path, kind: str) -> Path:
    """The folder of the run that a log belongs to: above a checkpoint, and above transformers' `runs/DATE_host`."""
    parent = path.parent
    if kind == "trl" and parent.name.startswith(_CHECKPOINT):
        return parent.parent
    if kind == "tensorboard" and parent != top and parent.parent.name == "runs" and parent.parent != top:
        above = parent.parent.parent
        trained = (above / "trainer_state.json").is_file() or any(above.glob(f"{_CHECKPOINT}*"))
        if trained or (above == top and above.resolve() != Path.cwd()):
            return above
    return parent


def _is_evaluation(path: Path) -> bool:
    """Whether a result.json is of `wm eval`; the demo's is not."""
    with path.open("rb") as file:
        return b'"wm_plugin.lab.evaluation"' in file.read(1 << 12)


def _own_rollouts(path: Path) -> bool:
    """Whether a file holds rollouts of `wm env rollout`, by its first row."""
    if path.suffix != ".jsonl":
        return False
    record = next(files.lines(path), None)
    row = record.value if record else None
    return isinstance(row, dict) and {"turns", "context"} <= row.keys()
