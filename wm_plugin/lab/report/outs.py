"""The files that `wm report --out` names."""

from collections.abc import Sequence
from pathlib import Path

from wm_plugin.data.outputs import PREFIX, check_out
from wm_plugin.errors import UserError
from wm_plugin.lab.report.export import FORMAT

_FORMS = (".html", ".csv", ".json")


def files_of(names: Sequence[str]) -> tuple[list[Path], Path | None]:
    """Return the files to write, and the folder to make for them; refuse what cannot be written or is no report's folder."""
    outs: list[Path] = []
    folder = None
    for name in names:
        path = Path(name)
        if path.suffix in _FORMS:
            check_out(path)
            outs.append(path)
        elif path.suffix or folder:
            raise UserError(
                f"--out {name}: write a name that ends in {', '.join(_FORMS)}, or one folder without an ending"
            )
        else:
            folder = path
            outs += _in_folder(path)
    if len(set(outs)) < len(outs):
        raise UserError("--out names a file twice")
    return outs, folder


def _in_folder(folder: Path) -> list[Path]:
    """Return a report's files in a folder that is new, empty, or holds an earlier report."""
    files = [folder / f"report{form}" for form in _FORMS]
    try:
        is_there = folder.is_dir()
        there = [path for path in folder.iterdir() if not path.name.startswith(PREFIX)] if is_there else []
    except (OSError, ValueError) as error:
        raise UserError(f"--out {folder}: cannot be used ({getattr(error, 'strerror', None) or error})") from None
    for path in files if is_there else [folder]:
        check_out(path)
    if there and (any(path not in files for path in there) or not _is_ours(folder / "report.json")):
        raise UserError(f"--out {folder}: holds something else than a report; name another folder, or a file")
    return files


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            value = file.read(200)
    except OSError:
        return False
    return f'"format": "{FORMAT}"'.encode() in value
