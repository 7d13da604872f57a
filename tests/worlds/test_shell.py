"""The shell in its sandbox: state, limits, what gets out, what is left behind."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from support.worlds import needs_shell
from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.shell import HOME, MAX_COMMAND, Entry, Limits, LostError, Shell, check

pytestmark = [pytest.mark.system, needs_shell]
QUICK = Limits(seconds=0.4)
FILES = {
    "a.txt": "one\n",
    "d/run.sh": Entry("file", 0o755, b"#!/bin/sh\necho ran\n"),
    "to": Entry("link", 0o777, b"a.txt"),
}


def test_state_persists_and_both_streams_come_in_order():
    with Shell(FILES) as shell:
        assert shell.run("x=5; f() { echo f $x; }; cd d; echo out; echo err >&2; (exit 7)") == ("out\nerr\n", 7)
        assert shell.run("f; pwd; ./run.sh; exec 3>log") == (f"f 5\n{HOME}/d\nran\n", 0)
        assert shell.run("echo logged >&3; cat log; alias hi='echo hello'").output == "logged\n"
        assert shell.run("hi; echo 'two\nlines' \"$'\\\\\"").output == "hello\ntwo\nlines $'\\\n"
        assert shell.run("ls -l ..").output.splitlines()[1:] == [
            "-rw-r--r-- 1 user user  4 Jan 15 09:30 a.txt",
            "drwxr-xr-x 2 user user 80 Jan 15 09:30 d",
            "lrwxrwxrwx 1 user user  5 Jan 15 09:30 to -> a.txt",
        ]
        said = "date; id -un; hostname; echo $RANDOM; git init -q r; cd r; git commit -q --allow-empty -m m; git log --oneline"
        assert shell.run(said).output == "Wed Jan 15 09:30:00 UTC 2025\nuser\nbox\n16807\n9d5d3b6 m\n"


@pytest.mark.parametrize(
    ("command", "said", "code"),
    [
        ("echo 'open", "unexpected EOF", 2),
        ("cat <<END\nline", "here-document at line 1 delimited by end-of-file", 2),
        ("(", "unexpected end of file", 2),
        ("if true", "unexpected end of file", 2),
        ("echo a; }", "syntax error", 2),
        ("nothing_there", "bash: nothing_there: command not found\n", 127),
        ("\0", "no NUL", 2),
        ("x" * (MAX_COMMAND + 1), "at most", 2),
        ("cat; read x; echo got $x; python3 -i </dev/null 2>&1 | tail -0", "got\n", 0),
        ("git init -q g && cd g && git commit --allow-empty", "Terminal is dumb", 1),
        ("less a.txt; git --no-pager --version | head -0", "one\n", 0),
        ("cat /dev/tty", "No such device or address", 1),
    ],
)
def test_what_is_open_or_waits_ends_with_its_command(command, said, code):
    with Shell(FILES) as shell:
        ran = shell.run(command)
        assert said in ran.output
        assert (ran.code, ran.failure) == (code, None)
        assert shell.run("echo next").output == "next\n"


@pytest.mark.parametrize(
    ("command", "failure", "restarted"),
    [
        ("sleep 9; echo never", "time", False),
        ("while true; do sleep .05; done", "time", False),
        ("while true; do true; done", "time", False),
        ("x=$(sleep 9 | cat)", "time", False),
        ("yes", "output", False),
        ("bomb() { bomb | bomb & }; bomb; sleep 9", "processes", False),
        (
            "head -c 700M /dev/zero | tail -c 600M | sort -S 500M | tail -c 1",
            None,
            False,
        ),  # memory or time: what comes first
        ("trap '' INT; while true; do true; done", "time", True),
        ("exit 3", "ended", True),
        ("kill -9 $$", "ended", True),
        ("exec true", "ended", True),
        ("set -e; false", "ended", True),
        ("exec 10<&- 0<&-", None, False),
        ("kill -9 -1; kill -USR1 1; kill -9 1; kill -STOP 1", None, False),
        ("exec >/dev/null 2>&1; trap 'echo x' DEBUG EXIT; set -uvx", None, False),
        ("PROMPT_COMMAND='echo p >&3'; PS1='$(sleep 1)'; IFS=0; unset PATH", None, False),
        ("(sleep 9; echo late) & disown; echo >/proc/1/fd/9", None, False),
        ("echo word 0 / >$(ls -d /proc/1/fd/* | tail -1)", None, False),
    ],
)
def test_a_command_that_is_stopped_or_breaks_the_shell_costs_no_more_than_the_state(command, failure, restarted):
    with Shell(FILES, QUICK) as shell:
        shell.run("cd d; x=5")
        started = time.monotonic()
        ran = shell.run(command)
        assert time.monotonic() - started < 20
        if failure is not None:
            assert (ran.failure, ran.restarted) == (failure, restarted)
        shell.run("\\builtin true")  # the end of a shell may be seen only now
        assert shell.run("trap - DEBUG; set +uvx; PATH=/usr/bin; \\builtin echo ${x-lost}; pwd").output.endswith(
            f"{'lost' if restarted else '5'}\n{HOME}/d\n"
        ) or (failure is None and "lost" in shell.run("echo ${x-lost}").output)
