"""A block of a config file, such as `control:`, by itself or in the config of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from wm_plugin.cli.rollouts import read_text
from wm_plugin.errors import UserError

Config = TypeVar("Config")


def read_block(path: str, flag: str, key: str, make: Callable[[Any], Config]) -> Config:
    """What a file says, by itself or under `key`.

    Args:
        flag: the flag that names the file.
        make: the values of the block to its config, such as `ControlConfig.read`.

    Raises:
        UserError: the file cannot be read or is no YAML, or as from `make`; the message names the file.
    """
    import yaml

    text = read_text(Path(path), flag)
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of a date or a number
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if isinstance(values, dict) and key in values:  # no block has its own name among its keys
        values = values[key]
    try:
        return make(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
