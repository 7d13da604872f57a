"""A persistent bash in the sandbox of `runtime.sandbox`: a user's home with files, commands one after another, the final files.

Two shells run inside. Process 1 is ours: it starts the user's shell again when that ends, and on a signal of the host it kills
what runs. The other one is an interactive bash without a terminal, so that an interrupt ends a command and keeps the shell's
state. It reads one line a command; the command is in it as a quoted text for `eval`, and so nothing in it, such as an open quote,
reaches beyond it. Its standard input is empty, its outputs are one pipe; a second pipe says that it ended, with a word that only
the host and this line know. The host reads and writes files itself, through /proc, and follows no link.

What a command starts ends with it, in the background too, and the shell stands still until the next one: a command can bend it
so that it says that it has ended and goes on, and nobody watches it then. A command that takes too long or prints too much is
stopped, and the shell goes on if an interrupt ends it. Else, or with too many processes or too much memory, a new shell is
started, which has the files and the folder, but no variables, functions and options. The host counts processes, too, as
RLIMIT_NPROC does not hold for root.

The same commands print the same texts: language, time zone and user are fixed, `ls` sorts by bytes and shows one date, `date`
stands still at `CLOCK`, and git, tar and $RANDOM have fixed dates and seeds. What still shows the real clock or chance: `stat`,
`find -printf`, `ls --full-time`, `ps`, `date -d yesterday`, programs that ask the system for the time, mktemp, /dev/urandom,
processes that run at once, and how far a command came before it was stopped.
"""

import os
import select
import signal
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from typing import NamedTuple, Self

from wm_plugin.errors import UserError, shown
from wm_plugin.runtime import sandbox
from wm_plugin.worlds.kit.shell_box import BASH, LIMITS, ROOTS, close_sandbox, open_sandbox, options_of, starter
from wm_plugin.worlds.kit.shell_box import CLOCK as CLOCK
from wm_plugin.worlds.kit.shell_box import HOME as HOME
from wm_plugin.worlds.kit.shell_box import Limits as Limits
from wm_plugin.worlds.kit.shell_files import Entry as Entry
from wm_plugin.worlds.kit.shell_files import as_owner, entry_of, open_folder, parts_of, read_file, write_entry

MAX_COMMAND = 10_000  # characters; a line of them fits into a pipe
# seconds: between looks at processes; for a shell that is interrupted; for a start
_POLL, _GRACE, _LONG = 0.02, 1.0, 30.0
_MOST_FILES, _DEEPEST = 10_000, 32  # of a home that is read
_MOST_ENTRIES = 100_000  # files and folders, which take the kernel's memory even if they are empty


class LostError(RuntimeError):
    """The sandbox did not start or is gone, through no fault of a command."""


class Result(NamedTuple):
    """What a command printed on both outputs, in order; its exit code; and what went wrong.

    `failure` is None, or what stopped it ("time", "output", "processes", "memory"), or "ended": the shell ended. `restarted`: the
    next command has a new shell, with the files and the folder of the old one.
    """

    output: str
    code: int
    failure: str | None = None
    restarted: bool = False


@cache
def check(*programs: str) -> None:
    """Raise a UserError if the sandbox does not work here, or lacks one of these programs."""
    sandbox.check("The shell runs", [BASH, "-c", ":"], [*options_of(LIMITS), "--remount-ro", "/"])
    with Shell({}) as shell:
        ran = shell.run(f"for one in {' '.join(programs)}; do command -v $one >/dev/null || echo $one; done")
    if missing := ran.output.split():
        raise UserError(f"the shell needs {', '.join(missing)}: install the system packages of these names")


