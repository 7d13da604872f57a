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


def memory(number):
    """The bytes that a process and all below it take of the machine; pages that several share are divided."""
    with open(f"/proc/{number}/smaps_rollup") as file:
        own = next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    with open(f"/proc/{number}/task/{number}/children") as file:
        return own + sum(map(memory, file.read().split()))
