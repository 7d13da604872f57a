"""Runs a program without access to the host's files, without a place to write, and without a network.

The boundary is bubblewrap: new namespaces for users, processes, the network and the rest; a read-only file system of the system's
libraries, and of the Python installation if the program is Python; an empty environment; no capabilities. A filter of system
calls denies new processes, threads, sockets and memory that resource limits do not count (RLIMIT_NPROC does not hold for root,
the user of most containers). Resource limits are not set here: the program must set them itself before it runs foreign code.
`start` keeps a sandbox open for a program that may start others; `worlds.kit.shell` limits and watches these.

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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from wm_plugin.errors import UserError

NOBODY = 65534
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
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        third = subprocess.STDOUT if errors else subprocess.DEVNULL
        deadline = time.monotonic() + timeout
        started = _launch(program, _CLOSED, files or {}, _filter(), stdin=source, stdout=output, stderr=third)
        try:
            left = deadline - time.monotonic()  # a start waits for bubblewrap
            if left <= 0:
                return Run(b"", None)
            started.process.wait(left)
        except subprocess.TimeoutExpired:
            return Run(b"", None)
        finally:
            started.end()
        output.seek(0)
        return Run(output.read(most), started.process.returncode)


class Started:
    """A sandbox that runs. `inner` is the host's number of its first process, with which all ends; 0 if it did not start."""

    def __init__(self, process: subprocess.Popen[bytes], info: bytes) -> None:
        self.process, self.inner = process, 0
        with suppress(ValueError, KeyError):
            self.inner = int(json.loads(info)["child-pid"])

    def signal(self, number: int) -> None:
        """Send a signal to the sandbox's first process."""
        if self.process.poll() is None and self.inner:
            with suppress(OSError):  # it has just ended
                os.kill(self.inner, number)

    def end(self) -> None:
        """Kill the sandbox's first process, with which the kernel kills all in it, and let bubblewrap reap it and end.

        If both were killed, the first process would stay as a zombie where the host's process 1 reaps nothing, as in many
        containers.
        """
        self.signal(signal.SIGKILL)
        try:
            self.process.wait(_GOODBYE)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def start(
    program: Sequence[str], options: Sequence[str], files: Mapping[str, bytes], pass_fds: Sequence[int]
) -> Started:
    """Start a program that may start others, and return. It lives until `end`, and no longer than the thread that calls this.

    Args:
        options: further ones of bubblewrap.
        files: read-only files, contents by path.
        pass_fds: descriptors that the program has under the same numbers.

    Raises:
        OSError: no process can be started.
    """
    become = unprivileged() or _ITSELF
    return _launch(program, [*options, "--remount-ro", "/"], files, _filter(forks=True), pass_fds, become)


