"""Our patches of TRL apply to the installed release with plain `patch`, and change what they say."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
import trl
from packaging.specifiers import SpecifierSet

from support.on_trl import Scripted, config, run
from support.patched import apply, copied, loaded, patch_named
from wm_plugin.runtime.patches import site_of

COMMAND, DAPO = "trl-grpo-command", "trl-dapo-normalization"
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


def is_for_the_installed_release(name):
    return trl.__version__ in SpecifierSet(patch_named(name).header["Releases"])


def released(name, folder):
    """The file of a release that a patch is for, in `folder`."""
    (path,) = copied(patch_named(name), folder)
    if name == DAPO and not is_for_the_installed_release(name):  # take the mend of newer releases out
        mended = re.compile(
            r" +# `num_items_in_batch` spans.*?(?= +loss = \(per_token_loss \* mask\)\.sum\(\) / normalizer\n)", re.S
        )
        line = '            normalizer = inputs["num_items_in_batch"] / self.accelerator.num_processes\n'
        text, count = mended.subn(line, path.read_text())
        assert count == 1
        path.write_text(text)
    elif not is_for_the_installed_release(name):
        pytest.skip(f"made for trl {patch_named(name).header['Releases']}")
    return path


@pytest.mark.parametrize("name", [COMMAND, DAPO])
def test_it_applies_and_goes_back(name, tmp_path):
    patch, path = patch_named(name), released(name, tmp_path)
    before = path.read_text()
    assert patch.state(tmp_path) == "fits"
    assert patch.state(site_of("trl")) == ("fits" if is_for_the_installed_release(name) else "does not fit")
    apply(name, tmp_path)
    assert patch.state(tmp_path) == "applied"
    apply(name, tmp_path, "-R")
    assert path.read_text() == before


def test_it_does_not_apply_twice(tmp_path):
    """Where TRL divides right, another division would be wrong."""
    released(DAPO, tmp_path)
    apply(DAPO, tmp_path)
    with pytest.raises(AssertionError):
        apply(DAPO, tmp_path, "--forward")


def test_the_command_takes_a_trainer_tools_and_an_environment(tmp_path, monkeypatch):
    path = released(COMMAND, tmp_path)
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


def test_dapo_divides_by_the_tokens_of_an_update(tmp_path):
    """A generation batch of four micro-steps, an update of two: the stock gradient is half of what it should be."""
    path = released(DAPO, tmp_path)
    fields = {"loss_type": "dapo", "steps_per_generation": 4, "gradient_accumulation_steps": 2, "max_steps": 1}

    def gradient(name):
        class Trainer(Scripted, loaded(path, f"trl.trainer.{name}").GRPOTrainer):
            pass

        _, (only,) = run(Trainer, args=config(**fields))
        return only

    stock = gradient("stock_grpo_trainer")
    apply(DAPO, tmp_path)
    patched = gradient("patched_grpo_trainer")
    assert patched.norm() > 0
    assert torch.allclose(patched, 2 * stock, rtol=1e-9)
