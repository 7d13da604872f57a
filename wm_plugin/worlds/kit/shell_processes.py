"""The processes of a shell's sandbox, as the host sees them: process 1, the shell, and what that has started."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Processes:
    """What runs in a sandbox whose first process has this number on the host.

    Attributes:
        shell: the host's number of the shell; 0 before `take`.
    """

    def __init__(self, first: int) -> None:
        self.shell, self._first, self._root = 0, first, f"/proc/{first}/root/proc"
        self._open: list[int] = []  # descriptors, which mean no other process of the same number later

    def take(self) -> bool:
        """Take the shell that process 1 has started, if it is another than before, and return whether it is."""
        with suppress(OSError):
            with open(f"/proc/{self._first}/task/{self._first}/children", "rb") as file:
                children = [int(number) for number in file.read().split()]
            if len(children) == 1 and children != [self.shell]:
                (shell,) = children
                with open(f"/proc/{shell}/cmdline", "rb") as file:
                    if b"/etc/shellrc" not in file.read():  # it has lost its parent, and is ending
                        return False
                self.close()
                self._open.append(os.pidfd_open(shell))
                for path in (
                    f"{shell}/task",
                    f"{shell}/task/{shell}/children",
                    f"{self._first}/task/{self._first}/children",
                ):
                    self._open.append(os.open(f"/proc/{path}", os.O_RDONLY))
                self.shell = shell
                return True
        return False

    def send(self, number: int) -> None:
        """Send a signal to the shell, if it is there."""
        try:
            if self._open:
                signal.pidfd_send_signal(self._open[0], number)
        except ProcessLookupError:
            pass

    def is_alone(self) -> bool:
        """Whether nothing but process 1 and the shell is there, which has been sent a SIGSTOP and therefore starts nothing.

        First the shell's children are looked for: what loses its parent later is a child of process 1 from then on.
        """
        try:
            _, threads, of_shell, of_first = self._open
            # each thread would have children of its own, and the folder has a link for each
            return (
                os.fstat(threads).st_nlink == 3
                and not os.pread(of_shell, 1, 0)
                and os.pread(of_first, 1 << 10, 0) == f"{self.shell} ".encode()
            )
        except (OSError, ValueError):
            return False

    def is_still(self) -> bool:
        """Whether nothing but process 1 and the shell is there, and the shell is stopped; or process 1 is gone, and so all.

        A process that has ended is seen until its parent reaps it: process 1 does so soon, the shell only when it goes on.
        """
        states = []
        try:
            for number in self._others():
                with suppress(OSError), open(f"{self._root}/{number}/stat", "rb") as file:
                    state, parent, *_ = file.read().rpartition(b") ")[2].split()
                    if parent == b"1" or state not in b"ZX":
                        states.append(state)
        except OSError:
            return True
        return states == [b"T"]

    def excess(self, most: int, memory: int) -> str:
        """Return "processes" or "memory" if there is more than that (bytes), else ""."""
        pages = 0
        with suppress(OSError, ValueError), open(f"/proc/{self._first}/net/sockstat", "rb") as file:
            memory -= int(file.read().split()[2]) * _of_socket()  # "sockets: used 12"
        with suppress(OSError):
            for count, number in enumerate(self._others()):
                if count + 1 >= most:
                    return "processes"
                with suppress(OSError, ValueError), open(f"{self._root}/{number}/statm", "rb") as file:
                    pages += int(file.read().split()[1])
        return "memory" if memory < 0 or pages * _PAGE > memory else ""

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _others(self) -> Iterator[str]:
        """The sandbox's numbers of all but process 1."""
        with os.scandir(self._root) as entries:
            for name in (entry.name for entry in entries):
                if name.isdecimal() and name != "1":
                    yield name


@cache
def _of_socket() -> int:
    """The bytes that one end of a socketpair may hold. They are no process's."""
    try:
        with open("/proc/sys/net/core/wmem_default", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 212_992
