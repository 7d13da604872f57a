"""The memory that an instance of an environment takes."""

import os
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wm_plugin.environments.worlds import World


def bytes_an_instance(world: World, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Bytes an instance in an episode, the processes that it starts included; None where the system does not say.

    What is small is lost in the pages of memory, so that Python's own count is taken where it says more.
    """
    start = time.monotonic()
    kept = [world.make()]
    kept[0].reset(**rows[0])
    more = 1024 if time.monotonic() - start < 0.005 else 4
    before = resident()
    if before is None:
        return None
    for number in range(more):
        kept.append(world.make())
        kept[-1].reset(**rows[number % len(rows)])
    pages = ((resident() or 0) - before) // more
    kept.clear()
    tracemalloc.start()
    for row in rows[:4]:
        kept.append(world.make())
        kept[-1].reset(**row)
    allocated = tracemalloc.get_traced_memory()[0] // len(kept)
    tracemalloc.stop()
    return max(pages, allocated)


def resident() -> int | None:
    """Bytes in memory of this process and all that it started; None on systems without /proc."""
    parents: dict[int, int] = {}
    try:
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                try:
                    parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:  # it has ended
                    continue
        family = [os.getpid()]
        for process in family:
            family += [child for child, parent in parents.items() if parent == process]
        pages = sum(int(Path(f"/proc/{process}/statm").read_text().split()[1]) for process in family)
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
