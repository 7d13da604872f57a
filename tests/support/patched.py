"""A copy of a host's file with one of our patches, by plain `patch`, as a module of its own."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from wm_plugin.runtime.patches import Patch, load, site_of

FOLDER = Path(__file__).parents[2] / "patches"


def patch_named(name: str) -> Patch:
    (patch,) = [patch for patch in load(FOLDER) if patch.name == name]
    return patch


def copied(patch: Patch, folder: Path) -> list[Path]:
    """The installed files that a patch changes, in `folder` as in site-packages."""
    site = site_of(patch.package)
    assert site is not None
    files = sorted({name for name, _, _ in patch.hunks})
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((site / name).read_text())
    return [folder / name for name in files]


def apply(name: str, folder: Path, *flags: str) -> None:
    """Without fuzz and without asking; fails if a hunk does not fit."""
    if shutil.which("patch") is None:
        pytest.skip("needs patch, of the system package patch")
    command = ["patch", "-p1", "--fuzz=0", "--batch", "--silent", *flags, "-d", str(folder)]
    with (FOLDER / f"{name}.patch").open() as diff:
        done = subprocess.run(command, stdin=diff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def loaded(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
