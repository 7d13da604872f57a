"""Reads a YAML file of the user's, or one of this package's."""

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from wm_plugin.errors import UserError


def read_yaml(path: str | Path | None, default: str) -> Any:
    """Return the value in a file, or in this package's `default` without a path.

    Raises:
        UserError: it cannot be read, or is no YAML.
    """
    source: Any = resources.files(__package__) / default if path is None else Path(path)
    try:
        return yaml.safe_load(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or a date that is none
        raise UserError(f"{path}: no YAML ({' '.join(str(error).split())[:200]})") from None
