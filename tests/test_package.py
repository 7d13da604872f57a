"""The house: what ships, what the core imports, and that nothing is registered twice."""

import email
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from distutils.core import run_setup
from importlib import metadata
from pathlib import Path

import pytest
import yaml

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
        assert "Traceback" in done.stderr  # a program of the user's may catch it


@pytest.mark.parametrize(("host", "module"), [("trl", "train"), ("verl", "data")])
def test_a_command_of_a_missing_host_is_one_line(host, module):
    if any(one.metadata["Name"] == host for one in metadata.distributions()):
        pytest.skip(f"{host} is installed")
    done = subprocess.run(
        [sys.executable, "-m", f"wm_plugin.{host}.{module}"], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (2, f"wm_plugin.{host} needs {host}: {install(host)}\n")


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


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The sdist, and the wheel that is built from it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    ignore = ["--exclude=.git", "--exclude=.venv*", "--exclude=build", "--exclude=runs", "--exclude=*.egg-info"]
    archive = subprocess.run(["tar", "-C", ROOT, *ignore, "-c", "."], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-C", source, "-x"], input=archive, check=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", out, source], check=True, capture_output=True)
    return out


PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(ROOT / "constraints/cpu.txt")]


def environment(folder, python):
    subprocess.run([python, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


@pytest.mark.slow
def test_the_distributions_say_what_they_are_and_carry_no_more(dist):
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert (wheel.name, sdist.name) == ("wm_plugin-0.1.0-py3-none-any.whl", "wm_plugin-0.1.0.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(path))
    assert {name.partition("/")[0] for name in names} == {"wm_plugin", path.partition("/")[0]}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert (metadata["Version"], metadata["License-Expression"]) == ("0.1.0", "Apache-2.0")
    assert (metadata["Requires-Python"], metadata["Description-Content-Type"]) == (">=3.11", "text/markdown")
    assert metadata.get_payload().startswith("# wm-plugin\n")
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (said["version"], said["license"]) == (metadata["Version"], metadata["License-Expression"])
    assert f"## {metadata['Version']}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_the_wheel_alone_in_a_clean_environment(dist, tmp_path):
    """It gives a core that imports without TRL, verl or Ray, and recipes inside the package."""
    (wheel,) = dist.glob("*.whl")
    python = environment(tmp_path / "venv", sys.executable)
    subprocess.run([python, *PIP, wheel], check=True)
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


def interpreter(minor):
    """A Python 3.`minor` of this machine; None if there is none."""
    found = [shutil.which(f"python3.{minor}"), *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")]
    for python in filter(None, found):
        if (
            subprocess.run([python, "--version"], capture_output=True).returncode == 0
        ):  # one of pyenv's may only say where it is
            return python
    return None


@pytest.mark.slow
@pytest.mark.parametrize("minor", [11, 12, 13])
def test_other_pythons_take_the_wheel(dist, minor, tmp_path):
    """All but what needs torch, which is gigabytes where its index has no build for CPUs; CI installs it."""
    if (python := interpreter(minor)) is None:
        pytest.skip(f"python3.{minor} is not installed")
    (wheel,) = dist.glob("*.whl")
    python = environment(tmp_path / "venv", python)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [text for text in project["dependencies"] if not text.startswith("torch")]
    subprocess.run([python, *PIP, *needs], check=True)
    subprocess.run([python, *PIP, "--no-deps", wheel], check=True)
    package = next((tmp_path / "venv").glob("lib/*/site-packages/wm_plugin"))
    done = subprocess.run([python, "-W", "error", "-m", "compileall", "-q", package], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for words, said in (
        (["--version"], f"{project['version']}"),
        (["env", "list"], "sokoban"),
        (["doctor"], "pip install"),
    ):
        wm = subprocess.run([python.parent / "wm", *words], capture_output=True, text=True, cwd=tmp_path)
        assert said in wm.stdout, wm.stderr
