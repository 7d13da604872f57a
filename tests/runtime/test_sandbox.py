"""The boundary's own parts; what tries to get out is in tests/rewards and tests/environments."""

import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from wm_plugin.runtime import sandbox


@pytest.mark.system
def test_files_input_and_both_outputs():
    if not shutil.which("bwrap"):
        pytest.skip("needs the system package bubblewrap")
    script = "read given; read file < /given.txt; echo $given $file; echo oops >&2; exit 3"
    ran = sandbox.run(
        ["/bin/sh", "-c", script],
        stdin=b"input\n",
        files={"/given.txt": b"content\n"},
        timeout=20,
        most=1000,
        errors=True,
    )
    assert ran == (b"input content\noops\n", 3)
    assert sandbox.run(["/bin/sh", "-c", ": > /given.txt"], files={"/given.txt": b""}, timeout=20, most=9).code != 0
    assert sandbox.run(["/bin/sh", "-c", "echo /*"], timeout=20, most=99).output.split() == [
        *(
            f"/{name}".encode()
            for name in ("bin", "empty", "lib", "lib32", "lib64", "usr")
            if name == "empty" or Path("/", name).exists()
        )
    ]
    assert sandbox.run(["/bin/sh", "-c", "echo long >&2; echo 12345"], timeout=20, most=3) == (b"123", 0)
    assert sandbox.run(["/bin/sh", "-c", "echo x; while :; do :; done"], timeout=0.5, most=9) == (b"", None)


REAPER = """
import ctypes, os, sys
from wm_plugin.runtime import sandbox
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
for script, timeout, code in (("exit 3", 20, 3), ("while :; do :; done", 0.3, None), ("exit", 0, None)):
    assert sandbox.run(["/bin/sh", "-c", script], timeout=timeout, most=9).code == code, script
try:
    print("left:", os.waitpid(-1, 0))
except ChildProcessError:
    print("nothing")
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="whoever would reap what a run leaves is Linux's subreaper")
def test_no_process_stays_behind_not_even_a_zombie():
    if not shutil.which("bwrap"):
        pytest.skip("needs the system package bubblewrap")
    ran = subprocess.run([sys.executable, "-c", REAPER], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "nothing\n", ran.stderr


@pytest.mark.system
def test_this_package_is_not_in_the_sandbox_wherever_it_is_installed(monkeypatch):
    if not shutil.which("bwrap"):
        pytest.skip("needs the system package bubblewrap")
    folder = next(path for path in Path("/usr/share").iterdir() if path.is_dir() and any(path.iterdir()))
    script = f"echo {folder}/*; echo > {folder}/x || echo read-only"
    before = sandbox.run(["/bin/sh", "-c", script], timeout=20, most=9999)
    assert before.output.splitlines()[0] != f"{folder}/*".encode()
    monkeypatch.setattr(sandbox, "_PACKAGE", str(folder.resolve()))
    assert sandbox.run(["/bin/sh", "-c", script], timeout=20, most=999).output == f"{folder}/*\nread-only\n".encode()


def test_other_copies_of_this_package_are_hidden_too(tmp_path):
    places = ["lib/python3.12/site-packages", "local/lib/python3.11/dist-packages", "lib/python3/dist-packages"]
    copies = {tmp_path / place / "wm_plugin" for place in places}
    for copy in copies:
        copy.mkdir(parents=True)
    assert set(sandbox._installed(str(tmp_path))) == copies


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_decides_each_call(monkeypatch, machine):
    """The program is run by hand: a tiny interpreter of what it uses."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    program = list(struct.iter_unpack("=HBBI", sandbox._filter()))
    system = sandbox._SYSTEMS[machine]

    def decide(architecture, number, *arguments):
        place, value = 0, 0
        while True:
            code, yes, no, constant = program[place]
            place += 1
            if code == 0x20:
                known = {0: number, 4: architecture} | {
                    16 + 8 * n: one for n, one in enumerate((*arguments, 0, 0, 0, 0))
                }
                value = known[constant]
            elif code == 0x06:
                return constant
            else:
                tests = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}
                place += yes if tests[code] else no

    for number in range(600):
        wanted = 0x00050001 if number in system.denied else 0x7FFF0000
        assert decide(system.architecture, number) == wanted
    for flags, wanted in (
        (0x22, 0x7FFF0000),
        (0x21, 0x00050001),
        (1, 0x00050001),
        (3, 0x00050001),
    ):  # private and shared
        assert decide(system.architecture, system.mmap, 0, 4096, 3, flags) == wanted
    assert decide(0x40000003, 1) == 0x80000000
    assert decide(system.architecture, 0x40000000 + 57) == 0x00050001
    program = list(struct.iter_unpack("=HBBI", sandbox._filter(forks=True)))
    allow, refuse, absent = 0x7FFF0000, 0x00050001, 0x00050026
    calls = {
        (435,): absent,
        (system.timer_create, 1, 0): absent,
        (system.clone, 0x01200011, 0): allow,
        (system.clone, 0x10000011, 0): refuse,  # CLONE_NEWUSER
        (system.fcntl, 3, 1): allow,
        (system.fcntl, 10, 1): allow,
        (system.fcntl, 3, 10): refuse,  # F_SETSIG
        (system.prlimit, 0, 7): allow,
        (system.prlimit, 1, 7): refuse,
        (system.setsockopt, 3, 1, 8): allow,
        (system.setsockopt, 3, 1, 7): refuse,  # SO_SNDBUF
        (system.mmap, 0, 4096, 3, 2): allow,
        (system.mmap, 0, 4096, 3, 1): refuse,  # MAP_SHARED
    }
    assert {call: decide(system.architecture, *call) for call in calls} == calls
    for number in set(range(600)) - {435, system.timer_create, system.prlimit}:
        assert decide(system.architecture, number) == (refuse if number in system.others else allow)
