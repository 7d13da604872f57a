"""docs/licences.md lists what an installation brings, and says of each package what the package says."""

import importlib.util
import re
import sys
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def licences():
    spec = importlib.util.spec_from_file_location("licences", ROOT / "docs" / "licences.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(*lines, requires=(), files=()):
    metadata = Message()
    for line in lines:
        name, _, value = line.partition(": ")
        metadata[name] = value
    return SimpleNamespace(metadata=metadata, requires=list(requires), files=list(files))


def test_every_dependency_has_its_row(licences):
    page = licences.PAGE.read_text()
    wanted = {}
    for name, extra in licences.requirements():
        wanted.setdefault(name, []).append(f"`{extra}`" if extra else "core")
    assert len(wanted) > 30
    found = {name: row.split("|")[2].strip() for name, row in licences.rows(page).items()}
    assert found == {name: ", ".join(extras) for name, extras in wanted.items()}


def families(licences, text):
    """Another release of a package may spell the same licences in another way."""
    return {licences._named(part) or part for part in re.split(r" AND | OR | WITH |[()]", text) if part.strip()}


def test_a_row_says_what_the_installed_package_says(licences):
    installed, rows = licences.installed_in(sys.path), licences.rows(licences.PAGE.read_text())
    assert {"torch", "pydantic"} <= installed.keys() & rows.keys()
    for name in installed.keys() & rows.keys():
        row = rows[name].rsplit("|", 2)[1].strip()
        assert families(licences, row) == families(licences, licences.licence(installed[name])), name


def test_copyleft_that_the_core_and_the_hosts_bring_is_named(licences):
    installed = licences.installed_in(sys.path)
    page = licences.PAGE.read_text()
    named = set(page.partition("## Copyleft")[2].replace("(", " ").replace(",", " ").split())
    names = [name for name, extra in licences.requirements() if extra in ("", "trl", "verl")]
    found = {name for name in licences.closure(names, installed) if licences.copyleft(name, installed)}
    assert "orjson" in found
    assert found <= named


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["License-Expression: MIT OR Apache-2.0", "License: BSD"], "MIT OR Apache-2.0"),
        (["Classifier: License :: OSI Approved :: BSD License", "Classifier: Topic :: GPL"], "BSD"),
        (["License: GNU General Public License v3 (GPLv3)"], "GPL-3.0"),
        (["License: GNU Lesser General Public License"], "LGPL"),
        (["License: as you like"], "not stated"),
    ],
)
def test_licences_by_their_usual_names(licences, lines, expected):
    assert licences.licence(package(*lines)) == expected


def test_a_choice_is_no_copyleft_and_what_a_package_brings_counts(licences):
    installed = {
        "top": package("License: MIT", requires=["middle>=1", "other; extra == 'x'"]),
        "middle": package("License-Expression: MPL-2.0 AND (MIT OR Apache-2.0)", requires=["top"]),
        "other": package("License: GPLv3"),
        "either": package("License-Expression: GPL-2.0 OR MIT"),
    }
    assert licences.closure(["top", "missing"], installed) == {"top", "middle"}
    assert licences.copyleft("middle", installed) == "MPL-2.0 AND (MIT OR Apache-2.0)"
    assert licences.copyleft("other", installed) == "GPL-3.0"
    assert licences.copyleft("either", installed) is None
    assert licences.copyleft("top", installed) is None
