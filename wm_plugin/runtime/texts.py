"""Reads text files that a user names."""

from typing import Any

import yaml

from wm_plugin.errors import UserError


def read_text(path: Any, what: str = "") -> str:
    """Return the text of a file: a `Path`, or a resource of the package."""
    name = f"{what}: {str(path)!r}" if what else f"{path}:"
    try:
        text: str = path.read_text(encoding="utf-8")
        return text
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} not UTF-8 at byte {error.start}") from None


def read_yaml(path: Any, what: str = "") -> Any:
    """Return the value in a file of YAML; `what` as in `read_text`."""
    text = read_text(path, what)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from None
