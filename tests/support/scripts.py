"""What a recipe's launcher calls, by programs on the path that only note how they are called."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recipes import Recipe, read

RECIPES = Path(__file__).parents[2] / "recipes"
# what reads a recipe is really run
PROGRAM = f"""#!/bin/sh
case "$*" in *wm_plugin.hosting.config_file*|*"rows.py --names"*) exec {sys.executable} "$@" ;; esac
printf '%s\\037' NAME "$@" >> "$CALLS"
printf '\\036' >> "$CALLS"
"""
# not those of whoever runs the tests
VARIABLES = ("TURNS", "CUSTOMER", "LAUNCH", "TRAJECTORIES", "TRANSITIONS", "DOMAIN", "CORPUS", "PROCESSES", "THRESHOLD")
DATA = {"TRAJECTORIES": "mine.jsonl", "DOMAIN": "mcp", "CORPUS": "a.txt b.md"}  # what recipes of large models are given
DATA |= dict.fromkeys(("SERVER", "SERVER_MODEL", "JUDGE", "JUDGE_MODEL"), "x")


def listed(host: str) -> dict[str, Recipe]:
    """The recipes of a host by name."""
    return {one.name: one for one in read() if one.host == host and one.config.parent.name == host}


def calls_of(host: str, name: str, folder: Path, *arguments: str, **variables: str) -> list[list[str]]:
    """The calls of `recipes/HOST/run.sh NAME` in their order, each the program's name and its words.

    Args:
        folder: where the script runs.
        variables: of the environment, beside those that recipes read.
    """
    programs = folder / "programs"
    programs.mkdir(parents=True)
    for program in ("python", "trl", "torchrun", "accelerate"):
        (programs / program).write_text(PROGRAM.replace("NAME", program))
        (programs / program).chmod(0o755)
    environment = {key: text for key, text in os.environ.items() if key not in VARIABLES}
    environment |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "CALLS": str(folder / "calls"), **variables}
    environment["PYTHONPATH"] = str(RECIPES.parent)
    command = [str(RECIPES / host / "run.sh"), name, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [call.split("\x1f")[:-1] for call in (folder / "calls").read_text().split("\x1e")[:-1]]


def flags(**fields: Any) -> list[str]:
    """The fields as a command's flags; a mapping or list as JSON."""
    texts = {
        name: json.dumps(value) if isinstance(value, dict | list) else str(value) for name, value in fields.items()
    }
    return [word for name, text in texts.items() for word in (f"--{name}", text)]


def trl_words(name: str, *flags: str, **variables: str) -> list[str]:
    """What the launcher of TRL says to the trainer, from --config on."""
    folder = Path(tempfile.mkdtemp())
    last = calls_of("trl", name, folder, *flags, **DATA, **variables)[-1]
    if "--accelerate_config" in last:
        place = last.index("--accelerate_config")
        del last[place : place + 2]
    words = last[last.index("--config") :]
    return [str(folder / word) if word.startswith("runs/") and (folder / word).is_file() else word for word in words]


def verl_words(name: str, *settings: str, **variables: str) -> list[str]:
    """What the launcher of verl says to Hydra: the config's name and overrides."""
    last = calls_of("verl", name, Path(tempfile.mkdtemp()), *settings, **DATA, **variables)[-1]
    return last[last.index("--config-name") + 1 :]


@contextmanager
def judges_port() -> Iterator[None]:
    """The port that the tiny recipes name for their judge: one test at a time, of all processes."""
    with open(Path(tempfile.gettempdir()) / "wm_plugin_tests_judge.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
