"""`wm data convert`."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from wm_plugin.cli.numbers import bounds
from wm_plugin.cli.support import progress, search_here
from wm_plugin.data import parallel
from wm_plugin.data.host_dumps import FILE, warnings
from wm_plugin.data.hub import PREFIX, fetch
from wm_plugin.data.outputs import work_folder
from wm_plugin.data.readers import read_rows
from wm_plugin.data.write import OWN, check_form, check_outputs, path_of_rejects, write
from wm_plugin.errors import UserError

_SUFFIXES = (".json", ".jsonl", ".traj", ".gz", ".parquet")


def convert(
    sources: list[str],
    /,
    *,
    out: Path,
    format: str = "auto",
    to: str = OWN,
    environment: tuple[str, ...] = (),
    tools: tuple[str, ...] = (),
    rejects: Path | None = None,
    strict: bool = False,
    workers: Annotated[int, bounds(1, 256)] = 1,
) -> dict[str, Any]:
    """Read rollouts of any format, as trajectories.

    Every row is read or rejected; rejected rows go to a file of their own, with the reason.

    As JSON: `trajectories`, `turns`, `transitions`, `observations` by kind, `rejected`, `rejected_by_reason`, and their file
    `rejects`; `without_schemas` counts trajectories with calls and no tool schemas.

    Args:
        sources: Files, folders of files, or hf:owner/name[:config][@split], a dataset by its name.
        out: X.jsonl or X.parquet.
        format: The format of the sources, if their beginnings do not show it.
        to: own, atif (Harbor's, one document a line) or messages (chat messages with tool calls, as TRL and datasets read them).
        environment: The world that a host's rollouts come from, by name or as package.module:Class: it says whose answers they
            are, and which tools the agent had (repeatable).
        tools: Tools that the agent had, for rows without tool schemas: functions and classes as package.module:name, or worlds
            by name; several as A,B (repeatable).
        rejects: Where rejected rows go (default: X.rejects.jsonl beside X).
        strict: Stop at the first row that would be rejected.
        workers: Processes; what they write is the same.
    """
    complete: Any = None
    if environment or tools:
        from wm_plugin.worlds.observed import observed

        search_here()
        complete = observed(environment, tools)
    check_form(out, to)
    check_outputs(out, rejects)
    with ExitStack() as stack:
        files = _files(sources, lambda: stack.enter_context(work_folder(out)))
        if workers > 1:
            own: dict[str, Any] = {
                "workers": workers,
                "format": format,
                "strict": strict,
                "complete": complete,
                "to": to,
            }
            counts = parallel.convert(files, out, rejects, **own, watch=lambda shards: progress(shards, "parts"))
        else:
            rows = (row for file in files for row in read_rows(file, format, complete=complete))
            counts = write(progress(rows, "rows"), out, rejects, strict=strict, sources=files, to=to)
    result: dict[str, Any] = {
        **counts.as_dict(),
        "files": len(files),
        "out": str(out),
        "rejects": str(path_of_rejects(out, rejects)) if counts.rejected else None,
        "ok": counts.trajectories > 0,
    }
    notes = [
        f"{to} cannot hold {what}: left out of {count:,} trajectories" for what, count in sorted(counts.lost.items())
    ] + warnings(counts.without_schemas, counts.strange)
    if not counts.trajectories:
        reason = f"; {counts.first_reason}" if counts.first_reason else ""
        notes = [f"nothing was read{reason}; --format names the format, if the guess was wrong"]
    elif not result["transitions"]:
        notes.append("nothing follows an action; --format names the format, if the model is the world in these rows")
    return result | ({"notes": notes} if notes else {})


def _files(sources: list[str], folder: Callable[[], Path]) -> list[Path]:
    """Return the files among the sources, those in their folders, and datasets as files in a folder that is made for them."""
    if "" in sources:  # an unset variable, which a path would take for the current folder
        raise UserError("a source is an empty name; write a file or a folder ('.' is the current one)")
    files: list[Path] = []
    for name in sources:
        if name.startswith(PREFIX):
            files.append(fetch(name, folder(), lambda rows: progress(rows, "rows of the dataset")))
            continue
        source = Path(name)
        inside = [source]
        if source.is_dir():
            inside = sorted(p for p in source.rglob("*") if p.suffix in _SUFFIXES and p.name != FILE and p.is_file())
        if not inside:
            raise UserError(f"{source}: no file in it ends in {', '.join(_SUFFIXES)}")
        files += inside
    return files
