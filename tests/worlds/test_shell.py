"""The shell in its sandbox: what persists, what is stopped, what cannot get out, and what is left behind."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.shell import needs_shell, running
from wm_plugin.errors import UserError
from wm_plugin.runtime import sandbox
from wm_plugin.worlds.kit.shell import HOME, MAX_COMMAND, Entry, Limits, LostError, Shell, check

pytestmark = [pytest.mark.system, needs_shell]
QUICK = Limits(seconds=0.3)
# little memory, which is filled in a second, and much time for a machine that does other things, too. Bash replaces a subshell
# by its last command, which frees the memory: `sleep` must not be last
LIMITS_OF = {"time": QUICK, "memory": Limits(memory=1 << 28, seconds=60)}
FILES = {
    "a.txt": "one\n",
    "d/run.sh": Entry("file", 0o755, b"#!/bin/sh\necho ran\n"),
    "to": Entry("link", 0o777, b"a.txt"),
}


def test_state_persists_and_both_streams_come_in_order():
    with Shell(FILES) as shell:
        assert shell.run("x=5; f() { echo f $x; }; cd d; echo out; echo err >&2; (exit 7)")[:2] == ("out\nerr\n", 7)
        assert shell.run("f; pwd; ./run.sh; exec 3>log")[:2] == (f"f 5\n{HOME}/d\nran\n", 0)
        assert shell.run("echo logged >&3; cat log; alias hi='echo hello'").output == "logged\n"
        assert shell.run("echo 'two\nlines' \"$'\\\\\" '\x01é'").output == "two\nlines $'\\ \x01é\n"
        assert shell.run("hi").output == "hello\n"
        assert [shell.run("false").code, shell.run("echo $?; (exit 9)").code, shell.run("echo $?").output] == [
            1,
            9,
            "9\n",
        ]
        assert shell.run("ls -l ..").output.splitlines()[1:] == [
            "-rw-r--r-- 1 user user  4 Jan 15 09:30 a.txt",
            "drwxr-xr-x 2 user user 80 Jan 15 09:30 d",
            "lrwxrwxrwx 1 user user  5 Jan 15 09:30 to -> a.txt",
        ]
        fixed = "date; id -un; hostname; echo $RANDOM; git init -q r; cd r; git commit -q --allow-empty -m m; git log --oneline"
        assert shell.run(fixed).output == "Wed Jan 15 09:30:00 UTC 2025\nuser\nbox\n16807\n9d5d3b6 m\n"
        assert shell.run("bash -c 'echo a; kill -9 $$'")[:2] == ("a\n", 137)  # nothing of a terminal


def test_what_is_open_or_waits_ends_with_its_command():
    with Shell(FILES) as shell:
        for command, said, code in (
            ("echo 'open", "unexpected EOF", 2),
            ("cat <<END\nline", "here-document at line 1 delimited by end-of-file", 2),
            ("cat <<END\nline\nEND", "line\n", 0),
            ("(", "unexpected end of file", 2),
            ("if true", "unexpected end of file", 2),
            ("echo a; }", "syntax error", 2),
            ("nothing_there", "bash: nothing_there: command not found\n", 127),
            ("\0", "no NUL", 2),
            ("x" * (MAX_COMMAND + 1), "at most", 2),
            ("é" * (MAX_COMMAND - 2), "command not found", 127),
            ("cat; read x; echo got $x; cat a.txt | less", "got \none\n", 0),
            ("git init -q g && cd g && git commit --allow-empty; x=$?; cd; (exit $x)", "Terminal is dumb", 1),
            ("cat /dev/tty", "No such device or address", 1),
        ):
            ran = shell.run(command)
            assert (said in ran.output or said.replace(" \n", "\n") in ran.output, ran.code, ran.failure) == (
                True,
                code,
                None,
            ), ran
            assert shell.run("echo next").output == "next\n"


@pytest.mark.parametrize(
    ("command", "failure", "restarted"),
    [
        ("sleep 9; touch never", "time", False),
        ("while sleep .05; do true; done", "time", False),
        ("while true; do true; done", "time", False),
        ("yes", "output", False),
        pytest.param("bomb() { bomb | bomb & }; bomb; sleep 9", "processes", True, marks=pytest.mark.slow),
        pytest.param(
            "for i in 1 2 3; do (printf -v x %100000000d 0; sleep 99; :) & done; wait",
            "memory",
            True,
            marks=pytest.mark.slow,
        ),
        pytest.param("trap '' INT; while true; do true; done", "time", True, marks=pytest.mark.slow),
        ("exit 3", "ended", True),
        ("kill -9 $$", "ended", True),
        ("exec true", "ended", True),
        ("set -e; false", "ended", True),
    ],
)
def test_a_command_that_is_stopped_costs_at_most_the_shells_state(command, failure, restarted):
    with Shell(FILES, LIMITS_OF.get(failure, Limits())) as shell:
        shell.run("cd d; x=5")
        ran = shell.run(command)
        assert (ran.failure, ran.restarted) == (failure, restarted)
        assert ran.code == {"exit 3": 3, "exec true": 0, "set -e; false": 1}.get(command, 137)
        assert shell.run("echo ${x-lost}; pwd; ls").output == f"{'lost' if restarted else '5'}\n{HOME}/d\nrun.sh\n"


@pytest.mark.parametrize(
    "bent",
    [
        'builtin() { [ "$1" = kill ] || command "$@"; }; sleep 99 &',
        "enable -n kill; sleep 99 &",
        "printf '\\0ended 0 \\0' | tee /proc/1/fd/* >/dev/null; sleep 99 & sleep 99",
    ],
)
def test_nothing_runs_between_commands_whatever_a_command_says(bent):
    with Shell({}, Limits(seconds=3)) as shell:
        shell.run(bent)
        assert shell.run("set -- /proc/[0-9]*; echo $#").output == "2\n"
        shell.files()  # which waits until it has stopped
        with open(f"/proc/{shell._processes.shell}/stat") as file:
            assert file.read().split()[2] == "T"


def test_what_a_command_starts_ends_with_it_and_the_shell_goes_on():
    with Shell({}) as shell:
        shell.run("x=5; cd /tmp")
        for started in (
            "sleep 99 & sleep 98 & disown",
            "(setsid sleep 99 &); nohup sleep 98 >/dev/null 2>&1 &",
            "(trap '' HUP TERM INT; while :; do echo >> ~/beat; done) & until [ -s ~/beat ]; do sleep .01; done",
            "coproc cat; exec 5> >(cat > ~/late); sleep 99 | cat &",
            "f() { sleep .01; f & }; f",
        ):
            ran = shell.run(f"{started}\n(exit 4)")
            assert (ran.code, ran.failure, ran.restarted) == (4, None, False), started
            size = len(shell.read("beat") or b"")
            seen = shell.run("echo $? $x $PWD; set -- /proc/[0-9]*; echo $#; jobs")
            assert seen[:3] == ("4 5 /tmp\n2\n", 0, None), started
            assert len(shell.read("beat") or b"") == size
        assert size > 0


def test_what_has_ended_is_gone_before_the_next_command():
    with Shell({}) as shell, ThreadPoolExecutor(1) as pool:
        first = shell._pipes.sandbox.inner
        os.kill(first, signal.SIGSTOP)  # process 1 asks late for the end of what it has inherited
        try:
            run = pool.submit(shell.run, "(sleep 99 &)")
            time.sleep(0.3)
            assert not run.done()
        finally:
            os.kill(first, signal.SIGCONT)
        assert run.result()[:3] == ("", 0, None)
        assert shell.run("set -- /proc/[0-9]*; echo $#").output == "2\n"


IN_ITS_PLACE = """
import ctypes, os
libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
event, every = (ctypes.c_int * 16)(0, 0, 18), (ctypes.c_long * 4)(0, 10**7, 0, 10**7)  # SIGCONT, each 10 ms
libc.timer_create(1, event, ctypes.byref(timer))
libc.timer_settime(timer, 0, every, None)
word, control = os.environ["WORD"].split()
with open(f"/proc/1/fd/{control}", "w") as file:
    file.write(f"{word} 0 /home/user\\0")
