"""A dataset's own Python, run in `wm_plugin.runtime.sandbox`: it reads nothing of the host's, writes nothing and reaches nobody.

Resource limits are set before the code runs. Python alone is no boundary, nor are its audit hooks: without bubblewrap no code
is run.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.runtime import sandbox

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
        ran = sandbox.run(_python(), given=json.dumps(job, default=str).encode(), timeout=self.timeout, most=_OUTPUT)
        if ran.code is None:
            return Verdict(None, f"no verdict within {self.timeout:g} s")
        return _read(ran.output, ran.code)


def _read(said: bytes, code: int) -> Verdict:
    try:
        value = json.loads(said)
        passed, failure = value.get("passed"), value.get("failure", "")
    except (ValueError, AttributeError):
        return Verdict(None, f"ended without a verdict (exit code {code})")
    return Verdict(passed, "") if isinstance(passed, bool) else Verdict(None, " ".join(str(failure).split())[:200])


def check() -> None:
    """Nothing, if verifiers can run here.

    Raises:
        UserError: bubblewrap is not installed or may not make namespaces here, or the machine is of another kind.
    """
    sandbox.check("code verifiers run", _python("pass"))


def _python(code: str = _RUNNER) -> list[str]:
    """Isolated, without site-packages and without writing byte code."""
    return [
        os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
        "-I",
        "-S",
        "-B",
        "-X",
        "utf8",
        "-c",
        code,
    ]
