"""What every patch says of itself, and how its state is told."""

import re
from pathlib import Path

import pytest

from wm_plugin.runtime.patches import FIELDS, load, parse

FOLDER = Path(__file__).parents[2] / "patches"
TEXT = """Package: host
Releases: 1.0
Problem: one
  two
Upstream: https://example.org/1

--- a/host/x.py
+++ b/host/x.py
@@ -1,3 +1,3 @@
 a
-b
+c
@@ -9 +9,2 @@
 z
+--- a
"""


def test_a_patch_is_read():
    patch = parse("x", TEXT)
    assert patch.header == {
        "Package": "host",
        "Releases": "1.0",
        "Problem": "one two",
        "Upstream": "https://example.org/1",
    }
    assert patch.hunks[0] == ("host/x.py", "a\nb\n", "a\nc\n")
    assert patch.hunks[1] == ("host/x.py", "z\n", "z\n--- a\n")


@pytest.mark.parametrize(
    ("text", "state"),
    [("a\nb\nz\n", "fits"), ("a\nc\nz\n--- a\n", "applied"), ("a\nd\nz\n", "does not fit"), (None, "does not fit")],
)
def test_the_state_of_an_installed_host(tmp_path, text, state):
    (tmp_path / "host").mkdir()
    if text is not None:
        (tmp_path / "host" / "x.py").write_text(text)
    assert parse("x", TEXT).state(tmp_path) == state


@pytest.mark.parametrize("patch", load(FOLDER), ids=lambda patch: patch.name)
def test_every_patch_has_a_header_and_a_test(patch):
    assert tuple(patch.header) == FIELDS
    assert all(patch.header.values())
    assert patch.name.startswith(f"{patch.package}-")
    assert patch.package in ("trl", "verl")
    assert re.match("https://github.com/", patch.header["Upstream"])
    assert patch.hunks
    assert f"`{patch.name}`" in (FOLDER / "README.md").read_text()
    tests = (FOLDER.parent / "tests" / f"on_{patch.package}" / "test_patches.py").read_text()
    assert f'"{patch.name}"' in tests


def test_there_are_patches():
    assert len(load(FOLDER)) >= 3
