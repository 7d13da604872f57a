"""The rows that a function in a run's settings makes."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.registry import import_object

_FILES = (".arrow", ".csv", ".json", ".jsonl", ".parquet")


def find_rows(path: str, *, field: str) -> Callable[..., Any]:
    """Return the function at a dotted path. `field` names the setting in the error."""
    if Path(path).suffix in _FILES:
        raise UserError(
            f"{field} is {path!r}, a file, and not a function, package.module:name; for files write "
            "dataset_name: FOLDER (TRL) or data.train_files (verl)"
        )
    function = import_object(path, field=field)
    if not callable(function):
        raise UserError(f"{field}: {path} is no function; write one that returns the rows, as dataset_rows does")
    return function  # type: ignore[no-any-return]


def make_rows(path: str, arguments: Mapping[str, Any], *, field: str, kwargs: str, keep: tuple[type, ...] = ()) -> Any:
    """Return a list of the rows that the function at a dotted path makes.

    Args:
        path: the function.
        arguments: its arguments.
        field, kwargs: the settings that name the two, for messages.
        keep: a host's classes of datasets. One of these is returned as it is.

    Raises:
        UserError: the function does not exist, cannot be called with these arguments, fails, or returns no rows.
    """
    function = find_rows(path, field=field)
    signature = inspect.signature(function)
    try:
        signature.bind_partial(**arguments)  # first, as a misspelt name says more than the one that it leaves out
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(f"{kwargs} do not fit {path}: {error}") from None
    try:
        rows = function(**arguments)
        if isinstance(rows, keep):
            return rows
        listed = list(rows) if isinstance(rows, Iterable) else None
    except UserError:
        raise
    except Exception as error:  # of the user's code
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"{field}: {path} raised {type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        ) from error
    if listed is None:
        raise UserError(f"{field}: {path} returned {type(rows).__name__}, not a list of rows")
    if not listed:
        raise UserError(f"{field}: {path} returned no rows")
    for index, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise UserError(f"{field}: row {index} of {path} is {type(row).__name__}, not a mapping of columns")
    return listed
