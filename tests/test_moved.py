"""Modules that docs named before they moved are still imported by their old names, with a warning."""

import importlib
import subprocess
import sys
import warnings

import pytest

from wm_plugin._moved import LAST_RELEASE, MOVED

NAMES = {
    "wm_plugin.environments.actions": ("ActionEnvironment", "parse", "shortest_plan", "check_level"),
    "wm_plugin.environments.commands": ("CommandEnvironment", "expert", "wanderer"),
    "wm_plugin.server": ("Server",),
    "wm_plugin.trajectories.constructions": ("imitation", "rft", "iwm", "documents", "branch", "Propose"),
    "wm_plugin.trajectories.prompts": ("load", "render"),
    "wm_plugin.trajectories.prompts.file": ("load", "Prompts"),
    "wm_plugin.trajectories.reflection": ("reflection", "asking", "question"),
}


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_warns_and_has_what_the_new_one_has(old, monkeypatch):
    for name in MOVED:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = importlib.import_module(old)
    warning = caught[-1]  # a parent package that has moved too warns first
    assert warning.category is DeprecationWarning
    assert str(warning.message) == (
        f"{old} has moved to {' and '.join(MOVED[old])}; {LAST_RELEASE} is the last release with the old name"
    )
    assert not warning.filename.endswith("_moved.py")  # it names who imports
    for name in NAMES[old]:
        assert any(getattr(importlib.import_module(new), name, None) is getattr(module, name) for new in MOVED[old])


def test_every_old_name_is_tested():
    assert set(NAMES) == set(MOVED)


def test_other_missing_modules_are_still_missing():
    with pytest.raises(ModuleNotFoundError, match=r"wm_plugin\.servers"):
        importlib.import_module("wm_plugin.servers")


@pytest.mark.slow
def test_old_names_import_no_host():
    code = "import sys, importlib\n"
    code += "".join(f"importlib.import_module({name!r})\n" for name in MOVED)
    code += "print([name for name in ('trl', 'verl', 'ray', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
