"""Verifiers in Python from a dataset, run in `wm_plugin.runtime.sandbox`: no host files, no writing, no network.

Resource limits are set before the code runs. Python itself, audit hooks included, is no security boundary, so nothing runs
without bubblewrap.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from wm_plugin.options import Number, Options, Whole, option
from wm_plugin.runtime import sandbox
from wm_plugin.untrusted import loads

_MAX_OUTPUT = 4096  # bytes that the code may write; a verdict needs far fewer
# Reads the job, sets limits that the code cannot raise, then runs it.
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
    passed = inside["verify"](job["prediction"], job["target"], job["columns"])
    verdict = {"passed": bool(passed)} if passed in (True, False) else {"failure": "verify returned no bool"}
except BaseException as error:
    verdict = {"failure": (type(error).__name__ + ": " + str(error))[:200]}
os.write(answer, json.dumps(verdict).encode())
"""


class Verdict(NamedTuple):
    """A verifier's decision. `passed` is None without one; `failure` then says why in one line."""

    passed: bool | None
    failure: str = ""


class Sandbox(Options):
    """Runs verifiers: code that defines `verify(prediction: str, target: str, columns: dict) -> bool`.

    Each run is a process of its own, about 50 ms. Its Python has only the standard library.
    """

    timeout: Number = option(
        "Seconds, including the start; then the sandbox and everything in it is killed.", default=5.0, gt=0
    )
    memory: Whole = option("MB of address space.", default=512, ge=64)

    def run(self, code: str, prediction: str, target: str, columns: Mapping[str, Any]) -> Verdict:
        """Run a verifier. An error inside the code is a verdict without `passed`.

        Args:
            code: defines `verify`.
            prediction, target: its first two arguments.
            columns: its third: JSON values; others arrive as their `str`.

        Raises:
            UserError: sandboxes do not work here; see `check`.
        """
        check()
        cpu = int(self.timeout) + 1
        limits = {"AS": self.memory << 20, "CPU": cpu, "FSIZE": _MAX_OUTPUT, "NOFILE": 32, "CORE": 0}
        job = {"code": code, "prediction": prediction, "target": target, "columns": dict(columns), "limits": limits}
        run = sandbox.run(
            _python(), stdin=json.dumps(job, default=str).encode(), timeout=self.timeout, most=_MAX_OUTPUT
        )
        if run.code is None:
            return Verdict(None, f"no verdict within {self.timeout:g} s")
        return _read(run.output, run.code)


def _read(output: bytes, code: int) -> Verdict:
    try:
        value = loads(output)
        passed, failure = value.get("passed"), value.get("failure", "")
    except (ValueError, AttributeError):
        return Verdict(None, f"ended without a verdict (exit code {code})")
    return Verdict(passed, "") if isinstance(passed, bool) else Verdict(None, " ".join(str(failure).split())[:200])


def check() -> None:
    """Raise a UserError unless verifiers can run here: bubblewrap is installed, may create namespaces, and knows the platform."""
    sandbox.check("code verifiers run", _python("pass"))


def _python(code: str = _RUNNER) -> list[str]:
    """Return the command for isolated Python: no site-packages, no byte code written."""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return [python, "-I", "-S", "-B", "-X", "utf8", "-c", code]