class Shell:
    """A bash with files of its own.

    Args:
        files: contents by path, in the home unless a path is absolute. An `Entry` has a mode, or is a folder or a link.

    Raises:
        LostError: the sandbox does not start; `check` says whether it can.
    """

    def __init__(self, files: Mapping[str, str | bytes | Entry], limits: Limits = LIMITS) -> None:
        self.limits, self._folder, self._code, self._is_new, self._is_settled = limits, HOME, 0, False, True
        try:
            self._pipes = starter(os.getpid()).submit(open_sandbox, limits).result()
            self._processes = self._pipes.processes
        except OSError as error:
            raise LostError(str(error)) from None
        self._end = weakref.finalize(self, close_sandbox, self._pipes, os.getpid())
        self._root = f"/proc/{self._pipes.sandbox.inner}/root"
        self._messages = b""
        self._control, self._either, self._space = select.poll(), select.poll(), select.poll()
        self._space.register(self._pipes.input, select.POLLOUT)
        self._control.register(self._pipes.control, select.POLLIN)
        for number in (self._pipes.output, self._pipes.control):
            self._either.register(number, select.POLLIN)
        try:
            self._clear()
            # after that `_root` is the sandbox's
            if self._ask(":", _LONG, watch=False) is None or not self._processes.take():
                raise LostError("the sandbox does not start")
            # folders last and the deepest first, because their modes may forbid to write in them
            for path in sorted(files, key=lambda path: (_is_folder(files[path]), -path.count("/"))):
                self.write(path, files[path])
        except BaseException:
            self.close()
            raise

    def run(self, command: str) -> Result:
        """Run a command of one line or several. When this returns, it has ended, and so has all that it started.

        Raises:
            LostError: the sandbox is gone.
        """
        if "\0" in command or len(command) > MAX_COMMAND:
            return Result(f"bash: a command has at most {MAX_COMMAND} characters, and no NUL\n", 2)
        if "<<" in command:  # of an open here-document bash only warns
            checked = self._run(f"{BASH} -nc {_quoted(command)}")
            if "delimited by end-of-file" in checked.output:
                return Result(checked.output.replace("warning: ", "").replace(BASH, "bash"), 2)
        return self._run(command)

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a regular file; None if that path is none."""
        *folders, name = parts_of(path)
        self._settle()
        try:
            with open_folder(self._root, folders) as folder:
                return read_file(folder, name, self.limits.disk)
        except OSError:
            return None

    def write(self, path: str, content: str | bytes | Entry) -> None:
        """Write a file, folder or link, and the folders above it. Its date is `CLOCK`.

        Raises:
            UserError: it cannot be written: a link is on the way, the disk is full.
        """
        *folders, name = parts_of(path)
        self._settle()
        try:
            with as_owner(), open_folder(self._root, folders, make=True) as folder:
                write_entry(folder, name, content)
        except OSError as error:
            raise UserError(f"{shown(path)} cannot be written in the shell: {error.strerror}") from None

    def files(self, folder: str = HOME) -> dict[str, Entry]:
        """Return what a folder has, by paths relative to it, sorted.

        At most 10,000 entries, 32 folders deep; what the user made unreadable is missing unless the host is root.
        """
        top, found, left = parts_of(folder), dict[str, Entry](), 2 * self.limits.disk
        queue: list[tuple[str, ...]] = [()]
        self._settle()
        for above in queue:
            with suppress(OSError), open_folder(self._root, [*top, *above]) as number, os.scandir(number) as entries:
                for name in sorted(one.name for one in islice(entries, _MOST_FILES - len(found))):
                    with suppress(OSError):
                        entry = entry_of(number, name, left)
                        left -= len(entry.content)
                        found["/".join((*above, name))] = entry
                        if entry.kind == "folder" and len(above) < _DEEPEST:
                            queue.append((*above, name))
        return dict(sorted(found.items()))

    def close(self) -> None:
        """End the sandbox and all in it; nothing remains. Calling it again does nothing."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, command: str) -> Result:
        self._clear()
        if self._is_new:
            self._ask(f"cd -- {_quoted(self._folder)}", _GRACE)
            self._clear()
        self._is_new = False
        answer = self._ask(command, self.limits.seconds, code=self._code)
        if answer is None:
            failure: str | None = self._failure
            code, answer = 128 + signal.SIGKILL, self._interrupt(at_once=failure in ("processes", "memory"))
        else:
            failure, code = "ended" if answer[0] == "ended" else None, answer[1]
        if answer[0] == "ended":
            self._is_new = True
        else:
            self._folder = answer[2]
        self._stop(answer[0] == "ended")
        self._code = 0 if self._is_new else code
        return Result(self._shown(failure), code, failure, self._is_new)

    def _ask(self, command: str, seconds: float, watch: bool = True, code: int = 0) -> tuple[str, int, str] | None:
        """Run a command. Return its word, exit code and folder, or those of the shell's end; None if it is to be stopped."""
        word, pipes = os.urandom(8).hex(), self._pipes
        # the exit code of the command before, for `$?`; in a list with &&, where it neither ends a shell with -e nor runs a trap
        before = f"\\builtin . /dev/stdin <<< 'return {code}' 2>/dev/null && \\builtin :; " if code else ""
        line = (
            f"{before}\\builtin eval {_quoted(command)} </dev/null >/proc/1/fd/{pipes.inner_output} 2>&1; "
            f"""\\builtin printf '{word} %s %s\\0' "$?" "$PWD" >/proc/1/fd/{pipes.inner_control} 2>/dev/null\n"""
        )
        now = time.monotonic()
        self._failure, deadline, look, entries, outputs = "time", now + seconds, now + _POLL, -1, False
        self._give(line.encode(errors="replace"), deadline)
        while now < deadline:
            if self._listen(min(deadline - now, _POLL), outputs) and (found := self._take(word) or self._take("ended")):
                return found
            now = time.monotonic()
            if now >= look:
                outputs = self._drain() > _CHUNK // 2 or outputs
                if watch:
                    entries = self._entries() if entries < 0 else entries
                    if failure := self._excess(entries):
                        self._failure = failure
                        return None
                now = time.monotonic()
                look = now + _POLL
        return None

    def _give(self, line: bytes, deadline: float) -> None:
        """Let the shell go on and read a line, or as much as it reads in time: a command can fill its pipe, or make it small."""
        while True:
            try:
                line = line[os.write(self._pipes.input, line) :]
            except BlockingIOError:
                pass
            except OSError as error:
                raise LostError(str(error)) from None
            self._processes.send(signal.SIGCONT)
            if not line or not self._space.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return

    def _interrupt(self, at_once: bool) -> tuple[str, int, str]:
        """Stop all that runs, and return the answer of the shell, which goes on, or of its end.

        Args:
            at_once: end the shell, too, by one signal to all: what grows fast leaves no time to look.
        """
        if not at_once:
            self._pipes.sandbox.signal(signal.SIGUSR1)
            if self._wait("stopped", _LONG) and (answer := self._ask("\\builtin :", _GRACE, watch=False)):
                return answer
        first = self._pipes.sandbox.inner
        _set_priority(first, -20)
        self._pipes.sandbox.signal(signal.SIGUSR2)
        if (answer := self._wait("ended", _LONG)) is None:
            raise LostError("the sandbox does not answer")
        _set_priority(first, 0)
        return answer

    def _stop(self, ended: bool) -> None:
        """Stop the shell until the next command. What else runs is killed; if the shell goes on in spite of that or although it
        has ended as it says, all is."""
        processes = self._processes
        processes.send(signal.SIGSTOP)
        self._is_settled = False
        if not ended and processes.is_alone():
            return
        if not ended:
            answer = self._ask("\\builtin kill -KILL -1 2>/dev/null; \\builtin wait", _GRACE, watch=False)
            processes.send(signal.SIGSTOP)
            ended = answer is None or answer[0] == "ended"
        self._settle(ended)
        self._listen(0)

    def _settle(self, ended: bool = False) -> None:
        """Wait until the shell stands still: what it asked the kernel for, such as a long write, may not have been done yet."""
        deadline, lost = time.monotonic() + _GRACE, time.monotonic() + _LONG
        while not self._is_settled:
            if self._processes.take():
                _set_priority(self._processes.shell, 0)  # it may have process 1's
                self._is_new = self._is_settled = True
            elif not ended and self._processes.is_still():
                self._is_settled = True
            else:
                if time.monotonic() > deadline:
                    self._pipes.sandbox.signal(signal.SIGUSR2)
                    deadline += _GRACE
                if time.monotonic() > lost:
                    raise LostError("the sandbox does not answer")
                self._drain()
                time.sleep(0.0001)

    def _entries(self) -> int:
        """How many files and folders there are."""
        with _lost_if_broken():
            status = [os.statvfs(self._root + folder) for folder in ROOTS]
        return sum(one.f_files - one.f_ffree for one in status)

    def _wait(self, word: str, seconds: float) -> tuple[str, int, str] | None:
        deadline = time.monotonic() + seconds
        while (answer := self._take(word)) is None and (left := deadline - time.monotonic()) > 0:
            self._listen(min(left, _POLL))
        return answer

    def _listen(self, seconds: float, outputs: bool = True) -> bool:
        """Wait for messages, and for outputs too if so asked; take both, and return whether a message has come."""
        if not (self._either if outputs else self._control).poll(seconds * 1000):
            return False
        came = self._read(self._pipes.control)
        self._messages = (self._messages + came)[-_CHUNK:]
        self._drain()  # after the messages: what a command printed is there when its end is
        return bool(came)

    def _drain(self) -> int:
        """Take what is there of the outputs, and return how many bytes."""
        before = self._printed
        while True:
            chunk = self._read(self._pipes.output)
            self._keep(chunk)
            # a command can make the pipe larger than a chunk
            if len(chunk) < _CHUNK or self._printed > 2 * self.limits.printed:
                return self._printed - before

    def _read(self, number: int) -> bytes:
        try:
            if chunk := os.read(number, _CHUNK):
                return chunk
        except BlockingIOError:
            return b""
        raise LostError("the sandbox has ended")

    def _take(self, word: str) -> tuple[str, int, str] | None:
        """Take the message that begins with a word, and those before it; leave others, which are older or not ours."""
        *whole, rest = self._messages.split(b"\0")
        for place, message in enumerate(whole):
            first, _, more = message.decode(errors="replace").partition(" ")
            code, _, folder = more.partition(" ")
            if first == word and code.isdecimal() and len(code) < 4:
                self._messages = b"\0".join([*whole[place + 1 :], rest])
                return first, int(code), folder
        return None

    def _clear(self) -> None:
        self._head, self._tail, self._printed, self._messages = bytearray(), bytearray(), 0, b""

    def _keep(self, chunk: bytes) -> None:
        half = self.limits.shown // 2
        self._printed += len(chunk)
        self._head += chunk[: max(0, 2 * half - len(self._head))]
        self._tail = (self._tail + chunk)[-half:]

    def _shown(self, failure: str | None) -> str:
        """The output, cut to head and tail. Of one that was too long, the tail is chance."""
        half = self.limits.shown // 2
        if self._printed <= 2 * half:
            return _text(self._head)
        head, tail = bytes(self._head[:half]), bytes(self._tail)
        head = head[: head.rfind(b"\n") + 1] or head
        if failure == "output":
            return f"{_text(head)}[... more than {self.limits.printed:,} bytes; the rest is cut]\n"
        tail = tail[tail.find(b"\n") + 1 :] or tail
        middle = f"[... {self._printed - len(head) - len(tail):,} bytes are cut ...]\n"
        return _text(head) + ("" if head.endswith(b"\n") else "\n") + middle + _text(tail)

    def _excess(self, before: int) -> str | None:
        """Return which limit a command exceeds, if any. Of `before` files and folders it may delete some."""
        if self._printed > self.limits.printed:
            return "output"
        if self._entries() > max(_MOST_ENTRIES, before):
            return "memory"
        return self._processes.excess(self.limits.processes, self.limits.memory) or None


_CHUNK = 1 << 16  # bytes, as many as a pipe holds
_ESCAPED = {number: f"\\x{number:02x}" for number in (*range(32), 127)} | {39: "\\'", 92: "\\\\"}
_NO_TERMINAL = "] tcsetattr: Inappropriate ioctl for device\n"


def _set_priority(process: int, nice: int) -> None:
    """Let process 1 run before what it is to kill, of which there may be thousands, where the host is root and so allows it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, nice)


def _is_folder(content: str | bytes | Entry) -> bool:
    return isinstance(content, Entry) and content.kind == "folder"


@contextmanager
def _lost_if_broken() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LostError(str(error)) from None


def _quoted(text: str) -> str:
    """Return a text as one word of bash, on one line."""
    return "$'" + text.translate(_ESCAPED) + "'"


def _text(data: bytes | bytearray) -> str:
    """Return an output as text, without what bash says of a terminal that it does not have."""
    *before, last = data.decode(errors="replace").replace("\0", "\ufffd").split(_NO_TERMINAL)
    return "".join(one[: one.rfind("bash: [")] if "bash: [" in one else one for one in before) + last
