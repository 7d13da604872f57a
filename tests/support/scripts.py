"""What a recipe's script calls, by programs on the path that only note how they are called."""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = """#!/bin/sh
printf '%s\\037' NAME "$@"
printf '\\036'
"""
VARIABLES = (
    "TURNS",
    "RUN",
    "LAUNCH",
    "TRAJECTORIES",
    "DOMAIN",
    "CORPUS",
    "PROCESSES",
    "SEED",
    "THRESHOLD",
    "WEIGHTS",
)  # not those of whoever runs the tests


def calls_of(script: Path, folder: Path, *arguments: str, **variables: str) -> list[list[str]]:
    """The calls in their order, each the program's name and its words.

    Args:
        folder: where the script runs.
        variables: of the environment, beside those that recipes read.
    """
    assert os.access(script, os.X_OK)
    programs = folder / "programs"
    programs.mkdir()
    for name in ("python", "trl", "torchrun", "accelerate"):
        (programs / name).write_text(PROGRAM.replace("NAME", name))
        (programs / name).chmod(0o755)
    environment = {name: text for name, text in os.environ.items() if name not in VARIABLES}
    environment |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **variables}
    command = [str(script), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return [call.split("\x1f")[:-1] for call in done.stdout.split("\x1e")[:-1]]


@contextmanager
def judges_port() -> Iterator[None]:
    """The port that the tiny recipes name for their judge: one test at a time, of all processes."""
    with open(Path(tempfile.gettempdir()) / "wm_plugin_tests_judge.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
