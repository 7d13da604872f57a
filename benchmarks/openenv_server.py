"""How fast `wm env serve` is beside OpenEnv's own echo environment, the one that `openenv init` writes, and what a session takes.

OpenEnv's client asks both servers in turns on this machine, one request at a time, and the median of the ratios counts. Resets
come in groups of 8 of one seed, as trainers make them. Writes benchmarks/results/openenv_server.json and .md.
"""

import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from openenv.core import GenericEnvClient

from stamps import stamp

RESULTS = Path(__file__).parent / "results"
ROUNDS, SECONDS, GROUP, SESSIONS = 21, 0.3, 8, 200
WORLDS = {
    "maze": {"type": "call_tool", "tool_name": "move", "arguments": {"direction": "U"}},
    "taxi": {"type": "call_tool", "tool_name": "act", "arguments": {"actions": "move north"}},
}
ECHO = {"message": "U"}


def rate(once: Callable[[], object]) -> float:
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        once()
        done += 1
    return done / (time.perf_counter() - start)


def measured(client: Any, action: dict[str, Any], number: Any) -> tuple[float, float]:
    """Resets and steps a second."""

    def step() -> None:
        if client.step(action).done:
            client.reset(seed=0)

    resets = rate(lambda: client.reset(seed=next(number) // GROUP))
    return resets, rate(step)


def memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) << 10


def started(stack: ExitStack, command: list[str], folder: str | None = None) -> "subprocess.Popen[str]":
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def main() -> None:
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        subprocess.run([str(Path(sys.executable).with_name("openenv")), "init", "echoes"], cwd=folder, check=True)
        quiet = ["--port", str(port), "--log-level", "warning", "--no-access-log"]
        started(stack, [sys.executable, "-m", "uvicorn", "server.app:app", *quiet], f"{folder}/echoes")
        servers, urls = {}, {"echo": f"http://127.0.0.1:{port}"}
        for name in WORLDS:
            command = [sys.executable, "-m", "wm_plugin", "env", "serve", name, "--port", "0", "--json"]
            servers[name] = started(stack, command)
            urls[name] = json.loads(servers[name].stdout.readline())["url"]  # type: ignore[union-attr]
        clients = {name: stack.enter_context(GenericEnvClient(base_url=url)) for name, url in urls.items()}
        actions, number = {"echo": ECHO, **WORLDS}, count()
        rounds = [{name: measured(clients[name], actions[name], number) for name in urls} for _ in range(ROUNDS)]
        found: dict[str, Any] = {}
        for name in urls:
            for place, what in enumerate(("resets", "steps")):
                rates = [one[name][place] for one in rounds]
                ratios = [one[name][place] / one["echo"][place] for one in rounds]
                found.setdefault(name, {})[f"{what}_per_second"] = round(statistics.median(rates))
                found[name][f"{what}_of_echo"] = round(statistics.median(ratios), 3)
        for name, server in servers.items():
            before = memory(server.pid)
            for seed in range(SESSIONS):
                stack.enter_context(GenericEnvClient(base_url=urls[name])).reset(seed=seed)
            found[name]["bytes_a_session"] = (memory(server.pid) - before) // SESSIONS
            found[name]["bytes_of_the_server"] = before
    write(found)


def write(found: dict[str, Any]) -> None:
    (RESULTS / "openenv_server.json").write_text(json.dumps(found, indent=2) + "\n")
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    rows = [
        f"| {name} | {one['resets_per_second']:,} ({one['resets_of_echo']:.0%}) | {one['steps_per_second']:,} "
        f"({one['steps_of_echo']:.0%}) | "
        + (f"{one['bytes_a_session'] / 1024:.0f} KB |" if "bytes_a_session" in one else "– |")
        for name, one in found.items()
    ]
    text = f"""# Worlds behind OpenEnv's server

`python benchmarks/openenv_server.py` writes this. {machine}; client and servers on one machine, one request at a time. In
brackets: of the echo environment that `openenv init` writes, measured by turns. Resets come in groups of {GROUP} of one seed.

| environment | resets/s | steps/s | memory a session |
|---|---|---|---|
{chr(10).join(rows)}
"""
    (RESULTS / "openenv_server.md").write_text(text)
    stamp(RESULTS / "openenv_server.json", {"rounds": ROUNDS, "seconds": SECONDS, "sessions": SESSIONS})


if __name__ == "__main__":
    main()
