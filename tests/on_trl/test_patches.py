"""Our patches of TRL apply to the installed release with plain `patch`, and change what they say."""

import sys
from types import SimpleNamespace

import pytest
import trl

from support.patched import apply, copied, loaded, patch_named
from wm_plugin.runtime.patches import site_of

NAME = "trl-grpo-command"
pytestmark = pytest.mark.skipif(trl.__version__ != "1.16.0", reason="made for 1.16.0")
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


def test_it_applies_and_goes_back(tmp_path):
    patch = patch_named("trl-grpo-command")
    (path,) = copied(patch, tmp_path)
    before = path.read_text()
    assert patch.state(tmp_path) == "fits" == patch.state(site_of("trl"))
    apply(NAME, tmp_path)
    assert patch.state(tmp_path) == "applied"
    apply(NAME, tmp_path, "-R")
    assert path.read_text() == before


def test_the_command_takes_a_trainer_tools_and_an_environment(tmp_path, monkeypatch):
    (path,) = copied(patch_named(NAME), tmp_path)
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
    apply(NAME, tmp_path)
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
