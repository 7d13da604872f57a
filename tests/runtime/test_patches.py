"""What every patch says of itself, and how its state is told."""

import ast
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from wm_plugin.hosting.tried import tried
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
    assert tuple(name for name in patch.header if name != "Beside") == FIELDS
    assert all(patch.header.values())
    newest = max(Version(row["release"]) for row in tried() if row["host"] == patch.package)
    assert newest in SpecifierSet(patch.header["Releases"])  # one that no current release needs goes
    assert patch.name.startswith(f"{patch.package}-")
    assert patch.package in ("trl", "verl")
    assert re.match("https://github.com/(huggingface|verl-project)/", patch.header["Upstream"])
    assert patch.hunks
    assert f"`{patch.name}`" in (FOLDER / "README.md").read_text()
    tests = (FOLDER.parent / "tests" / f"on_{patch.package}" / "test_patches.py").read_text()
    assert f'"{patch.name}"' in tests


def test_there_are_patches():
    assert {patch.package for patch in load(FOLDER)} == {"trl", "verl"}


def test_only_the_doctor_knows_them_and_nobody_applies_them():
    """What is never imported patches nothing on import, and what neither writes nor runs anything patches nothing at all."""
    package = FOLDER.parent / "wm_plugin"
    mention = re.compile(r"(runtime|wm_plugin)(\.| import )patches\b")
    knowing = [path for path in package.rglob("*.py") if mention.search(path.read_text())]
    assert sorted(path.relative_to(package).as_posix() for path in knowing) == [
        "hosting/installation.py",
        "runtime/patches.py",
    ]
    for path in knowing:
        tree = ast.parse(path.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {"write_text", "write_bytes", "open", "subprocess", "system", "Popen", "exec", "eval"}


def test_the_wheel_ships_them():
    """By the configuration; the wheel itself is built by the slow test in test_package.py."""
    setuptools = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    files = [path.name for path in FOLDER.iterdir() if path.suffix != ".py" and path.is_file()]
    assert len(files) > len(load(FOLDER))  # and a README
    assert all(any(fnmatch(name, pattern) for pattern in setuptools["package-data"]["*"]) for name in files)
