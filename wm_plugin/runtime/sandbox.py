"""Programs run where they can read nothing of the host's, write nothing and reach nobody.

The boundary is bubblewrap's: new namespaces for users, processes, the network and the rest; a file system of the system's
libraries, and of the Python installation where Python is the program, read-only; an empty environment; no capabilities. A
filter of system calls denies new processes, threads, sockets and memory that limits do not count (RLIMIT_NPROC would not hold
for root, whom containers run as).
Resource limits are the program's affair: it is started by what sets them.

What stays visible: those files, all of /usr. What is not limited: that a processor is busy until the
timeout.
"""

import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from wm_plugin.errors import UserError


class Run(NamedTuple):
    """What a program wrote, and its exit code: negative for a signal, None where it was stopped at the timeout."""

    output: bytes
    code: int | None


def run(
    program: Sequence[str],
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
    timeout: float,
    most: int,
    errors: bool = False,
) -> Run:
    """Run a program once, with nothing left of it afterwards. `check` says whether that works here.

    Args:
        program: the path and its arguments, as the sandbox sees them.
        stdin: its standard input.
        files: paths to contents, read-only.
        timeout: seconds, start included; after that everything in it is killed.
        most: bytes of the output that are read; what may be written is RLIMIT_FSIZE's.
        errors: standard error is a part of the output.

    Raises:
        OSError: no process can be started.
    """
    # Files and not pipes: what is written is bounded by FSIZE, and nobody waits for a reader.
    with ExitStack() as stack:
        said = stack.enter_context(tempfile.TemporaryFile())

        def file(content: bytes) -> int:
            made = stack.enter_context(tempfile.TemporaryFile())
            made.write(content)
            made.seek(0)
            return made.fileno()

        shown = [(path, file(content)) for path, content in (files or {}).items()]
        denied, source = file(_filter()), file(stdin)
        process = subprocess.Popen(
            [
                *_command(program, shown),
                "--seccomp",
                str(denied),
                "--",
                *program,
            ],
            stdin=source,
            stdout=said,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            env={},
            pass_fds=[denied, *(number for _, number in shown)],
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            return Run(b"", None)
        finally:
            # bubblewrap's own processes; when they go, the kernel kills whatever runs in the namespace.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return Run(said.read(most), process.returncode)


_checked: dict[tuple[str, ...], str] = {}  # what stands in the way of a program, by this process
_lock = threading.Lock()


def check(what: str, program: Sequence[str]) -> None:
    """Nothing, if a sandbox can be made here and `program` ends well in it; asked once a process.

    Args:
        what: begins the message: "code verifiers run".

    Raises:
        UserError: bubblewrap is not installed or may not make namespaces here, or the machine is of another kind.
    """
    with _lock:
        if (key := tuple(program)) not in _checked:
            _checked[key] = _problem(program)
    if _checked[key]:
        raise UserError(f"{what} in bubblewrap's sandbox only, and {_checked[key]}")


def _problem(program: Sequence[str]) -> str:
    if not sys.platform.startswith("linux") or platform.machine() not in _SYSTEMS:
        return f"that is for Linux on {' or '.join(_SYSTEMS)}; this is {sys.platform} on {platform.machine()}"
    if not shutil.which("bwrap"):
        return "bwrap is not installed: install the system package bubblewrap"
    tried = subprocess.run([*_command(program), "--", *program], env={}, capture_output=True, text=True, timeout=60)
    if tried.returncode:
        return f"it does not work here: {' '.join(tried.stderr.split())[:200] or f'exit code {tried.returncode}'}"
    return ""


def _command(program: Sequence[str], shown: Sequence[tuple[str, int]] = ()) -> list[str]:
    """bubblewrap, with what the program sees. No /proc, no /dev, no /etc, no home, and no place to write."""
    command = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--clearenv",
    ]
    for folder in ("/usr", "/lib", "/lib64", "/lib32", "/bin"):  # links into /usr, or folders of their own
        path = Path(folder)
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), folder]
        elif path.is_dir():
            command += ["--ro-bind", folder, folder]
    home = os.path.realpath(sys.base_prefix)
    if Path(program[0]).is_relative_to(home) and not Path(home).is_relative_to("/usr"):
        command += ["--ro-bind", home, home]
    for name, number in shown:
        command += ["--ro-bind-data", str(number), name]
    return [*command, "--dir", "/empty", "--remount-ro", "/", "--chdir", "/empty"]


class _System(NamedTuple):
    architecture: int  # AUDIT_ARCH_…
    denied: tuple[int, ...]  # numbers of system calls


# fork vfork clone clone3 · socket socketpair · shmget semget msgget memfd_create memfd_secret · ptrace process_vm_readv
# process_vm_writev · mount unshare setns · bpf perf_event_open userfaultfd io_uring_setup · add_key request_key keyctl · mq_open
_SYSTEMS = {
    "x86_64": _System(
        0xC000003E,
        (57, 58, 56, 435, 41, 53, 29, 64, 68, 319, 447, 101, 310, 311, 165, 272, 308, 321, 298, 323, 425, 248, 249, 250, 240),
    ),
    "aarch64": _System(
        0xC00000B7,
        (220, 435, 198, 199, 194, 190, 186, 279, 447, 117, 270, 271, 40, 97, 268, 280, 241, 282, 425, 217, 218, 219, 180),
    ),
}  # fmt: skip


def _filter() -> bytes:
    """A program for seccomp: these calls fail with EPERM, those of another architecture kill, all others go on."""
    system = _SYSTEMS[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_RET|K
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000  # SECCOMP_RET_ALLOW, _ERRNO|EPERM, _KILL_PROCESS
    count = len(system.denied)
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, system.architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the number
        (at_least, count + 1, 0, 0x40000000),  # x32, whose numbers are others
        *((equal, count - place, 0, number) for place, number in enumerate(system.denied)),
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