class Become(NamedTuple):
    """How another user starts a program: by a program that changes users, or by `Popen` itself."""

    command: tuple[str, ...] = ()
    user: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of `Popen`."""
        return {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": ()}


_ITSELF, _SETPRIV = Become(), "/usr/bin/setpriv"


@cache
def unprivileged() -> Become | None:
    """How a host that is root starts `start`'s sandboxes as nobody, if it can: RLIMIT_NPROC does not hold for root."""
    if os.geteuid() != 0:
        return None
    program = ["/bin/sh", "-c", ":"]
    for become in (
        Become((_SETPRIV, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")),
        Become(user=NOBODY),  # copies the host's page tables: slow
    ):
        with suppress(OSError, subprocess.SubprocessError):
            command = [*become.command, *_base(program), *_CLOSED, "--", *program]
            if not subprocess.run(command, env={}, capture_output=True, **become.options).returncode:
                return become
    return None


def _launch(
    program: Sequence[str],
    options: Sequence[str],
    files: Mapping[str, bytes],
    rules: bytes,
    pass_fds: Sequence[int] = (),
    become: Become = _ITSELF,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> Started:
    with ExitStack() as stack:

        def file(content: bytes) -> int:
            opened = stack.enter_context(tempfile.TemporaryFile())
            opened.write(content)
            opened.seek(0)
            return opened.fileno()

        mounts = {path: file(content) for path, content in files.items()}
        binds = [
            word for path, number in mounts.items() for word in ("--perms", "0555", "--ro-bind-data", str(number), path)
        ]
        denied = file(rules)
        reader, writer = os.pipe()
        stack.callback(os.close, reader)
        try:
            process = subprocess.Popen(
                [
                    *become.command,
                    *_base(program),
                    *binds,
                    *options,
                    "--seccomp",
                    str(denied),
                    "--info-fd",
                    str(writer),
                    "--",
                    *program,
                ],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={},
                # with `reader`, bubblewrap writes to a reader even if the host is killed: else it would end there, before its
                # child, which waits for it, would end with it
                pass_fds=[denied, writer, reader, *mounts.values(), *pass_fds],
                start_new_session=True,
                **become.options,
            )
        finally:
            os.close(writer)
        info = b""
        while b"}" not in info and (part := os.read(reader, 1 << 12)):  # a fork of the host may keep it open
            info += part
        return Started(process, info)


_checked: dict[tuple[str, ...], str] = {}  # why a program cannot run here, "" if it can; checked once per process
_lock = threading.Lock()


def check(what: str, program: Sequence[str], options: Sequence[str] = ()) -> None:
    """Check that sandboxes work here and that `program` succeeds in one; tried once per process.

    Args:
        what: the beginning of the message: "code verifiers run".
        program: the path and the arguments.
        options: of `start`.

    Raises:
        UserError: bubblewrap is not installed, may not create namespaces here, or does not support this platform.
    """
    with _lock:
        if (key := (*options, *program)) not in _checked:
            _checked[key] = _problem(program, options or _CLOSED)
    if _checked[key]:
        raise UserError(f"{what} in bubblewrap's sandbox only, and {_checked[key]}")


def _problem(program: Sequence[str], options: Sequence[str]) -> str:
    if not sys.platform.startswith("linux") or platform.machine() not in _SYSTEMS:
        return f"that is for Linux on {' or '.join(_SYSTEMS)}; this is {sys.platform} on {platform.machine()}"
    if not shutil.which("bwrap"):
        return "bwrap is not installed: install the system package bubblewrap"
    command = [*_base(program), *options, "--", *program]
    tried = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60)
    if tried.returncode:
        return f"it does not work here: {' '.join(tried.stderr.split())[:200] or f'exit code {tried.returncode}'}"
    return ""


_CLOSED = ("--dir", "/empty", "--remount-ro", "/", "--chdir", "/empty")  # no place to write


def _base(program: Sequence[str]) -> list[str]:
    """How every bubblewrap command begins. Inside there is no /proc, /dev, /etc or home."""
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
    return command


def _installed(folder: str) -> Iterator[Path]:
    """Copies of this package in the Pythons below a folder, of which this process may run another one."""
    name = Path(_PACKAGE).name
    for prefix in ("", "local/"):
        yield from Path(folder).glob(f"{prefix}lib*/python3*/*-packages/{name}")


class _System(NamedTuple):
    """Numbers of system calls of an architecture (AUDIT_ARCH_…)."""

    architecture: int
    clone: int
    forks: tuple[int, ...]  # beside clone and clone3
    others: tuple[int, ...]
    mmap: int
    timer_create: int
    fcntl: int
    prlimit: int
    setsockopt: int

    @property
    def denied(self) -> tuple[int, ...]:
        return (*self.forks, self.clone, _CLONE3, *self.others)


# fork vfork · socketpair · socket shmget semget msgget memfd_create memfd_secret · ptrace process_vm_readv process_vm_writev ·
# mount unshare setns · bpf perf_event_open userfaultfd io_uring_setup · add_key request_key keyctl · mq_open vmsplice
_SYSTEMS = {
    "x86_64": _System(
        0xC000003E, 56, (57, 58, 53),
        (41, 29, 64, 68, 319, 447, 101, 310, 311, 165, 272, 308, 321, 298, 323, 425, 248, 249, 250, 240, 278),
        9, 222, 72, 302, 54,
    ),
    "aarch64": _System(
        0xC00000B7, 220, (199,),
        (198, 194, 190, 186, 279, 447, 117, 270, 271, 40, 97, 268, 280, 241, 282, 425, 217, 218, 219, 180, 75),
        222, 107, 25, 261, 208,
    ),
}  # fmt: skip
_CLONE3, _NAMESPACES, _F_SETSIG, _SO_SNDBUF, _MAP_SHARED = 435, 0x7E020000, 10, 7, 1  # CLONE_NEW…


def _filter(forks: bool = False) -> bytes:
    """The seccomp program: denied calls fail with EPERM, calls of another architecture kill, all others pass.

    Memory is not mapped as shared: a page that is left of such a mapping keeps all of it, which counts as no process's.

    With `forks`, new processes and threads pass unless they ask for namespaces. clone3, whose flags no filter sees, does not
    exist then, and C libraries take clone. Nor do timers and files that send any signal exist, such as one that wakes a process
    which the host has stopped, and neither the limits of other processes nor the size of sockets can be changed.
    """
    system = _SYSTEMS[platform.machine()]
    load, equal, at_least, any_of, give = (
        0x20,
        0x15,
        0x35,
        0x45,
        0x06,
    )  # BPF_LD|W|ABS, BPF_JMP|{JEQ,JGE,JSET}|K, BPF_RET|K
    allow, refuse, absent, kill = (
        0x7FFF0000,
        0x00050001,
        0x00050026,
        0x80000000,
    )  # ALLOW, ERRNO|EPERM, ERRNO|ENOSYS, KILL_PROCESS
    denied = system.others if forks else system.denied
    rules = []
    # an argument, whose lower half is at 16, 24, ...; how many instructions are left out if the test holds, and if not
    arguments = [(system.mmap, 40, any_of, 0, 1, _MAP_SHARED)]
    if forks:
        for number in (_CLONE3, system.timer_create):
            rules += [(equal, 0, 1, number), (give, 0, 0, absent)]
        arguments += [
            (system.clone, 16, any_of, 0, 1, _NAMESPACES),
            (system.fcntl, 24, equal, 0, 1, _F_SETSIG),
            (system.prlimit, 16, equal, 1, 0, 0),  # of this process
            (system.setsockopt, 32, equal, 0, 1, _SO_SNDBUF),
        ]
    for number, place, test, holds, fails, value in arguments:
        rules += [(equal, 0, 4, number), (load, 0, 0, place), (test, holds, fails, value)]
        rules += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    count = len(denied) + len(rules)
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, system.architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the number
        (at_least, count + 1, 0, 0x40000000),  # x32 calls have other numbers
        *((equal, count - place, 0, number) for place, number in enumerate(denied)),
        *rules,
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
