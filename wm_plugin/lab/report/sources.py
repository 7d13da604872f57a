"""Sorts the paths that a user names: training runs, folders of `wm eval`, files of rollouts."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path

from wm_plugin.data import files
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import FORMAT, RESULT, Evaluation, read_result
from wm_plugin.lab.report import logs
from wm_plugin.lab.report.logs import Run

_DEPTH, _ENTRIES = 8, 100_000  # of a folder that is searched
_CHECKPOINT, _STATE = "checkpoint-", "trainer_state.json"
_OF_VERL = "latest_checkpointed_iteration.txt"  # in a folder of verl's checkpoints, beside which it writes no log
_OF_TRL = "training_args.bin"  # beside a model that a trainer of TRL saved
# endings of a file that is named itself and may have any format; in a folder only files of `wm env rollout` are read
_ROLLOUTS = (".jsonl", ".json", ".parquet", ".gz", ".traj")


@dataclass(frozen=True)
class Measured:
    """An evaluation and its folder. Several may belong to one `arm`."""

    name: str
    place: str
    evaluation: Evaluation
    arm: str = ""


@dataclass(frozen=True)
class Rollouts:
    """A file of rollouts. `split`: its tasks, such as "seen"; "" if an arm has no others."""

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
    trained: list[Path] = field(default_factory=list)  # folders with a model or checkpoints, of TRL or verl


def collect(paths: Sequence[str]) -> Sources:
    """Collect everything at `paths`, in their order, each file once. A folder of verl's checkpoints may have its log beside it.

    Raises:
        UserError: a path does not exist, holds nothing known, or cannot be read.
    """
    sources = Sources()
    done: set[str] = set()
    without_log: list[Path] = []
    for path in map(Path, paths):
        try:
            if not path.exists():
                raise UserError(f"{path}: there is no such file or folder")
            trained = len(sources.trained)
            known = _collect(path, sources, done)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        if known:
            continue
        if (path / _OF_VERL).is_file() or len(sources.trained) > trained:
            without_log.append(path)
        elif sources.notes:
            raise UserError(sources.notes[-1])
        else:
            raise UserError(
                f"{path}: holds no log of a trainer (TensorBoard, trackio, wandb, verl's file logger, trainer_state.json), "
                "no result of wm eval or wm demo and no rollouts of wm env rollout"
            )
    if without_log and not done:
        what = (
            "checkpoints of verl, and no log; name the file of VERL_FILE_LOGGER_PATH, too"
            if (without_log[0] / _OF_VERL).is_file()
            else "a trained model, and no log of a trainer, which TRL writes with its checkpoints or by report_to"
        )
        raise UserError(f"{without_log[0]}: {what}")
    _name_without_log(sources)
    return sources


def _name_without_log(sources: Sources) -> None:
    """Note the folders with a trained model of which no log is there, in them or above them."""
    read = [Path(source).resolve() for run in sources.runs for source in run.sources]
    suffixes = {source.suffix for source in read}
    elsewhere = bool(suffixes & {".wandb", *logs.DATABASES})  # which do not say where the model went
    covered = [Path(run.place).resolve() for run in sources.runs]
    for folder in sources.trained:
        path = folder.resolve()
        # verl writes its log where it is told to
        beside = elsewhere or (".jsonl" in suffixes and (folder / _OF_VERL).is_file())
        if (
            not beside
            and not any(one.is_relative_to(path) for one in read)
            and not any(path.is_relative_to(one) for one in covered)
        ):
            sources.notes.append(f"{folder}: has a trained model and no log of a trainer, and is not shown")
        covered.append(path)


def expand(patterns: Mapping[str, str], named: Sequence[str] = ()) -> list[str]:
    """Return the paths that arms' patterns name, in order. A pattern may also name runs in a database.

    Args:
        named: what is read anyway. A pattern that matches some of it chooses among these, and names no others.
    """
    paths: list[str] = []
    for pattern in patterns.values():
        if not any(matches(pattern, path, path) for path in named):
            paths += [path for path in sorted(glob(pattern)) if path not in paths]
    return paths


def matches(pattern: str, name: str, place: str) -> bool:
    """Return whether an arm's pattern matches a run: its name, its path, or a folder above it."""
    return fnmatchcase(name, pattern) or any(_matching(pattern, place))


def below(pattern: str, place: str) -> str:
    """Return what a path has below the highest folder that a pattern matches."""
    *_, top = ["", *_matching(pattern, place)]
    return os.path.normpath(place)[len(top or os.path.normpath(place)) :].strip("/")