while True:
    with open("/home/user/beat", "a") as file:
        file.write(".")
"""


def test_a_program_in_the_shells_place_stands_still_and_process_1_is_out_of_reach():
    with Shell({"fake.py": IN_ITS_PLACE}, Limits(seconds=2)) as shell:
        written = shell.run(
            'python3 -c \'open("/proc/1/mem", "r+b")\'; echo 1 > /proc/1/oom_score_adj; prlimit --pid 1 -t1'
        )
        assert written.output.count("Read-only file system") == 2
        assert "Operation not permitted" in written.output
        control = shell._pipes.inner_control
        answers = f'[ "$1" != printf ] || WORD="${{2%% *}} {control}" exec python3 fake.py'
        assert shell.run(f'builtin() {{ {answers}; command "$@"; }}').failure is None
        size = len(shell.read("beat") or b"")
        time.sleep(0.2)
        assert len(shell.read("beat") or b"") == size
        assert shell.run("true").failure == "time"
        assert size < len(shell.read("beat"))
        assert shell.run("echo next").output == "next\n"


SOCKETS = """
import os, socket, time
for _ in range(50):
    if not os.fork():
        break
kept = []
while True:
    try:
        kept.append(socket.socketpair())
        kept[-1][0].setblocking(False)
        while True:
            kept[-1][0].send(bytes(1 << 16))
    except BlockingIOError:
        pass
    except OSError:
        time.sleep(9)
