"""The rows of a config of `wm train` as verl's files: `python rows.py CONFIG FOLDER [NAME=VALUE...]`.

FOLDER gets train.parquet, and test.parquet or a file for each evaluation set. With --names first, it only prints the latter's.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from wm_plugin.hosting import config_file
from wm_plugin.hosting.rows import make_rows
from wm_plugin.runtime.command import exit_code
from wm_plugin.verl.data import verl_rows, write


def sets(settings: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """The function of rows and its arguments, by the name of the set."""
    found = {"train": (settings["train_rows"], settings["train_rows_kwargs"])}
    if "eval_rows" in settings:
        arguments = settings["eval_rows_kwargs"]
        many = "environments" not in arguments and all(isinstance(one, dict) for one in arguments.values())
        found |= {
            name: (settings["eval_rows"], one) for name, one in (arguments if many else {"test": arguments}).items()
        }
    return found


def main() -> int:
    arguments = [word for word in sys.argv[1:] if word != "--names"]
    settings, folder = config_file.read(arguments[0]), Path(arguments[1])
    for word in arguments[2:]:
        name, _, text = word.partition("=")
        settings[name] = yaml.safe_load(text)
    found = sets(settings)
    if "--names" in sys.argv:
        print(",".join(f"{folder}/{name}.parquet" for name in [*found][1:] or found))
        return 0
    for name, (function, kwargs) in reversed(found.items()):  # the training rows are written last
        rows = make_rows(function, kwargs, field=f"the rows of {name}", kwargs="their arguments")
        write(verl_rows(rows, name), folder / f"{name}.parquet")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "rows.py"))