def _matching(pattern: str, place: str) -> Iterator[str]:
    """Yield the path and the folders above it that a pattern matches."""
    pattern, path = os.path.normpath(pattern), os.path.normpath(place)
    while path not in ("", ".", "/"):
        if fnmatchcase(path, pattern):
            yield path
        path = os.path.dirname(path)


def names(places: Sequence[str], enough: Callable[[str], object] = bool) -> list[str]:
    """Return the ends of paths, with as many parts as tell them apart.

    Args:
        enough: whether a name says something by itself, which a seed's number does not.
    """
    parts = [Path(os.path.abspath(place)).parts for place in places]
    for count in range(1, max(map(len, parts), default=0) + 1):
        short = ["/".join(one[-count:]) for one in parts]
        if len(set(short)) == len(set(parts)) and all(map(enough, short)):
            return short
    return list(places)


def _collect(named: Path, sources: Sources, done: set[str]) -> bool:
    """Collect a file or what a folder holds; return whether there is anything known, new or not."""
    is_folder = named.is_dir()
    runs: dict[str, Run] = {}
    known = False
    for path in _walk(named, sources) if is_folder else [named]:
        key = os.path.realpath(path)
        try:
            if key not in done and not _read(path, named if is_folder else None, runs, sources):
                continue
        except UserError as error:
            if not is_folder:
                raise
            sources.notes.append(str(error))  # one file of many
            continue
        done.add(key)
        known = True
    sources.runs += sorted((run for run in runs.values() if run.values or not is_folder), key=lambda run: run.place)
    return known


def _read(path: Path, folder: Path | None, runs: dict[str, Run], sources: Sources) -> bool:
    """Read a file, in a folder or named itself, if it is known."""
    if _is_evaluation(path):
        sources.evaluations.append(Measured(path.parent.name, str(path.parent), read_result(path)))
    elif kind := logs.kind_of(path):
        for run in logs.read(path):
            if kind in ("trl", "tensorboard"):
                root = _root(path, folder or path.parent, kind)
                run.place, run.name = str(root), root.name or root.resolve().name
            if run.place in runs:
                runs[run.place].merge(run)
            else:
                runs[run.place] = run
    elif _own_rollouts(path) if folder else path.suffix in _ROLLOUTS:
        sources.rollouts.append(Rollouts(path.stem, str(path)))
    else:
        return False
    return True


def _walk(folder: Path, sources: Sources) -> Iterator[Path]:
    """Yield the files below a folder, by name; of a run's checkpoints only the last state, which has what the others have."""
    entries = 0
    for parent, folders, names_of_files in os.walk(folder):
        entries += len(folders) + len(names_of_files)
        if len(Path(parent).relative_to(folder).parts) >= _DEPTH or entries > _ENTRIES:
            sources.notes.append(
                f"{folder}: searched {_DEPTH} levels deep and up to {_ENTRIES:,} entries; what lies beyond is not read"
            )
            folders[:] = []
            if entries > _ENTRIES:
                return
        checkpoints = [one for one in folders if one.startswith(_CHECKPOINT)]
        if checkpoints or {_OF_TRL, _OF_VERL} & {*names_of_files}:
            sources.trained.append(Path(parent))
        folders[:] = sorted(one for one in folders if one not in checkpoints and not one.startswith("."))
        for one in sorted(checkpoints, key=_number, reverse=True):
            state = Path(parent, one, _STATE)
            if state.is_file():
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
    """Return the folder of a log's run: above a checkpoint, and above transformers' `runs/DATE_host`."""
    parent = path.parent
    if kind == "trl" and parent.name.startswith(_CHECKPOINT):
        return parent.parent
    if kind == "tensorboard" and parent != top and parent.parent.name == "runs" and parent.parent != top:
        above = parent.parent.parent
        trained = (above / _STATE).is_file() or any(above.glob(f"{_CHECKPOINT}*"))
        if trained or (above == top and above.resolve() != Path.cwd()):
            return above
    return parent


def _is_evaluation(path: Path) -> bool:
    """Return whether a file is a result of `wm eval`; `wm demo` has a result.json, too."""
    if path.name != RESULT:
        return False
    with path.open("rb") as file:
        return f'"{FORMAT}"'.encode() in file.read(1 << 12)


def _own_rollouts(path: Path) -> bool:
    """Return whether a file holds rollouts of `wm env rollout`, by its first row."""
    if path.suffix != ".jsonl":
        return False
    record = next(files.lines(path), None)
    row = record.value if record else None
    return isinstance(row, dict) and {"turns", "context"} <= row.keys()
