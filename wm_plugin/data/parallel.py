"""Convert in several processes, with the same output as in one, byte for byte.

Files of lines are cut into ranges; any other file is one part. A process converts a part into a file of its own, and these files
are joined in order.
"""

import multiprocessing
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from wm_plugin.data.outputs import work_folder
from wm_plugin.data.readers import PART, Part, parts, read, read_part
from wm_plugin.data.readers.base import Complete
from wm_plugin.data.write import OWN, Counts, check_form, outputs, write, write_parquet
from wm_plugin.errors import UserError
from wm_plugin.runtime.workers import uninterrupted

Shard = tuple[Path, Path, Counts]  # trajectories and rejected rows of a part


def convert(
    sources: Iterable[Path],
    out: str | Path,
    rejects: str | Path | None = None,
    *,
    workers: int,
    format: str = "auto",
    strict: bool = False,
    size: int = PART,
    complete: Complete | None = None,
    to: str = OWN,
    watch: Callable[[Iterator[Shard]], Iterator[Shard]] = iter,
) -> Counts:
    """Convert all sources as `write` does, in `workers` processes."""
    counts, sources = Counts(), list(sources)
    check_form(Path(out), to)
    shard_form = (
        OWN if Path(out).suffix == ".parquet" else to
    )  # what the processes write is joined as it is, or read again
    source_parts = (part for source in sources for part in parts(source, format, size=size))
    with (
        outputs(out, rejects, counts, sources) as (unfinished, reject_file),
        work_folder(Path(out)) as folder,
        closing(_shards(source_parts, folder, workers, strict, complete, shard_form)) as made,
    ):

        def shards() -> Iterator[Path]:
            for kept, rejected, part_counts in watch(made):
                counts.merge(part_counts)
                if rejected.exists():
                    with rejected.open("rb") as file:
                        shutil.copyfileobj(file, reject_file, 1 << 20)
                    rejected.unlink()
                yield kept
                kept.unlink()

        if Path(out).suffix == ".parquet":
            filled = (shard for shard in shards() if shard.stat().st_size)
            write_parquet((one for shard in filled for one in read(shard, OWN)), unfinished, to, counts)
        else:
            with unfinished.open("wb") as out_file:
                for shard in shards():
                    with shard.open("rb") as file:
                        shutil.copyfileobj(file, out_file, 1 << 20)
    return counts


def _shards(
    source_parts: Iterator[Part], folder: Path, workers: int, strict: bool, complete: Complete | None, to: str
) -> Generator[Shard, None, None]:
    theirs, ours = multiprocessing.Pipe(duplex=False)
    with uninterrupted():
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _end_with, (theirs,))
    running: deque[Future[Shard]] = deque()
    try:
        for number, part in enumerate(source_parts):
            with uninterrupted():
                running.append(pool.submit(_convert, part, folder / f"{number}.jsonl", strict, complete, to))
            if len(running) > 2 * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
        pool.shutdown()
    except BrokenProcessPool:
        raise UserError("a process died, perhaps of too little memory; write a smaller number of workers") from None
    finally:
        ours.close()  # what still runs ends now: a part may be a file of hours
        pool.shutdown(cancel_futures=True)
        theirs.close()


def _end_with(parent: Connection) -> None:
    """End this process when the parent closes its end of a pipe, or is killed."""

    def wait() -> None:
        with suppress(EOFError, OSError):
            parent.recv()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _convert(part: Part, out: Path, strict: bool, complete: Complete | None, to: str) -> Shard:
    rejects = out.with_suffix(".rejects.jsonl")
    return out, rejects, write(read_part(part, complete=complete), out, rejects, strict=strict, to=to)
