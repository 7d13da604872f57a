"""Callbacks after an import, on modules made for it."""

import importlib
import importlib.util
import sys

import pytest

pytest.importorskip("verl")

from wm_plugin.verl.hooks import _FINDER, on_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"made_for_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)
    _FINDER.callbacks.pop(name, None)


def test_callbacks_run_once_in_order_after_the_import(module):
    seen = []
    on_import(module, lambda found: seen.append(("first", found.value)))
    on_import(module, lambda found: seen.append(("second", found.value)))
    assert seen == []
    importlib.import_module(module)
    assert seen == [("first", 1), ("second", 1)]
    importlib.reload(sys.modules[module])
    assert len(seen) == 2


def test_a_module_that_is_there_is_called_at_once(module):
    importlib.import_module(module)
    seen = []
    on_import(module, lambda found: seen.append(found.__name__))
    assert seen == [module]


def test_looking_for_a_module_is_not_importing_it(module):
    seen = []
    on_import(module, lambda found: seen.append(found.value))
    assert importlib.util.find_spec(module).name == module
    assert seen == []
    importlib.import_module(module)
    assert seen == [1]


def test_a_module_that_does_not_exist_stays_missing(module):
    on_import(f"{module}_not", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{module}_not")
    _FINDER.callbacks.pop(f"{module}_not")


def test_too_late_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "asks_for_itself.py").write_text(
        "from wm_plugin.verl.hooks import on_import\non_import(__name__, lambda _: None)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="asks_for_itself is being imported at this moment"):
        importlib.import_module("asks_for_itself")
