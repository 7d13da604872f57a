"""A dataset's own Python, run where it can read nothing of the host's, write nothing and reach nobody.

The boundary is bubblewrap's: new namespaces for users, processes, the network and the rest; a file system of the Python
installation and the system's libraries, read-only; an empty environment; no capabilities. A filter of system calls denies new
processes, threads, sockets and memory that limits do not count (RLIMIT_NPROC would not hold for root, whom containers run as).
Resource limits do the rest. Python alone is no boundary, nor are its audit hooks: without bubblewrap no code is run.

What stays visible: the files of /usr and of the Python installation. What is not limited: that a processor is busy until the
timeout.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wm_plugin.errors import UserError

_OUTPUT = 4096  # bytes that the code may write, in all; the verdict is a few
# Reads the job, sets limits that nothing inside can raise, and only then runs the code.
_RUNNER = """
import json, os, resource, sys
job = json.load(sys.stdin)
answer = os.dup(1)
sys.stdin = sys.stdout = sys.stderr = None  # print() does nothing then
os.close(0), os.close(1), os.close(2)
for name, most in job["limits"].items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
try:
    inside = {"__name__": "verifier"}
    exec(compile(job["code"], "<verifier>", "exec"), inside)
    found = inside["verify"](job["prediction"], job["target"], job["columns"])
    said = {"passed": bool(found)} if found in (True, False) else {"failure": "verify returned no bool"}
except BaseException as error:
    said = {"failure": (type(error).__name__ + ": " + str(error))[:200]}
os.write(answer, json.dumps(said).encode())
"""


class Verdict(NamedTuple):
    """What a verifier decided. `passed` is None where it did not, and `failure` says why in one line."""

    passed: bool | None
    failure: str = ""


@dataclass(frozen=True)
class Sandbox:
    """Runs verifiers: code that defines `verify(prediction: str, target: str, columns: dict) -> bool`.

    A process each: about 50 ms. Its Python has the standard library and nothing else.

    Args:
        timeout: seconds, start included; after that everything in it is killed.
        memory: MB of address space.
    """

    timeout: float = 5.0
    memory: int = 512

    def __post_init__(self) -> None:
        if self.timeout <= 0:
            raise UserError(f"sandbox: timeout is {self.timeout}; write seconds > 0")
        if self.memory < 64:
            raise UserError(f"sandbox: memory is {self.memory}; write 64 MB or more")

    def run(self, code: str, prediction: str, target: str, columns: Mapping[str, Any]) -> Verdict:
        """The verdict of a verifier. What goes wrong inside is a verdict too.

        Args:
            columns: JSON values; others arrive as their `str`.

        Raises:
            UserError: no sandbox can be made here; see `check`.
        """
        check()
        limits = {
            "AS": self.memory << 20,
            "CPU": int(self.timeout) + 1,
            "FSIZE": _OUTPUT,
            "NOFILE": 32,
            "CORE": 0,
        }
        job = {"code": code, "prediction": prediction, "target": target, "columns": dict(columns), "limits": limits}
        return self._start(json.dumps(job, default=str).encode())

    def _start(self, job: bytes) -> Verdict:
        # Files and not pipes: what is written is bounded by FSIZE, and nobody waits for a reader.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as denied:
            for file, content in ((given, job), (denied, _filter())):
                file.write(content)
                file.seek(0)
            process = subprocess.Popen(
                [*_command(), "--seccomp", str(denied.fileno()), *_python()],
                stdin=given,
                stdout=said,
                stderr=subprocess.DEVNULL,
                env={},
                pass_fds=[denied.fileno()],
                start_new_session=True,
            )
            try:
                process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                return Verdict(None, f"no verdict within {self.timeout:g} s")
            finally:
                # bubblewrap's own processes; when they go, the kernel kills whatever runs in the namespace.
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(0)
            return _read(said.read(_OUTPUT), process.returncode)


def _read(said: bytes, code: int) -> Verdict:
    try:
        value = json.loads(said)
        passed, failure = value.get("passed"), value.get("failure", "")
    except (ValueError, AttributeError):
        return Verdict(None, f"ended without a verdict (exit code {code})")
    return Verdict(passed, "") if isinstance(passed, bool) else Verdict(None, " ".join(str(failure).split())[:200])


_checked: dict[str, str] = {}  # what stands in the way, by this process
_lock = threading.Lock()


def check() -> None:
    """Nothing, if verifiers can run here.

    Raises:
        UserError: bubblewrap is not installed or may not make namespaces here, or the machine is of another kind.
    """
    with _lock:
        if "problem" not in _checked:
            _checked["problem"] = _problem()
    if _checked["problem"]:
        raise UserError(f"code verifiers run in bubblewrap's sandbox only, and {_checked['problem']}")


def _problem() -> str:
    if not sys.platform.startswith("linux") or platform.machine() not in _SYSTEMS:
        return f"that is for Linux on {' or '.join(_SYSTEMS)}; this is {sys.platform} on {platform.machine()}"
    if not shutil.which("bwrap"):
        return "bwrap is not installed: install the system package bubblewrap"
    tried = subprocess.run([*_command(), *_python("pass")], env={}, capture_output=True, text=True, timeout=60)
    if tried.returncode:
        return f"it does not work here: {' '.join(tried.stderr.split())[:200] or f'exit code {tried.returncode}'}"
    return ""


def _command() -> list[str]:
    """bubblewrap, with what the sandbox sees. No /proc, no /dev, no /etc, no home, and no place to write."""
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
    if not Path(home).is_relative_to("/usr"):
        command += ["--ro-bind", home, home]
    return [*command, "--dir", "/empty", "--remount-ro", "/", "--chdir", "/empty"]


def _python(code: str = _RUNNER) -> list[str]:
    """Isolated, without site-packages and without writing byte code."""
    return [
        "--",
        os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
        "-I",
        "-S",
        "-B",
        "-X",
        "utf8",
        "-c",
        code,
    ]


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
