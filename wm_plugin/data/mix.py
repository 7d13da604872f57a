"""Mixtures: so many trajectories or rows of each of several files, drawn without replacement, in one shuffled file.

Word2World (section 7.2) compares agents that are fine-tuned alike on real trajectories, on synthetic ones, and on both; the
early-experience baselines of RWML (section 3.1) train on transitions or reflections together with the expert's own turns.

A draw depends only on the seed and on the identity of what is drawn: a smaller one is a subset of a larger one, and neither
other files nor the order of a file change which ones are drawn.
"""

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.outputs import check_apart, check_out
from wm_plugin.data.readers import own, read
from wm_plugin.data.rows import REWARD, write_rows
from wm_plugin.data.schema import Trajectory
from wm_plugin.data.transitions import holds_transitions, identity
from wm_plugin.data.write import SUFFIXES, write
from wm_plugin.errors import UserError, shown
from wm_plugin.tokens.spans import SPAN_FIELD

MAX_LISTED_NAMES = 40  # columns in an error, and characters of one


@dataclass
class Part:
    """What was drawn of a file: how many there are, how many were drawn, and how many of these are synthetic."""

    source: str
    there: int = 0
    drawn: int = 0
    synthetic: int = 0
    without_success: int = 0  # left out for it, if only successful ones are drawn


@dataclass
class Report:
    """The parts of a mixture. `repeated` counts what was drawn from more than one file."""

    what: str = "trajectories"
    parts: list[Part] = field(default_factory=list)
    repeated: int = 0

    def as_dict(self) -> dict[str, Any]:
        totals = {name: sum(getattr(part, name) for part in self.parts) for name in ("drawn", "synthetic")}
        return {"what": self.what, "parts": [asdict(part) for part in self.parts], **totals, "repeated": self.repeated}


def mix(
    sources: Sequence[str | Path],
    counts: Sequence[int | None],
    out: str | Path,
    *,
    successful: bool = False,
    seed: int = 0,
) -> Report:
    """Write a mixture to `out` (.jsonl or .parquet). What is drawn is held in memory.

    Args:
        sources: files of trajectories, as `write` writes them, or files of rows to train on.
        counts: how many of each; None draws all.
    """
    out = Path(out)
    check_out(out, SUFFIXES)
    check_apart(sources, {"--out": out})
    if not sources or len(sources) != len(counts):
        raise UserError(f"{len(sources)} files and {len(counts)} counts; write one count for each file")
    for count in counts:
        if count is not None and count < 1:
            raise UserError(f"a count is {count}; write a number >= 1, or all")
    forms = [_form(Path(source)) for source in sources]
    if len(set(forms)) > 1:
        listed = ", ".join(f"{source} ({form})" for source, form in zip(sources, forms, strict=True))
        raise UserError(f"trajectories and rows do not mix: {listed}; build rows of all of them first (wm data build)")
    report = Report(what=forms[0])
    if successful and report.what == "rows":
        raise UserError("rows do not say whether they are of a success: mix trajectories, then build rows of them")
    drawn: list[tuple[str, Any]] = []
    names: Counter[str] = Counter()
    columns: dict[tuple[str, ...], str] = {}  # that any row of a source has
    for number, (source, count) in enumerate(zip(sources, counts, strict=True)):
        part, found = Part(str(source)), set[str]()
        report.parts.append(part)
        chosen = _draw(_read(Path(source), report.what, successful, part, found), count, seed)
        columns[tuple(sorted(found))] = part.source
        if count is not None and len(chosen) < count:
            which = f"{len(chosen)} of its {part.there} are successful" if successful else f"there are {len(chosen)}"
            mend = "write a smaller count" if chosen else "leave out --successful, or the file"
            raise UserError(f"{source}: {count} {report.what} are asked for, and {which}; {mend}")
        part.drawn = len(chosen)
        part.synthetic = sum(isinstance(one, Trajectory) and bool(one.metadata.get("synthetic")) for *_, one in chosen)
        names.update(rank for rank, _, _ in chosen)
        drawn += [(_rank(f"order/{seed}", f"{rank}/{number}"), one) for rank, _, one in chosen]
    everywhere = {name for name in chain(*columns) if all(name in found for found in columns)}
    differ = {name for name in chain(*columns) if name not in everywhere}
    if differ and differ <= {SPAN_FIELD, REWARD}:  # of an agent's dialogues alone, and needed for the term in SFT alone
        drawn = [(place, {name: value for name, value in row.items() if name not in differ}) for place, row in drawn]
    elif differ:  # readers put null where a row lacks one, and a trainer would take such rows for others
        listed = "; ".join(f"{source} has {_listed(found)}" for found, source in columns.items())
        raise UserError(f"rows of other columns do not mix: {listed}. Build both for one host, with --tokenizer")
    report.repeated = sum(count - 1 for count in names.values())
    if not drawn:
        there = ", ".join(f"{part.source} has {part.there}" for part in report.parts)
        what = "successful trajectory is" if successful else f"{report.what} are"
        raise UserError(
            f"no {what} left to write: {there}" + (", none with success; leave out --successful" if successful else "")
        )
    mixed = (one for _, one in sorted(drawn, key=itemgetter(0)))
    if report.what == "rows":
        write_rows(mixed, out)
    else:
        write(mixed, out, strict=True)
    return report


def _form(path: Path) -> str:
    """Tell what a file holds: `trajectories`, or `rows`, which are written as they are."""
    if holds_transitions(path):
        raise UserError(f"{path} holds transitions; build rows of them first: wm data build --as rwml-sft")
    return "trajectories" if own.matches(files.head(path)) else "rows"


def _read(path: Path, what: str, successful: bool, part: Part, columns: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield everything in a file that may be drawn, each with its identity. The names of rows' columns are added to `columns`."""
    if what == "rows":
        for record in files.records(path, files.head(path)):
            if not isinstance(record.value, Mapping):
                raise UserError(f"{path}, row {record.row}: {record.error or 'no object with columns'}")
            part.there += 1
            columns.update(record.value)
            yield json.dumps(record.value, sort_keys=True, default=str), record.value
        return
    for trajectory in read(path):
        part.there += 1
        if successful and trajectory.success is not True:
            part.without_success += 1
        else:
            yield identity(trajectory), trajectory


def _draw(entries: Iterable[tuple[str, Any]], count: int | None, seed: int) -> list[tuple[str, int, Any]]:
    """Draw the `count` entries of the lowest ranks: (rank, place in the file, entry). The order tells equal ones apart."""
    seen: Counter[str] = Counter()

    def ranked() -> Iterator[tuple[str, int, Any]]:
        for place, (name, entry) in enumerate(entries):
            digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
            yield _rank(seed, f"{digest}/{seen[digest]}"), place, entry
            seen[digest] += 1

    return list(ranked()) if count is None else heapq.nsmallest(count, ranked(), key=itemgetter(0, 1))


def _rank(seed: int | str, name: str) -> str:
    return hashlib.sha256(f"{seed}/{name}".encode()).hexdigest()


def _listed(names: Sequence[str]) -> str:
    """Write the names of columns as a line has room for them."""
    most = MAX_LISTED_NAMES
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name if name.isprintable() and len(name) < most else shown(name) for name in names[:most]) + more
