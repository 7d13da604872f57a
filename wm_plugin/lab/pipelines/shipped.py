"""The pipelines that come with this package."""

from pathlib import Path

from wm_plugin.errors import UserError, nearest


def shipped() -> dict[str, Path]:
    """The pipelines of this package, by name."""
    found = {}
    for path in sorted(_recipes().glob("*.yaml")):
        if "\nsteps:" in path.read_text(encoding="utf-8"):  # others are settings of scripts
            found[path.stem] = path
    return found


def _recipes() -> Path:
    """The folder of the pipelines, in a checkout or where a wheel puts it."""
    package = Path(__file__).resolve().parents[2]
    beside = package.parent / "recipes" / "pipelines"
    return (
        beside
        if (package.parent / "pyproject.toml").exists() and beside.is_dir()
        else package / "recipes" / "pipelines"
    )


def find(name: str) -> Path:
    """The file of a pipeline: one of this package by name, or the user's own.

    Raises:
        UserError: there is no such pipeline.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    there = shipped()
    if name not in there:
        raise UserError(
            f"there is no pipeline {name!r} (the name of a file of yours ends in .yaml){nearest(name, there)}"
        )
    return there[name]
