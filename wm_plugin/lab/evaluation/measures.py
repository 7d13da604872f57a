"""What an evaluation measured, and the folder that keeps it.

Every step of `wm eval` writes `result.json` (the measures) and `rows.jsonl` (what was measured) into the folder of `--out`, and
`wm report` reads them. Answers of models are beside them (`samples.answers`), so that a killed run goes on.
"""

import json
import math
import stat
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from wm_plugin.data.outputs import PREFIX, atomic, write_text
from wm_plugin.data.predictions import same_settings
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.bootstrap import by_cluster, draw, limits
from wm_plugin.untrusted import LARGEST, loads, number

FORMAT, VERSION = "wm_plugin.lab.evaluation", 1
MANIFEST, RESULT, ROWS = "evaluation.json", "result.json", "rows.jsonl"
UNITS = ("share", "nats", "points", "ratio", "correlation", "perplexity", "count", "seconds", "score")
_LARGEST = 1 << 26  # bytes of a result


@dataclass(frozen=True)
class Measure:
    """One number, of all rows or of a group of them.

    Attributes:
        name: such as "exact".
        value: None where it is undefined; `note` says why.
        unit: one of `UNITS`. "nats" are of a token; "points" are of 0 to 100, and a "score" is on
            the scale of its reward.
        count: how many rows it is a mean of: those without a failure.
        by, group: what rows are grouped by and the group's name, such as "tool" and "search"; "" of all rows.
        low, high: the limits of a 95% interval, None where there is none.
        failed: how many rows had no answer, a cut or an empty one.
        with_failed: the value if these count as the lowest there is, which is `value` where none failed.
        note: a remark.
    """

    name: str
    value: float | None
    unit: str
    count: int
    by: str = ""
    group: str = ""
    low: float | None = None
    high: float | None = None
    failed: int = 0
    with_failed: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit is {self.unit!r}; write one of {', '.join(UNITS)}")


