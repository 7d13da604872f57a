"""The sandbox of a shell: its programs, limits, environment and pipes. `shell` says how they are used."""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from wm_plugin.runtime import sandbox
from wm_plugin.worlds.kit.shell_processes import Processes

HOME, CLOCK = "/home/user", 1736933400  # 2025-01-15 09:30:00 UTC
BASH, ROOTS = "/usr/bin/bash", (HOME, "/tmp")  # where the user can write

# A trap runs at once while `wait` waits. `kill -1` reaches all but process 1, and stopped processes start no others. A shell
# leaves its command if it is interrupted before the process that it waits for ends by an interrupt, too; the rest is killed.
_FIRST = r"""
for one in /proc/1/fd/*; do
  one=${one##*/}
  case $one in 0|1|2|255|INPUT|OUTPUT|CONTROL) ;; *) eval "exec $one<&-" ;; esac
done
pause() { read -r -t 0.02 <> <(:); }
others() {
  for one in /proc/[0-9]*; do one=${one#/proc/}; case " 1 $shell $* " in *" $one "*) ;; *) kill -KILL $one ;; esac; done
}
interrupt() {
  kill -STOP -1
  read -r children < /proc/$shell/task/$shell/children
  others $children
  kill -INT $shell; kill -CONT $shell; pause
  kill -INT $children; kill -CONT $children; pause
  kill -STOP -1; others; kill -CONT $shell
  printf '\0stopped 0 \0' >&CONTROL  # after what a stopped command wrote of its answer
}
trap interrupt USR1
trap 'kill -KILL -1' USR2
setarch -R true && still='setarch -R'  # addresses of programs are the same each time, where a container allows that
while :; do
  set -m  # else a process in the background ignores interrupts; but then `wait` returns when the shell is stopped, too
  $still BASH --noprofile --rcfile /etc/shellrc --noediting -i +H <&INPUT >/dev/null 2>&1 INPUT<&- OUTPUT>&- CONTROL>&- &
  shell=$!
  set +m
  while wait $shell; code=$?; kill -0 $shell; do :; done
  kill -KILL -1
  while read -r -t 0.01 -N 512 unread <&INPUT; end=$?; [ $end = 0 ]; do :; done
  [ $end != 1 ] || exit  # the end of a host that was killed before bubblewrap could know
  printf '\0ended %s \0' $code >&CONTROL
done 2>/dev/null
"""
_SHELLRC = r"""
PS1='\u@\h:\w\$ '
unset HISTFILE; set +o history; RANDOM=1
ulimit -c 0 -n 256 -v {memory} -f {disk} {processes}
"""
_DATE = f"""#!/bin/sh
for word do
  case $word in -d* | --d* | -r* | --r* | -f* | --f* | -s* | --s* | --h* | --v*) exec /usr/bin/date "$@" ;; esac
done
exec /usr/bin/date -d @{CLOCK} "$@"
"""
_VARIABLES = f"""
HOME={HOME} USER=user LOGNAME=user SHELL={BASH} PATH=/opt/bin:/usr/local/bin:/usr/bin:/bin
LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
TERM=dumb PAGER=cat GIT_PAGER=cat GIT_TERMINAL_PROMPT=0 GIT_CONFIG_NOSYSTEM=1
GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=init.defaultBranch GIT_CONFIG_VALUE_0=main
GIT_AUTHOR_NAME=user GIT_AUTHOR_EMAIL=user@box GIT_COMMITTER_NAME=user GIT_COMMITTER_EMAIL=user@box
"""
_WITH_SPACES = {
    "TIME_STYLE": "+Jan 15 09:30",
    "TAR_OPTIONS": r"--sort=name --mtime=2025-01-15\ 09:30:00",
    **dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"{CLOCK} +0000"),
}
_FIXED = {
    "/etc/passwd": b"root:x:0:0:root:/root:/usr/bin/bash\nuser:x:1000:1000:user:/home/user:/usr/bin/bash\n",
    "/etc/group": b"root:x:0:\nuser:x:1000:\n",
    "/opt/bin/date": _DATE.encode(),
}


