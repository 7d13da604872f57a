"""Verifiers in Python: what they may do, and what they try."""

import platform
import shutil
import sys
import textwrap
import time

import pytest

import wm_plugin.runtime.sandbox
from support.processes import wait_for_the_end_of
from wm_plugin.errors import UserError
from wm_plugin.rewards import rule_code as sandbox
from wm_plugin.rewards.rule_code import Sandbox
from wm_plugin.rewards.rules import RuleReward


@pytest.fixture
def works():
    try:
        sandbox.check()
    except UserError as error:
        pytest.skip(f"needs the system package bubblewrap: {error}")


def run(body, *, prediction="p", target="t", columns=None, **settings):
    code = "def verify(prediction, target, columns):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    return Sandbox(**{"timeout": 20.0, "memory": 256} | settings).run(code, prediction, target, columns or {})


pytestmark = pytest.mark.system
needs_it = pytest.mark.usefixtures("works")


@needs_it
@pytest.mark.parametrize(
    ("body", "passed"),
    [
        ("return prediction == 'p\\u00fc' and target == 't' and columns == {'history': ['a', 1]}", True),
        ("return prediction == target", False),
        ("import json, re, math, collections\nreturn 1", True),
        ("print('noise', flush=True)\nreturn True", True),
    ],
)
def test_a_verdict(body, passed):
    assert run(body, prediction="pü", columns={"history": ["a", 1]}) == (passed, "")


@needs_it
@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("return None", "verify returned no bool"),
        ("return 'yes'", "verify returned no bool"),
        ("raise KeyError('x\\ny')", "KeyError: 'x\\ny'"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("import os\nos._exit(0)", "ended without a verdict (exit code 0)"),
        ("import torch", "ModuleNotFoundError: No module named 'torch'"),
    ],
)
def test_no_verdict(body, failure):
    assert run(body) == (None, failure)


@needs_it
@pytest.mark.parametrize(
    ("code", "failure"), [("def", "SyntaxError"), ("x = 1", "KeyError: 'verify'"), ("\0", "SyntaxError")]
)
def test_invalid_code(code, failure):
    verdict = Sandbox().run(code, "p", "t", {})
    assert verdict.passed is None
    assert verdict.failure.startswith(failure)


ESCAPES = {
    "a file of the host": ("return bool(open('/etc/passwd').read())", "FileNotFoundError"),
    "this file": (f"return bool(open({__file__!r}).read())", "FileNotFoundError"),
    "processes of the host": ("import os\nreturn bool(os.listdir('/proc'))", "FileNotFoundError"),
    "write where it is": ("open('x', 'w')\nreturn True", "OSError: [Errno 30] Read-only file system"),
    "write to /tmp": ("open('/tmp/x', 'w')\nreturn True", "FileNotFoundError"),
    "write to the root": ("import os\nos.mkdir('/x')\nreturn True", "OSError: [Errno 30] Read-only file system"),
    "write to Python": ("import os\nopen(os.__file__, 'a')\nreturn True", "OSError: [Errno 30] Read-only file system"),
    "fork": ("import os\nos.fork()\nreturn True", "PermissionError"),
    "fork by its number": (
        f"import ctypes\nif ctypes.CDLL(None).syscall({57 if platform.machine() == 'x86_64' else 220}, 17, 0, 0, 0, 0) >= 0:\n"
        "    return True\nraise ValueError('denied')",
        "ValueError: denied",
    ),
    "threads": ("import threading\nthreading.Thread(target=print).start()\nreturn True", "RuntimeError"),
    "a command": ("import subprocess\nsubprocess.run(['/usr/bin/id'])\nreturn True", "PermissionError"),
    "a shell": (
        "import os\nif os.system('true') == 0:\n    return True\nraise ValueError('denied')",
        "ValueError: denied",
    ),
    "the network": ("import socket\nsocket.create_connection(('127.0.0.1', 80), 1)\nreturn True", "PermissionError"),
    "a name server": ("import socket\nsocket.getaddrinfo('example.com', 80)\nreturn True", "gaierror"),
    "memory": ("x = bytearray(10**9)\nreturn True", "MemoryError"),
    "memory bit by bit": ("x = []\nwhile True:\n    x.append(bytearray(10**6))", "MemoryError"),
    "memory in files": ("import os\nos.memfd_create('x')\nreturn True", "PermissionError"),
    "memory that is shared": ("import mmap\nmmap.mmap(-1, 4096)\nreturn True", "PermissionError"),
    "higher limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nreturn True",
        "ValueError: not allowed to raise maximum limit",
    ),
    "many open files": ("import os\nwhile True:\n    os.dup(0) if False else os.pipe()", "OSError: [Errno 24]"),
    "kill others": ("import os\nos.kill(-1, 9)\nreturn True", "ProcessLookupError"),
    "kill its init": ("import os\nos.kill(1, 9)\nraise ValueError('still here')", "ValueError: still here"),
    "another program": ("import os\nos.execv('/bin/sh', ['sh', '-c', 'echo \"{}\"'])", "ended without a verdict"),
    "much output": ("import os\nwhile True:\n    os.write(3, b'x' * 1000)", "ended without a verdict"),
}


