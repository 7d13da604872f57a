"""`vllm serve` on this machine, in the environments that `make test-vllm` makes."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

_LONGEST_START = 600  # seconds: it imports for half a minute
_SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@contextmanager
def vllm_server(model: Path, log: Path, *flags: str, **settings: str) -> Iterator[str]:
    """The address, without `/v1`, of a server of the model in a folder. `settings` are variables of its environment."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", *flags]
    with log.open("w") as sink:
        serving = subprocess.Popen(
            command,
            env=os.environ | _SETTINGS | settings,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(f"{address}/health", serving, log)
        yield address
    finally:
        serving.terminate()
        with suppress(subprocess.TimeoutExpired):
            serving.wait(30)
        with suppress(ProcessLookupError):  # its engine is a process of its own
            os.killpg(serving.pid, signal.SIGKILL)
        serving.wait()


def _wait_for(url: str, serving: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(_LONGEST_START):
        assert serving.poll() is None, log.read_text()[-4000:]
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=1)
            return
        time.sleep(1)
    raise AssertionError(log.read_text()[-4000:])
