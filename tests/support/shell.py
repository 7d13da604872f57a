"""Tests at a shell in the sandbox: where they run, and whether a process is left."""

import shutil

import pytest

needs_shell = pytest.mark.skipif(
    not all(map(shutil.which, ("bwrap", "git", "make"))), reason="needs the system packages bubblewrap, git and make"
)


def running(number):
    """Whether a process is there and no zombie: whoever reaps here is the machine's business."""
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
