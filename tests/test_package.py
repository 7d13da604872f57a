"""The house: what ships, what the core imports, and that nothing is registered twice."""

import os
import subprocess
import sys
from distutils.core import run_setup
from pathlib import Path

import pytest

import wm_plugin
from support.rooms import CORE
from wm_plugin.errors import MissingExtraError, UserError, install
from wm_plugin.registry import Registry, import_object

ROOT = Path(__file__).parents[1]
HOSTS = ("trl", "verl", "ray")


def modules(folder):
    return sorted(
        ".".join(("wm_plugin", *path.relative_to(ROOT / "wm_plugin").with_suffix("").parts)).removesuffix(".__init__")
        for path in (ROOT / "wm_plugin" / folder).rglob("*.py")
        if "tiny" not in path.parts  # it needs transformers
    )


def run(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *arguments, "-c", code], env=environment, capture_output=True, text=True)


BLOCK = """
import importlib, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""
HIDE = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == {name!r} else real(name, package)
"""


def test_the_core_imports_without_hosts_and_optional_packages():
    optional = (
        *HOSTS,
        "transformers",
        "datasets",
        "accelerate",
        "peft",
        "mazelib",
        "reasoning_gym",
        "gymnasium",
        "jinja2",
        "markupsafe",
        "tokenizers",
        "sentence_transformers",
        "aiohttp",
        "re2",
        "jsonpath",
    )
    code = BLOCK.format(blocked=optional)
    for folder in CORE:
        code += "".join(f"importlib.import_module({name!r})\n" for name in modules(folder))
    done = run(code + "import wm_plugin; print('imported')")
    assert done.stdout == "imported\n", done.stderr


def test_a_missing_host_names_its_extra():
    for host in ("trl", "verl"):
        done = run(HIDE.format(name=host) + f"import wm_plugin.{host}")
        assert f"wm_plugin.{host} needs {host}: {install(host)}" in done.stderr


def test_importing_the_package_changes_nothing_elsewhere():
    code = "import torch, random, sys; a = torch.get_rng_state(), random.getstate(), set(sys.modules)\n"
    code += "import wm_plugin\n"
    code += "assert torch.equal(a[0], torch.get_rng_state()) and a[1] == random.getstate()\n"
    code += "new = {name.partition('.')[0] for name in set(sys.modules) - a[2]}\n"
    code += f"assert not new & {set(HOSTS)!r}, new; print('ok')"
    done = run(code)
    assert done.stdout == "ok\n", done.stderr


def test_every_package_ships(monkeypatch):
    monkeypatch.chdir(ROOT)
    shipped = set(run_setup("setup.py", stop_after="init").packages)
    inside = {
        path.parent.relative_to(ROOT) for path in (ROOT / "wm_plugin").rglob("*") if path.suffix in (".py", ".md")
    }
    beside = {
        "wm_plugin" / path.parent.relative_to(ROOT)
        for folder in ("recipes", "patches")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix != ".pyc"
    }
    assert shipped == {".".join(folder.parts) for folder in inside | beside}


def test_only_the_adapters_import_hosts():
    for path in (ROOT / "wm_plugin").rglob("*.py"):
        room = path.relative_to(ROOT / "wm_plugin").parts[0]
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]) and words[1].partition(".")[0] in HOSTS:
                host = {"ray": "verl"}.get(words[1].partition(".")[0], words[1].partition(".")[0])  # verl runs on Ray
                assert host == room, f"{path}: {line}"


def test_public_names():
    assert len(wm_plugin.__all__) == len(set(wm_plugin.__all__)) == 28
    for name in wm_plugin.__all__:
        assert hasattr(wm_plugin, name)


def test_a_registry_refuses_duplicates_and_names_both():
    registry = Registry("thing", one="json:loads")
    registry.register("one", "json:loads")
    with pytest.raises(UserError, match="thing 'one' is registered twice: json:loads and json:dumps"):
        registry.register("one", "json:dumps")
    assert list(registry) == ["one"]
    with pytest.raises(UserError, match="there is no 'onee'; did you mean 'one'"):
        registry.get("onee")


def test_dotted_paths():
    assert import_object("json:loads", field="f") is import_object("json.loads", field="f")
    for path, message in (
        ("json", "is not a dotted path"),
        ("no.where:x", "there is no module 'no.where'"),
        ("json:lods", "did you mean"),
    ):
        with pytest.raises(UserError, match=message):
            import_object(path, field="f")


def test_an_error_inside_an_imported_module_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        import_object("broken_module:x", field="f")


def test_missing_extra_is_both_kinds_of_error():
    error = MissingExtraError("the report", "jinja2", "report")
    assert isinstance(error, ImportError)
    assert isinstance(error, UserError)
    assert str(error) == f"the report needs jinja2: {install('report')}"


@pytest.mark.slow
def test_the_wheel_alone_in_a_clean_environment(tmp_path):
    """`pip install .` gives a core that imports without TRL, verl or Ray, and recipes inside the package."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    source = tmp_path / "source"
    ignore = ["--exclude=.git", "--exclude=.venv*", "--exclude=build"]
    source.mkdir()
    archive = subprocess.run(["tar", "-C", ROOT, *ignore, "-c", "."], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-C", source, "-x"], input=archive, check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints/cpu.txt"]
    subprocess.run([*pip, source], check=True)
    names = [name for folder in CORE for name in modules(folder)]
    code = f"import importlib, importlib.util\nfor name in {names!r}: importlib.import_module(name)\n"
    code += f"assert not any(importlib.util.find_spec(host) for host in {HOSTS!r})\n"
    code += "from importlib.resources import files\n"
    code += "for host in ('trl', 'verl'):\n"
    code += "    names = {p.name for p in files(f'wm_plugin.recipes.{host}').iterdir()}\n"
    code += "    assert {'echo_grpo.yaml', 'run.sh'} <= names, names\n"
    code += "assert files('wm_plugin.recipes.verl').joinpath('wm/echo.yaml').is_file()\n"
    code += "for name in ('launch.sh', 'rows.sh', 'README.md', 'pipelines/worlds.sh', 'verl/method/gspo.yaml'):\n"
    code += "    assert files('wm_plugin.recipes').joinpath(name).is_file(), name\n"
    patches = sorted(path.stem for path in (ROOT / "patches").glob("*.patch"))
    code += f"from wm_plugin.runtime.patches import load\nassert [patch.name for patch in load()] == {patches!r}\n"
    code += "from importlib.metadata import entry_points\n"
    code += "assert entry_points(group='verl.plugins')['wm_plugin'].value == 'wm_plugin.verl'; print('ok')"
    done = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stderr
    version = subprocess.run([python.parent / "wm", "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert version.returncode == 0
