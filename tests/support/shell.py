"""Tests at a shell in the sandbox: where they run, and what is left behind."""

import shutil
import subprocess

import pytest

needs_shell = pytest.mark.skipif(
    not all(map(shutil.which, ("bwrap", "git", "make"))), reason="needs the system packages bubblewrap, git and make"
)


def sandboxes() -> list[str]:
    """The processes of shells' sandboxes, of all programs on this machine."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "/etc/first" in line]
