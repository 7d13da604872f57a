"""Config files of `wm train`, without trl and torch: what is wrong with one is said before they are imported."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from wm_plugin.errors import UserError, shown

ALIASES = {"alpha": "echo_coeff", "echo_alpha": "echo_coeff"}


def split(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings of the file that `--config` names, and the other arguments.

    Raises:
        UserError: there are no arguments, the first is no flag, or the file cannot be read.
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
    if len(paths) > 1:
        raise UserError(f"--config names {' and '.join(paths)}; keep one")
    return read(paths[0]) if paths else {}, others


def read(path: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the config file {path}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of a date or a number
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no mapping of settings; write lines such as 'echo_coeff: 0.05'")
    variables = values.pop("env", None) or {}
    if not isinstance(variables, dict):
        raise UserError(f"{path}: env is {shown(variables)}; write environment variables as NAME: value")
    for name, value in variables.items():  # TrlParser's convention
        os.environ[str(name)] = str(value)
    settings: dict[str, Any] = {}
    for key, value in values.items():
        name = ALIASES.get(str(key), str(key))
        if name in settings:
            raise UserError(f"{path} gives {name!r} twice (as {str(key)!r} too); keep one")
        settings[name] = value
    return settings
