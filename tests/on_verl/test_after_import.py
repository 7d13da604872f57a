"""Callbacks for the import of a module, on modules made for it."""

import importlib
import importlib.machinery
import importlib.util
import sys

import pytest

pytest.importorskip("verl")

import wm_plugin.verl
from wm_plugin.errors import MissingExtraError
from wm_plugin.verl import registration
from wm_plugin.verl.after_import import on_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"made_for_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_callbacks_run_once_in_order_after_the_import(module):
    calls = []
    on_import(module, lambda loaded: calls.append(("first", loaded.value)))
    on_import(module, lambda loaded: calls.append(("second", loaded.value)))
    for _ in range(2):  # looking for a module is not importing it
        assert importlib.util.find_spec(module).name == module
    assert calls == []
    loaded = importlib.import_module(module)
    assert type(loaded.__loader__) is type(loaded.__spec__.loader) is importlib.machinery.SourceFileLoader
    assert calls == [("first", 1), ("second", 1)]
    importlib.reload(sys.modules[module])
    assert len(calls) == 2


def test_a_module_that_is_there_is_called_at_once(module):
    importlib.import_module(module)
    calls = []
    on_import(module, lambda loaded: calls.append(loaded.__name__))
    assert calls == [module]


def test_a_submodule_that_its_package_imports(module, tmp_path):
    package = tmp_path / f"{module}_package"
    package.mkdir()
    (package / "__init__.py").write_text("from . import inner\n")
    (package / "inner.py").write_text("value = 2\n")
    calls = []
    on_import(f"{package.name}.inner", lambda loaded: calls.append(loaded.value))
    importlib.import_module(package.name)
    assert calls == [2]


def test_what_a_callback_raises_fails_the_import(module):
    def callback(loaded):
        raise LookupError("no registry")

    on_import(module, callback)
    with pytest.raises(LookupError, match="no registry"):
        importlib.import_module(module)


def test_a_module_that_does_not_exist_stays_missing(module):
    on_import(f"{module}_not", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{module}_not")


def test_too_late_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "asks_for_itself.py").write_text(
        "from wm_plugin.verl.after_import import on_import\non_import(__name__, lambda _: None)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="asks_for_itself is being imported at this moment"):
        importlib.import_module("asks_for_itself")


def test_a_plug_in_that_fails_says_so_where_verl_does_not(monkeypatch, capsys):
    def arm():
        raise LookupError("no registry")

    with monkeypatch.context() as patched:
        patched.setattr(registration, "arm", arm)
        with pytest.raises(LookupError):
            importlib.reload(wm_plugin.verl)
    assert capsys.readouterr().err == "wm: the verl plug-in failed to load: no registry\n"


def test_without_verl_the_plug_in_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "verl", None)
    with pytest.raises(MissingExtraError, match=r"wm_plugin\.verl needs verl: "):
        importlib.reload(wm_plugin.verl)