"""


@pytest.mark.slow
def test_memory_in_sockets_is_counted_and_event_loops_work():
    with Shell({"sockets.py": SOCKETS}) as shell:
        assert shell.run("python3 sockets.py").failure == "memory"
        looped = (
            "import asyncio, socket; asyncio.run(asyncio.sleep(0.05)); socket.socketpair()[0].setsockopt(1, 7, 1 << 20)"
        )
        assert "PermissionError" in shell.run(f"python3 -c '{looped}'").output


# Pages of these count as no process's: of a shared mapping, of which a page stays mapped, and of a pipe.
HIDDEN = """
import ctypes, mmap, os
files = [open(name, "r+b") for name in ("/dev/zero", "small")]
for file in (-1, *(file.fileno() for file in files)):
    try:
        mmap.mmap(file, 4096)
    except PermissionError:
        print("denied")
libc, pipe = ctypes.CDLL(None, use_errno=True), os.pipe()
page = ctypes.create_string_buffer(4096)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(page), 4096)
print(libc.vmsplice(pipe[1], vector, 1, 0), os.strerror(ctypes.get_errno()))
print(len(mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)))
"""


def test_memory_that_no_process_has_cannot_be_made():
    with Shell({"hidden.py": HIDDEN}) as shell:
        said = shell.run("truncate -s 4096 small; python3 hidden.py").output
        assert said == "denied\n" * 3 + "-1 Operation not permitted\n4096\n"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("nobody", [True, False])
def test_a_fork_bomb_is_stopped_without_setpriv_and_where_root_must_stay_root(nobody, monkeypatch):
    monkeypatch.setattr(sandbox, "_SETPRIV", "/nonexistent")
    sandbox.unprivileged.cache_clear()
    if not nobody:
        monkeypatch.setattr(sandbox, "unprivileged", lambda: None)
    try:
        with Shell({}) as shell:
            with open(f"/proc/{shell._processes.shell}/status") as file:
                assert f"Uid:\t{sandbox.NOBODY if nobody else 0}\t" in file.read()
            with open(f"/proc/{shell._processes.shell}/limits") as file:
                most = next(line.split()[2] for line in file if line.startswith("Max processes"))
            assert not nobody or most == str(shell.limits.processes + 16)  # even if the host stops the bomb first
            ran = shell.run("python3 -c 'import os\nwhile True: os.fork()'")
            assert ran.failure == "processes"
            assert nobody or "Resource temporarily unavailable" not in ran.output  # root has no such limit
            assert shell.run("set -- /proc/[0-9]*; echo $#; nice").output == "2\n0\n"
    finally:
        sandbox.unprivileged.cache_clear() if nobody else None


SMALL = """
import fcntl, glob
for name in glob.glob("/proc/1/fd/*"):
    try:
        fcntl.fcntl(open(name, "wb"), fcntl.F_SETPIPE_SZ, 4096)
    except OSError:
        pass