@dataclass(frozen=True)
class Limits:
    """Limits of a shell.

    Attributes:
        seconds: of wall time for a command.
        printed: bytes that a command prints before it is stopped.
        shown: bytes of an output that are shown; of a longer one, half at its head and half at its tail.
        processes: at a time.
        memory: bytes, of each process and of all together.
        disk: bytes in the home, and as many in /tmp.
    """

    seconds: float = 10.0
    printed: int = 1 << 20
    shown: int = 4000
    processes: int = 64
    memory: int = 1 << 30
    disk: int = 64 << 20


LIMITS = Limits()


class Pipes(NamedTuple):
    """A sandbox, its processes, the host's ends of its pipes, and the numbers of the other ends in process 1."""

    sandbox: sandbox.Started
    processes: Processes
    input: int
    output: int
    control: int
    inner_output: int
    inner_control: int


def _counts_by_sandbox() -> bool:
    """Whether the kernel counts processes by user namespace, as since Linux 5.14, and not all of the user's."""
    first, second, *_ = (*platform.release().split("."), "0")
    return (int(first), int(second)) >= (5, 14) if first.isdecimal() and second.isdecimal() else False


@cache
def starter(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a fork has none
    """The thread that starts sandboxes: they end with the thread that started them, and so it must not end."""
    return ThreadPoolExecutor(1, "wm-shell")


def open_sandbox(limits: Limits) -> Pipes:
    """Start a sandbox; it raises OSError."""
    pipes = [os.pipe() for _ in range(3)]
    (inner_input, given), (output, inner_output), (control, inner_control) = pipes
    inner = (inner_input, inner_output, inner_control)
    if sandbox.unprivileged():
        for number in inner:  # the sandbox opens them by their names
            os.fchown(number, sandbox.NOBODY, sandbox.NOBODY)
    script = _FIRST.replace("BASH", BASH)
    for name, number in zip(("INPUT", "OUTPUT", "CONTROL"), inner, strict=True):
        script = script.replace(name, str(number))
    processes = f"-u {limits.processes + 16}" if _counts_by_sandbox() else ""
    rc = _SHELLRC.format(memory=limits.memory >> 10, disk=limits.disk >> 10, processes=processes)
    try:
        files = _FIXED | {"/etc/first": script.encode(), "/etc/shellrc": rc.encode()}
        started = sandbox.start([BASH, "/etc/first"], options_of(limits), files, inner)
    except OSError:
        for number in (given, output, control):
            os.close(number)
        raise
    finally:
        for number in inner:
            os.close(number)
    for number in (given, output, control):
        os.set_blocking(number, False)
    return Pipes(started, Processes(started.inner), given, output, control, inner_output, inner_control)


def options_of(limits: Limits) -> list[str]:
    """Options of bubblewrap."""
    options = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--hostname", "box"]
    options += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]  # /dev/shm would have no limit
    options += ["--remount-ro", "/proc"]  # else the memory of process 1 can be written, which does not stand still
    for folder in (
        "acpi",
        "asound",
        "driver",
        "fs",
        "scsi",
    ):  # of the machine; bubblewrap makes sys, irq and bus read-only
        if os.path.isdir(f"/proc/{folder}"):
            options += ["--tmpfs", f"/proc/{folder}", "--remount-ro", f"/proc/{folder}"]
    for folder in ROOTS:
        options += ["--size", str(limits.disk), "--tmpfs", folder]
    options += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives", "--chdir", HOME]
    variables = dict(one.split("=", 1) for one in _VARIABLES.split()) | _WITH_SPACES
    return options + [word for name, value in variables.items() for word in ("--setenv", name, value)]


def close_sandbox(pipes: Pipes, process: int) -> None:
    for number in (pipes.input, pipes.output, pipes.control):
        os.close(number)
    pipes.processes.close()
    if os.getpid() == process:
        pipes.sandbox.end()
