"""OpenEnv servers as processes of their own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

TESTS = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(
    application: str, folder: Path = TESTS, port: int | None = None, **variables: str
) -> tuple[str, subprocess.Popen]:
    """Start `uvicorn application` with the modules of a folder; return its URL at once."""
    port = port or free_port()
    words = ["-m", "uvicorn", application, "--host", "127.0.0.1", "--port", str(port), "--log-level", "critical"]
    env = {**os.environ, "PYTHONPATH": str(folder), **variables}
    process = subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return f"http://127.0.0.1:{port}", process


def wait(url: str, process: subprocess.Popen, seconds: float = 60) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + seconds
    while not answers(url):
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < deadline, "the server does not answer"
        time.sleep(0.1)


def answers(url: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(f"{url}/schema", timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def serving(application: str, folder: Path = TESTS, **variables: str) -> Iterator[str]:
    url, process = start(application, folder, **variables)
    try:
        wait(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def template(folder: Path, name: str = "echo1", sessions: int = 64) -> Path:
    """Make a package by `openenv init`, as a user does, with room for several sessions; return the folder that it is in."""
    program = Path(sys.executable).parent / "openenv"
    subprocess.run([program, "init", name], cwd=folder, check=True, capture_output=True)
    application = folder / name / "server" / "app.py"
    text = application.read_text()
    assert "max_concurrent_envs=1" in text
    application.write_text(text.replace("max_concurrent_envs=1", f"max_concurrent_envs={sessions}"))
    return folder
