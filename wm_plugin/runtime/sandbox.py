"""Runs a program without access to the host's files, without a place to write, and without a network.

The boundary is bubblewrap: new namespaces for users, processes, the network and the rest; a read-only file system of the system's
libraries, and of the Python installation if the program is Python; an empty environment; no capabilities. A filter of system
calls denies new processes, threads, sockets and memory that resource limits do not count (RLIMIT_NPROC does not hold for root,
the user of most containers). Resource limits are not set here: the program must set them itself before it runs foreign code.

The program can read these files, including all of /usr but for this package, and can use one processor until the timeout.
"""

import json
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from wm_plugin.errors import UserError

_GOODBYE = 1.0  # seconds that bubblewrap has to end after its program
_PACKAGE = os.path.realpath(Path(__file__).parents[1])


class Run(NamedTuple):
    """A program's output and exit code: negative for a signal, None if it was killed at the timeout."""

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
    """Run a program once; nothing of it remains afterwards. `check` tells whether that works here.

    Args:
        program: the path and the arguments, as seen inside the sandbox.
        stdin: its standard input.
        files: read-only files, contents by path.
        timeout: seconds, including the start; then everything in the sandbox is killed.
        most: bytes of the output that are read. RLIMIT_FSIZE limits how much the program can write.
        errors: include standard error in the output.

    Raises:
        OSError: no process can be started.
    """
    # Files instead of pipes: FSIZE bounds the output, and no writer waits for a reader.
    with ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())

        def file(content: bytes) -> int:
            opened = stack.enter_context(tempfile.TemporaryFile())
            opened.write(content)
            opened.seek(0)
            return opened.fileno()

        mounts = [(path, file(content)) for path, content in (files or {}).items()]
        denied, source = file(_filter()), file(stdin)
        info = stack.enter_context(tempfile.TemporaryFile())
        process = subprocess.Popen(
            [*_command(program, mounts), "--seccomp", str(denied), "--info-fd", str(info.fileno()), "--", *program],
            stdin=source,
            stdout=output,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            env={},
            pass_fds=[denied, info.fileno(), *(number for _, number in mounts)],
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            return Run(b"", None)
        finally:
            if process.poll() is None:
                _kill(process, info)
        output.seek(0)
        return Run(output.read(most), process.returncode)


def _kill(process: subprocess.Popen[bytes], info: BinaryIO) -> None:
    """Kill the sandbox's first process, with which the kernel kills all in it, and let bubblewrap reap it and end.

    If both were killed, the first process would stay as a zombie where the host's process 1 reaps nothing, as in many containers.
    """
    info.seek(0)
    with suppress(ValueError, KeyError, OSError):  # it has not started yet, or has just ended
        os.kill(json.loads(info.read())["child-pid"], signal.SIGKILL)
    try:
        process.wait(_GOODBYE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_checked: dict[tuple[str, ...], str] = {}  # why a program cannot run here, "" if it can; checked once per process
_lock = threading.Lock()


def check(what: str, program: Sequence[str]) -> None:
    """Check that sandboxes work here and that `program` succeeds in one; tried once per process.

    Args:
        what: the beginning of the message: "code verifiers run".
        program: the path and the arguments.

    Raises:
        UserError: bubblewrap is not installed, may not create namespaces here, or does not support this platform.
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


def _command(program: Sequence[str], mounts: Sequence[tuple[str, int]] = ()) -> list[str]:
    """The bubblewrap command. Inside there is no /proc, /dev, /etc or home, and no place to write."""
    command = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-all",
        "--as-pid-1",  # else bubblewrap adds a process that it does not reap
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--clearenv",
    ]
    bounds = []
    for folder in ("/usr", "/lib", "/lib64", "/lib32", "/bin"):  # links into /usr, or folders of their own
        path = Path(folder)
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), folder]
        elif path.is_dir():
            command += ["--ro-bind", folder, folder]
            bounds.append(folder)
    home = os.path.realpath(sys.base_prefix)
    if Path(program[0]).is_relative_to(home) and not Path(home).is_relative_to("/usr"):
        command += ["--ro-bind", home, home]
        bounds.append(home)
    # Where the system's Python has this package, its files would tell hidden tests and their answers.
    for package in {_PACKAGE, *(os.path.realpath(path) for folder in bounds for path in _installed(folder))}:
        if any(Path(package).is_relative_to(folder) for folder in bounds):
            command += ["--tmpfs", package, "--remount-ro", package]
    for name, number in mounts:
        command += ["--ro-bind-data", str(number), name]
    return [*command, "--dir", "/empty", "--remount-ro", "/", "--chdir", "/empty"]


def _installed(folder: str) -> Iterator[Path]:
    """Copies of this package in the Pythons below a folder, of which this process may run another one."""
    name = Path(_PACKAGE).name
    for prefix in ("", "local/"):
        yield from Path(folder).glob(f"{prefix}lib*/python3*/*-packages/{name}")


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
    """The seccomp program: denied calls fail with EPERM, calls of another architecture kill, all others pass."""
    system = _SYSTEMS[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_RET|K
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000  # SECCOMP_RET_ALLOW, _ERRNO|EPERM, _KILL_PROCESS
    count = len(system.denied)
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, system.architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the number
        (at_least, count + 1, 0, 0x40000000),  # x32 calls have other numbers
        *((equal, count - place, 0, number) for place, number in enumerate(system.denied)),
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