@needs_it
@pytest.mark.parametrize("attempt", ESCAPES)
def test_escapes(attempt):
    body, failure = ESCAPES[attempt]
    verdict = run(body)
    assert verdict.passed is None
    assert verdict.failure.startswith(failure), verdict.failure


@needs_it
@pytest.mark.parametrize(
    "body",
    [
        "import os\nreturn not {'MY_TOKEN', 'HOME', 'PATH'} & set(os.environ)",
        "import os\nreturn os.listdir('.') == []",
        "import os\nreturn not {'etc', 'proc', 'dev', 'tmp'} & set(os.listdir('/'))",
        "import sys\nreturn not any('site-packages' in path for path in sys.path)",
    ],
)
def test_the_environment_and_the_folders_are_empty(monkeypatch, body):
    monkeypatch.setenv("MY_TOKEN", "secret")
    assert run(body) == (True, "")


IGNORES_SIGNALS = """
import signal
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    pass
"""


@needs_it
@pytest.mark.parametrize("body", ["while True: pass", "import time\ntime.sleep(60)\nreturn True", IGNORES_SIGNALS])
def test_the_timeout_kills_everything(body, monkeypatch, tmp_path):
    python = sandbox._python
    monkeypatch.setattr(sandbox, "_python", lambda *code: [*python(*code), str(tmp_path)])  # to be found by
    start = time.monotonic()
    assert run(body, timeout=1.0) == (None, "no verdict within 1 s")
    assert time.monotonic() - start < 10
    wait_for_the_end_of(str(tmp_path))


@needs_it
def test_verifiers_of_a_reward():
    longer = "def verify(prediction, target, columns):\n    return len(prediction) > columns['least']"
    broken = "def verify(prediction, target, columns):\n    raise ValueError"
    reward = RuleReward(allow_code=True, scale=25, sandbox={"timeout": 20})
    rules = [
        {"python": longer},
        {"python": longer},
        {"python": broken},
        {"not": {"python": broken}},
        {"python": longer},
    ]
    assert reward(["abc", "a", "x", "x", None], ["t"] * 5, verifier=rules, least=[2] * 5) == [25, 0, 0, 0, 0]
    assert reward.figures["code_failed"] == 0.4  # and what failed holds in no combination


def test_without_bubblewrap_no_code_is_run(monkeypatch):
    monkeypatch.setattr(wm_plugin.runtime.sandbox, "_checked", {})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="bwrap is not installed: install the system package bubblewrap"):
        RuleReward(allow_code=True, verifier={"python": "def verify(*_): return True"})


def test_denied_namespaces_are_reported(monkeypatch, tmp_path):
    denied = tmp_path / "bwrap"
    denied.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    denied.chmod(0o755)
    monkeypatch.setattr(wm_plugin.runtime.sandbox, "_checked", {})
    monkeypatch.setattr(shutil, "which", lambda name: str(denied))
    with pytest.raises(UserError, match="it does not work here: bwrap: No permissions to create a new namespace"):
        Sandbox().run("", "p", "t", {})


def test_an_unsupported_platform_is_named(monkeypatch):
    monkeypatch.setattr(wm_plugin.runtime.sandbox, "_checked", {})
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="Linux on x86_64 or aarch64; this is darwin"):
        sandbox.check()