"""


def test_a_pipe_that_a_command_makes_small_or_fills_holds_up_nobody():
    with Shell({"small.py": SMALL}, Limits(seconds=3)) as shell:
        end = threading.Timer(60, shell._pipes.sandbox.signal, [signal.SIGKILL])  # of a write that waits
        end.daemon = True
        end.start()
        long = f"echo {'x' * 9000} | wc -c"
        shell.run("python3 small.py")
        assert shell.run(long)[:3] == ("9001\n", 0, None)
        shell.run("for n in /proc/1/fd/*; do head -c 70000 /dev/zero > $n & done; sleep 0.2")
        assert "9001\n" in (shell.run(long).output, shell.run(long).output)
        end.cancel()


def test_a_shell_that_goes_on_after_its_answer_costs_no_more_than_a_command():
    with Shell({}, QUICK) as shell:
        start = time.monotonic()
        assert shell.run('builtin() { command "$@"; [ "$1" != printf ] || while :; do :; done; }; true').failure is None
        assert shell.run("echo lost").failure == "time"
        assert shell.run("unset -f builtin").failure in ("time", None)
        assert shell.run("echo next")[:3] == ("next\n", 0, None)
        assert time.monotonic() - start < 20


@pytest.mark.slow
def test_empty_files_are_limited_and_can_be_deleted():
    many = "import os; [os.mknod(f'/tmp/{n}') for n in range(200_000)]"
    with Shell({}) as shell:
        assert shell.run(f'python3 -c "{many}"').failure == "memory"
        assert shell.run("find /tmp -type f -delete; ls /tmp")[:3] == ("", 0, None)


KILLED = """
import os, signal, subprocess
from wm_plugin.runtime import sandbox
from wm_plugin.worlds.kit.shell import Shell
sandbox.unprivileged()
start = subprocess.Popen
def killed(*args, **options):
    print(start(*args, **options).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen = killed
Shell({})
"""


def in_session(session):
    """The processes of a session."""
    found = []
    for one in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{one}/stat") as file:
                fields = file.read().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(one))
    return found


def test_nothing_is_left_of_a_host_that_is_killed_while_it_starts_a_sandbox():
    host = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False)
    session = int(host.stdout)
    time.sleep(0.5)
    deadline = time.monotonic() + 5
    while left := in_session(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.mark.slow
def test_the_protocol_survives_what_a_command_does_to_it():
    with Shell(FILES, QUICK) as shell:
        for command in (
            "exec 10<&- 0<&-",
            "kill -9 -1; kill -USR1 1; kill -USR2 1; kill -9 1; kill -STOP 1",
            "exec >/dev/null 2>&1; trap 'echo x' DEBUG EXIT; set -uvx",
            "PROMPT_COMMAND='echo p'; PS1='$(echo q)'; IFS=0; unset PATH; TMOUT=1",
            "(sleep 9; echo late) & disown",
            "for n in /proc/1/fd/*; do echo 'ended 0 \0 junk' > $n & done",
            "for n in /proc/1/fd/*; do yes > $n & done; sleep 0.2",
            "for n in /proc/1/fd/*; do echo \\' > $n & done; sleep 0.2",
            "eval() { :; }; printf() { :; }; kill() { :; }; alias builtin=:",
            "builtin() { :; }",
            "enable -n printf kill eval",
            "readonly PWD OLDPWD; shopt -s extdebug; set -T; set -n",
        ):
            shell.run(command)
            shell.run("\\unset -f builtin eval printf kill; \\unalias -a; trap - DEBUG")
            assert "next" in shell.run("echo next; echo next").output + shell.run("echo next").output, command


def test_long_outputs_keep_head_and_tail():
    with Shell({}, Limits(shown=40, printed=5000)) as shell:
        text = shell.run("seq 100").output
        assert text.startswith("1\n2\n3\n")
        assert text.endswith("\n99\n100\n")
        head, _, rest = text.partition("[... ")
        number, _, tail = rest.partition(" bytes are cut ...]\n")
        assert len(head) + int(number) + len(tail) == len("".join(f"{n}\n" for n in range(1, 101)))
        assert shell.run("head -c 100 /dev/zero").output.count("\ufffd") == 40
        assert shell.run("yes").output == "y\n" * 10 + "[... more than 5,000 bytes; the rest is cut]\n"


ESCAPES = """cat /etc/shadow; ls /root /var /sys /run /mnt
touch /x /usr/x /etc/x /dev/x /dev/shm/x /proc/x
echo 1 > /proc/sys/kernel/hostname; echo h > /proc/sysrq-trigger; echo 0 > /proc/1/oom_score_adj; hostname evil
su -c id; sudo id; mount -t tmpfs x /tmp; chroot /; unshare -Ur id; unshare -p id; nsenter -t 1 -m id; chown root a.txt
python3 -c 'import socket; socket.socket()'; exec 4<>/dev/tcp/127.0.0.1/22; mknod n c 1 3
ls /proc | grep -c '^[0-9]'; cat /proc/1/environ | tr '\\0' '\\n' | grep -v =
find / -path '*wm_plugin/*' -type f 2>/dev/null
find / -perm -4000 -newer /proc/1 2>/dev/null; head -c 200M /dev/zero > big; head -c 70M /dev/zero > /tmp/big"""


@pytest.mark.slow
def test_nothing_gets_out(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("host")
    monkeypatch.setenv("WM_SECRET", "host-secret")
    before = os.uname().nodename
    with Shell(FILES) as shell:
        text = shell.run(f"cat {secret}; env").output
        assert "No such file" in text
        assert "host-secret" not in text
        said = [shell.run(line).output for line in ESCAPES.splitlines()]
        assert said[0].count("No such file") == 6
        assert said[1].count("cannot touch") == len(said[1].splitlines()) == 6
        assert "uid=0" not in said[3]
        assert "changed" not in said[3]
        assert said[4].count("Operation not permitted") >= 2
        assert int(said[5].split()[0]) <= 6
        assert said[6] == "", "this package's files"
        assert "No space left on device" in said[7]
        assert os.uname().nodename == before
        assert shell.run("rm -f big /tmp/big; echo goes on").output == "goes on\n"


def test_the_host_follows_no_link(tmp_path):
    (tmp_path / "secret").write_text("host")
    with Shell(FILES) as shell:
        shell.run(
            f"ln -s {tmp_path}/secret s; ln -s / root; ln -s {tmp_path} t; mkfifo p; truncate -s 60M sparse; ln a.txt hard"
        )
        shell.run("p=x; for i in $(seq 60); do mkdir $p && cd $p; done; cd; printf '\\xff' > $'na\\xffme'; chmod 000 d")
        assert [shell.read(path) for path in ("s", "to", f"root{tmp_path}/secret", "p", "t/secret", "none", "d")] == [
            None
        ] * 7
        assert shell.read("a.txt") == b"one\n"
        for path in ("s", "t/new", "root/tmp/new", "p", "../new", "/etc/new", "a.txt/x", "a\0b", "/proc/1/mem"):
            with pytest.raises(UserError, match="no path in|cannot be written"):
                shell.write(path, "x")
        shell.write("deep/er/new.sh", Entry("file", 0o700, b"echo new\n"))
        assert shell.run("deep/er/new.sh; stat -c '%a %Y' deep/er/new.sh").output == "new\n700 1736933400\n"
        files = shell.files()
        assert files["s"] == Entry("link", 0o777, f"{tmp_path}/secret".encode())
        assert files["hard"].content == b"one\n"
        assert not {"p", "root/tmp"} & {*files}
        assert files["na\udcffme"].content == b"\xff"
        assert list(tmp_path.iterdir()) == [tmp_path / "secret"]
        with Shell({path: entry for path, entry in files.items() if "\udcff" not in path}) as again:
            assert {path: one.content for path, one in again.files().items()}.items() <= {
                path: one.content for path, one in files.items()
            }.items()


def test_a_shell_outlives_the_thread_that_opened_it_and_a_lost_one_says_so():
    opened = []
    thread = threading.Thread(target=lambda: opened.append(Shell({})))
    thread.start()
    thread.join()
    time.sleep(0.1)
    (shell,) = opened
    assert shell.run("echo here").output == "here\n"
    os.kill(shell._pipes.sandbox.inner, signal.SIGKILL)
    while running(shell._pipes.sandbox.inner):
        time.sleep(0.01)
    with pytest.raises(LostError):
        shell.run("true")
    shell.close()
    shell.close()
    assert shell._pipes.sandbox.process.returncode is not None
    with pytest.raises(UserError, match="the shell needs nothing-such: install the system packages"):
        check("bash", "nothing-such")


LEFT = """
import os, sys
from wm_plugin.worlds.kit.shell import Shell
shells = [Shell({}) for _ in range(3)]
print(*(shell._pipes.sandbox.inner for shell in shells), flush=True)
if sys.argv[1] == "busy":
    shells[0].run("(setsid sleep 999 &) ; trap '' TERM HUP INT; sleep 999")
elif sys.argv[1] == "wait":
    sys.stdin.read()
"""


@pytest.mark.parametrize(("how", "sent"), [("busy", signal.SIGKILL), ("wait", signal.SIGTERM), ("exit", None)])
def test_nothing_is_left_when_the_host_ends(how, sent):
    host = subprocess.Popen([sys.executable, "-c", LEFT, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    inner = [int(number) for number in host.stdout.readline().split()]
    assert len(inner) == 3
    if sent is not None:
        time.sleep(0.2)
        host.send_signal(sent)
    host.wait(20)
    deadline = time.monotonic() + 10
    while left := [number for number in inner if running(number)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


WORDS = (
    *(
        "ls",
        "cat",
        "echo",
        "cd",
        "exit",
        "exec",
        "kill",
        "$$",
        "-9",
        "-1",
        "sleep",
        "&",
        "|",
        "||",
        "&&",
        ";",
        "(",
        ")",
        "{",
        "}",
    ),
    *(
        "'",
        '"',
        "`",
        "$(",
        "${",
        "<<E",
        "<",
        ">",
        ">>",
        "2>&1",
        "*",
        "~",
        "\\",
        "\n",
        "!",
        "#",
        "if",
        "then",
        "fi",
        "while",
        "do",
    ),
    *(
        "done",
        "for",
        "x",
        "in",
        "case",
        "esac",
        "function",
        "f",
        "trap",
        "EXIT",
        "DEBUG",
        "set",
        "-e",
        "-x",
        "+x",
        "-u",
        "-n",
        "read",
    ),
    *(
        "eval",
        "source",
        "/dev/stdin",
        "unset",
        "PATH",
        "IFS=",
        "alias",
        "wait",
        "jobs",
        "fg",
        "bg",
        "ulimit",
        "-v",
        "0",
        "umask",
    ),
    *(
        "python3",
        "-c",
        "vi",
        "less",
        "git",
        "commit",
        "make",
        "bash",
        "-i",
        "yes",
        "head",
        "/dev/zero",
        "/proc/1/fd/4",
        "rm",
        "-rf",
    ),
    *(
        "[[",
        "]]",
        "((",
        "))",
        "test",
        "a.txt",
        "é",
        "\x01",
        "\x7f",
        "\ud800",
        "%s",
        "printf",
        "coproc",
        "time",
        "select",
        "until",
    ),
)


def fuzz(count, seed):
    """Run random commands; return how many had a failure. After each, the shell answers within its limits."""
    rng, failures, limits = random.Random(seed), 0, Limits(seconds=0.2, printed=1 << 16)
    with Shell(FILES, limits) as shell:
        for _ in range(count):
            if rng.random() < 0.3:
                command = "".join(chr(rng.randrange(1, 0x250)) for _ in range(rng.randint(1, 40)))
            else:
                command = rng.choice([" ", ""]).join(rng.choices(WORDS, k=rng.randint(1, 10)))
            started = time.monotonic()
            ran = shell.run(command)
            ran.output.encode()
            assert 0 <= ran.code < 256
            assert time.monotonic() - started < 30, command
            failures += ran.failure is not None
        assert shell.run("\\builtin cd /tmp").code in (0, 1, 127, 137)
    return failures


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.nightly)])
def test_random_commands_never_crash_or_hang_the_shell(count):
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(fuzz, [count // 4] * 4, range(4))) < count
