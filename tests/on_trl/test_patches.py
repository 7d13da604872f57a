"""Our patch of TRL applies to the installed release with plain `patch`, and changes what it says."""

import sys
from types import SimpleNamespace

import pytest
import trl
from packaging.specifiers import SpecifierSet

from support.patched import apply, copied, loaded, patch_named
from wm_plugin.runtime.patches import site_of

COMMAND = "trl-grpo-command"
OWN = """
class Trainer:
    made = []

    def __init__(self, **options):
        self.made.append(options)
        raise KeyboardInterrupt  # nothing is trained


class Room:
    def reset(self, **_):
        return ""


def look():
    pass
"""


def released(folder):
    """The file of the installed release, in `folder`."""
    patch = patch_named(COMMAND)
    if trl.__version__ not in SpecifierSet(patch.header["Releases"]):
        pytest.skip(f"made for trl {patch.header['Releases']}")
    (path,) = copied(patch, folder)
    return path


def test_it_applies_and_goes_back(tmp_path):
    patch, path = patch_named(COMMAND), released(tmp_path)
    before = path.read_text()
    assert patch.state(tmp_path) == "fits"
    assert patch.state(site_of("trl")) == "fits"
    apply(COMMAND, tmp_path)
    assert patch.state(tmp_path) == "applied"
    apply(COMMAND, tmp_path, "-R")
    assert path.read_text() == before


def test_the_command_takes_a_trainer_tools_and_an_environment(tmp_path, monkeypatch):
    path = released(tmp_path)
    (tmp_path / "own_room.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"train": [], "test": []})
    flags = ["--dataset_name", "x", "--model_name_or_path", "m", "--output_dir", str(tmp_path / "out"), "--use_cpu"]
    flags += ["--bf16", "false", "--trainer_class", "own_room.Trainer", "--tools", "own_room.look"]
    flags += ["--environment_factory", "own_room.Room"]
    with pytest.raises((SystemExit, ValueError)):
        loaded(path, "stock_grpo").make_parser().parse_args_and_config(flags, fail_with_unknown_args=True)
    apply(COMMAND, tmp_path)
    patched = loaded(path, "patched_grpo")
    parsed = patched.make_parser().parse_args_and_config(flags, fail_with_unknown_args=True)
    with pytest.raises(KeyboardInterrupt):
        patched.main(*parsed)
    import own_room

    (options,) = own_room.Trainer.made
    assert (options["tools"], options["environment_factory"]) == ([own_room.look], own_room.Room)
    with pytest.raises(ValueError, match="'Room' is no dotted import path"):
        patched.import_object("Room")
    assert SimpleNamespace(**options).model == "m"
