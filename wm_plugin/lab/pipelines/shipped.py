"""The pipelines that come with this package."""

from importlib import resources
from pathlib import Path

from wm_plugin.errors import UserError, nearest


def shipped() -> dict[str, Path]:
    """Return the pipelines of this package, by name."""
    folder = Path(str(resources.files("wm_plugin.recipes"))) / "pipelines"
    # the other YAML files there are settings of commands
    return {path.stem: path for path in sorted(folder.glob("*.yaml")) if "\nsteps:" in path.read_text(encoding="utf-8")}


def find(name: str) -> Path:
    """Return the file of a pipeline: one of this package by name, or the user's own, whose name ends in .yaml."""
    if Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    there = shipped()
    if name not in there:
        raise UserError(
            f"there is no pipeline {name!r} (the name of a file of yours ends in .yaml){nearest(name, there)}"
        )
    return there[name]
