"""Config files of `wm train`, without trl and torch, so that a mistake is reported before they are imported."""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.runtime.command import exit_code
from wm_plugin.runtime.texts import load_yaml

ALIASES = {"alpha": "echo_coeff", "echo_alpha": "echo_coeff"}


def split(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of the files that `--config` names, of which later ones win, and the other arguments.

    Raises:
        UserError: there are no arguments, the first is no flag, or a file cannot be read.
    """
    if not arguments:
        raise UserError(
            "nothing to train on; give --config X.yaml (examples: the package wm_plugin.recipes.trl), or flags"
        )
    if not arguments[0].startswith("-"):
        raise UserError(f"{arguments[0]!r} is no flag; write --config {arguments[0]}")
    paths: list[str] = []
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, path = argument.partition("=")
        if name != "--config":
            others.append(argument)
            continue
        path = path if equals else next(rest, "")
        if not path or path.startswith("--"):
            raise UserError("--config needs a path to a YAML file")
        paths.append(path)
    settings: dict[str, Any] = {}
    for path in paths:
        merge(settings, read(path))
    for name, value in (settings.pop("env", None) or {}).items():  # TrlParser's convention
        os.environ[str(name)] = str(value)
    return settings, others


def read(path: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the settings of a file, over those of the files that its `defaults` name: X for X.yaml beside it, or of our recipes.

    Raises:
        UserError: a file cannot be read, is no mapping, gives a setting twice, or names itself.
    """
    if path in above:
        raise UserError(f"{path} is among its own defaults ({' -> '.join((*above, path))}); leave one out")
    try:
        values = load_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the config file {path}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of a date or a number
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no mapping of settings; write lines such as 'echo_coeff: 0.05'")
    if not isinstance(values.get("env") or {}, dict):
        raise UserError(f"{path}: env is {shown(values['env'])}; write environment variables as NAME: value")
    names = values.pop("defaults", None) or []
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: defaults is {shown(names)}; write a list of names, [base, gspo]")
    settings: dict[str, Any] = {}
    for name in names:
        merge(settings, read(_default(path, name), (*above, path)))
    own: dict[str, Any] = {}
    for key, value in values.items():
        name = ALIASES.get(str(key), str(key))
        if name in own:
            raise UserError(f"{path} gives {name!r} twice (as {str(key)!r} too); keep one")
        own[name] = value
    return merge(settings, own)


def merge(settings: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Put settings over others: a mapping over a mapping key by key, and anything else in its place."""
    for name, value in over.items():
        below = settings.get(name)
        settings[name] = merge(dict(below), value) if isinstance(below, dict) and isinstance(value, dict) else value
    return settings


def _default(path: str, name: str) -> str:
    """Return the file that an entry of `defaults` names."""
    file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    beside = Path(path).parent / file
    if beside.is_file():
        return str(beside)
    try:
        shipped = Path(str(files("wm_plugin.recipes.trl")))
    except ModuleNotFoundError:  # a checkout on the PYTHONPATH
        shipped = beside.parent
    if not (shipped / file).is_file():
        names = [one.stem for folder in {beside.parent, shipped} for one in folder.glob("*.yaml")]
        raise UserError(f"{path}: defaults names {name!r}, and there is no {beside}{nearest(name, names)}")
    return str(shipped / file)


def main(arguments: Sequence[str]) -> int:
    """Print a file's settings with its defaults, for programs that read none, such as `trl sft`: FILE [NAME=VALUE...]."""
    if not arguments:
        raise UserError("write the config file, and NAME=VALUE for what it is to have instead")
    path, *words = arguments
    settings = read(path)
    for word in words:
        name, _, text = word.partition("=")
        settings[name] = yaml.safe_load(text)
    print(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), end="")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:]), "config_file"))
