"""How much memory an instance of an environment takes."""

import os
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wm_plugin.worlds.worlds import World


def bytes_an_instance(world: World, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Bytes for an instance in an episode, with the processes that it starts; None on systems without /proc.

    Resident pages are too coarse for small instances: where Python's own count of allocations is larger, it is the result.
    """
    start = time.monotonic()
    instances = [world.make()]
    instances[0].reset(**rows[0])
    count = 1024 if time.monotonic() - start < 0.005 else 4
    before = resident()
    if before is None:
        return None
    for number in range(count):
        instances.append(world.make())
        instances[-1].reset(**rows[number % len(rows)])
    pages = ((resident() or 0) - before) // count
    instances.clear()
    tracemalloc.start()
    for row in rows[:4]:
        instances.append(world.make())
        instances[-1].reset(**row)
    allocated = tracemalloc.get_traced_memory()[0] // len(instances)
    tracemalloc.stop()
    return max(pages, allocated)


def resident() -> int | None:
    """Resident bytes of this process and all that it started; None on systems without /proc."""
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