@dataclass(frozen=True)
class Evaluation:
    """The result of a step of `wm eval`.

    Attributes:
        name: the step, such as "one-step".
        subject: what was evaluated: the folder of a model, or its name on a server.
        data: what it was evaluated on.
        settings: everything else that the measures depend on, as JSON values.
        measures: in the order in which they are shown.
        failures: how many rows failed, by reason.
        notes: sentences for readers.
    """

    name: str
    subject: str
    data: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    measures: Sequence[Measure] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def measure(self, name: str, by: str = "", group: str = "") -> Measure:
        """The measure of this name and group.

        Raises:
            KeyError: there is none.
        """
        for one in self.measures:
            if (one.name, one.by, one.group) == (name, by, group):
                return one
        raise KeyError((name, by, group))

    def as_dict(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite are None."""
        measures = [{name: _finite(value) for name, value in asdict(one).items()} for one in self.measures]
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        own |= {"settings": _all_finite(own["settings"]), "measures": measures, "notes": list(self.notes)}
        return {"format": FORMAT, "version": VERSION, **own}


def interval(
    totals: Sequence[float],
    counts: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    seed: int = 0,
    share: float = 0.95,
) -> tuple[float | None, float | None]:
    """The limits of a percentile interval for a ratio of sums, which is a mean where `counts` are 1.

    Whole clusters are drawn, such as trajectories, whose rows are not independent. Draws without any count are left out.

    Args:
        totals, counts: of each row; the ratio is sum(totals) / sum(counts).
        clusters: of each row.

    Returns:
        (None, None) with fewer than two clusters that count: there is nothing to draw from.
    """
    drawn = _draws(totals, counts, clusters, torch.Generator().manual_seed(seed))
    return (None, None) if drawn is None else limits(drawn, share)


def interval_of_means(
    cells: Sequence[tuple[float, Sequence[float], Sequence[Hashable]]], *, seed: int = 0, share: float = 0.95
) -> tuple[float | None, float | None]:
    """The limits of a percentile interval for a weighted sum of means, such as a macro mean over domains.

    Args:
        cells: of each mean, its weight, the values and their clusters. Clusters are drawn in each cell on its own.

    Returns:
        (None, None) where a cell has fewer than two clusters, or where there is none.
    """
    generator = torch.Generator().manual_seed(seed)
    whole: torch.Tensor | None = None
    for weight, values, clusters in cells:
        drawn = _draws(values, [1.0] * len(values), clusters, generator)
        if drawn is None:
            return None, None
        whole = weight * drawn if whole is None else whole + weight * drawn
    return (None, None) if whole is None else limits(whole, share)


def _draws(
    totals: Sequence[float], counts: Sequence[float], clusters: Sequence[Hashable], generator: torch.Generator
) -> torch.Tensor | None:
    """The ratio of the sums in each draw of clusters; None with fewer than two."""
    sums = by_cluster((totals, counts), clusters)
    sums = sums[sums[:, 1] > 0]
    if len(sums) < 2:
        return None
    both = draw(sums, generator)
    return both[:, 0] / both[:, 1]


def open_folder(folder: str | Path, name: str, subject: str, data: str) -> Path:
    """The folder of an evaluation, which is made, or is one of an earlier run of it.

    Args:
        name, subject, data: as in `Evaluation`.

    Raises:
        UserError: it holds other files, or another evaluation.
    """
    path = Path(folder)
    try:
        there = sorted(one.name for one in path.iterdir()) if path.is_dir() else []
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if MANIFEST not in there and any(not one.startswith(PREFIX) for one in there):
        raise UserError(f"{path}: holds files, but no {MANIFEST} of wm eval; name another folder")
    settings = {"format": FORMAT, "version": VERSION, "evaluation": name, "subject": subject, "data": data}
    same_settings(path / MANIFEST, settings, "an evaluation")
    return path


def write_result(evaluation: Evaluation, folder: str | Path) -> None:
    """Write `result.json` into a folder that is there."""
    text = json.dumps(evaluation.as_dict(), indent=2, ensure_ascii=True, allow_nan=False)
    write_text(Path(folder) / RESULT, text + "\n")


def write_rows(rows: Iterable[Mapping[str, Any]], folder: str | Path) -> None:
    """Write `rows.jsonl` into a folder that is there.

    Of a row, `wm report` reads `context`, `action`, `real`, `predicted` (texts), `scores` (a mapping of name to number) and
    `failure` (why there is no prediction), where it has them.
    """
    with atomic(Path(folder) / ROWS) as unfinished, unfinished.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(_line(dict(row)) + "\n")


def read_result(path: str | Path) -> Evaluation:
    """The evaluation in a folder, or in a `result.json`.

    Raises:
        UserError: there is none, or it is of another kind or a later version.
    """
    path = Path(path)
    path = path / RESULT if path.is_dir() else path
    try:
        if not stat.S_ISREG((status := path.stat()).st_mode):  # a pipe has no end
            raise UserError(f"{path}: cannot be read (no file)")
        if status.st_size > _LARGEST:
            raise UserError(f"{path}: too large for a result of wm eval")
        value = loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UserError:
        raise
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
        raise UserError(f"{path}: no result of wm eval")
    if value.pop("version", None) != VERSION:
        raise UserError(f"{path}: of another version of wm_plugin")
    try:
        measures = [Measure(**one) for one in value.pop("measures")]
        evaluation = Evaluation(measures=measures, **value)
    except (TypeError, ValueError, KeyError):
        evaluation = None
    if evaluation is None or not _is_sound(evaluation):
        raise UserError(f"{path}: damaged")
    return evaluation


def read_rows(folder: str | Path) -> Iterator[dict[str, Any]]:
    """The rows in a folder, in order; nothing where it has none.

    Raises:
        UserError: a line is damaged.
    """
    path = Path(folder) / ROWS
    if not path.is_file():
        return
    with path.open("rb") as file:
        for place, line in enumerate(iter(partial(file.readline, LARGEST + 1), b""), 1):
            try:
                row = loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise UserError(f"{path}:{place}: damaged")
            yield row


def _is_sound(evaluation: Evaluation) -> bool:
    """Whether the fields are of their types: a file may be anybody's."""
    numbers = [x for m in evaluation.measures for x in (m.value, m.low, m.high, m.with_failed) if x is not None]
    counts = [x for m in evaluation.measures for x in (m.count, m.failed)]
    texts = [x for m in evaluation.measures for x in (m.name, m.by, m.group, m.note)]
    texts += [evaluation.name, evaluation.subject, evaluation.data]
    if not (isinstance(evaluation.settings, dict) and isinstance(evaluation.failures, dict)):
        return False
    if not isinstance(evaluation.notes, list):
        return False
    counts += evaluation.failures.values()
    texts += evaluation.notes
    return (
        all(number(x) is not None for x in numbers)
        and all(type(x) is int for x in counts)
        and all(isinstance(x, str) for x in texts)
    )


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(row: dict[str, Any]) -> str:
    """A row as JSON; numbers that are not finite, such as the likelihood of a broken model, are null."""
    try:
        return json.dumps(row, ensure_ascii=True, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_all_finite(row), ensure_ascii=True, allow_nan=False, default=str)


def _all_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _all_finite(item) for key, item in value.items()}
    return [_all_finite(item) for item in value] if isinstance(value, list | tuple) else _finite(value)
