"""How fast our worlds and our client are beside OpenEnv's own echo environment, which `openenv init` writes, and client.

OpenEnv's client asks each server, and ours another echo server, in turns on this machine, one request at a time. The medians of
ratios count, by the clock and by the processor time of client and server together. Resets come in groups of 8 of one seed
as trainers make them. Also what a session takes. Writes benchmarks/results/openenv_server.json and .md.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from openenv.core import GenericEnvClient

from stamps import stamp
from wm_plugin.worlds.worlds import load

RESULTS = Path(__file__).parent / "results"
ROUNDS, SECONDS, GROUP, SESSIONS = 21, 0.3, 8, 200
WORLDS = {
    "maze": {"type": "call_tool", "tool_name": "move", "arguments": {"direction": "U"}},
    "taxi": {"type": "call_tool", "tool_name": "act", "arguments": {"actions": "move north"}},
}
ECHO = {"message": "U"}


Ways = tuple[
    Callable[[int], object], Callable[[], bool], int
]  # a reset of a seed; a step, whether it ends; the server's process


def measured(ways: Ways, number: Iterator[int]) -> dict[str, float]:
    """Resets and steps a second, of the clock and of the processor."""
    reset, step, server = ways

    def once() -> None:
        if step():
            reset(0)

    return rate("resets", lambda: reset(next(number) // GROUP), server) | rate("steps", once, server)


def rate(what: str, once: Callable[[], object], server: int) -> dict[str, float]:
    done, start, before = 0, time.perf_counter(), processor(server)
    while time.perf_counter() - start < SECONDS:
        once()
        done += 1
    return {what: done / (time.perf_counter() - start), f"{what} (processor)": done / (processor(server) - before)}


def processor(server: int) -> float:
    """Seconds of the processor that this process and a server have used."""
    nanoseconds = 0
    for thread in Path(f"/proc/{server}/task").iterdir():
        with suppress(FileNotFoundError):  # it has ended
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return time.process_time() + nanoseconds / 1e9


def memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) << 10


def started(stack: ExitStack, command: list[str], folder: str | None = None) -> "subprocess.Popen[str]":
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def by_openenv(client: Any, action: dict[str, Any], server: int) -> Ways:
    return lambda seed: client.reset(seed=seed), lambda: bool(client.step(action).done), server


def by_us(url: str, server: int) -> Ways:
    world = load(f"openenv:{url}").make()

    def step() -> bool:
        world.step(**ECHO)
        return bool(world.over)

    return lambda seed: world.reset(seed=seed, max_turns=10**6), step, server


def echo_server(stack: ExitStack) -> tuple["subprocess.Popen[str]", str]:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    subprocess.run([str(Path(sys.executable).with_name("openenv")), "init", "echoes"], cwd=folder, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    quiet = ["--port", str(port), "--log-level", "warning", "--no-access-log"]
    url = f"http://127.0.0.1:{port}"
    server = started(stack, [sys.executable, "-m", "uvicorn", "server.app:app", *quiet], f"{folder}/echoes")
    while True:
        try:
            urlopen(f"{url}/health").close()
            return server, url
        except OSError:
            time.sleep(0.1)


def main() -> None:
    with ExitStack() as stack:
        servers, urls = {}, {}
        for name in WORLDS:
            command = [sys.executable, "-m", "wm_plugin", "env", "serve", name, "--port", "0", "--json"]
            servers[name] = started(stack, command)
            urls[name] = json.loads(servers[name].stdout.readline())["url"]  # type: ignore[union-attr]
        echo, echo_url = echo_server(stack)
        ways = {"echo": by_openenv(stack.enter_context(GenericEnvClient(base_url=echo_url)), ECHO, echo.pid)}
        other, other_url = echo_server(stack)
        ways["echo, our client"] = by_us(other_url, other.pid)
        for name, action in WORLDS.items():
            client = stack.enter_context(GenericEnvClient(base_url=urls[name]))
            ways[name] = by_openenv(client, action, servers[name].pid)
        number = count()
        rounds = [{name: measured(one, number) for name, one in ways.items()} for _ in range(ROUNDS)]
        found: dict[str, Any] = {}
        for name in ways:
            found[name] = {}
            for what in ("resets", "steps"):
                found[name][f"{what}_per_second"] = round(statistics.median(one[name][what] for one in rounds))
                for kind in ("", " (processor)"):
                    ratios = [one[name][what + kind] / one["echo"][what + kind] for one in rounds]
                    key = f"{what}_of_echo{'_processor' * bool(kind)}"
                    found[name][key] = round(statistics.median(ratios), 3)
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
        f"| {name} | {one['resets_per_second']:,} ({one['resets_of_echo']:.0%}, {one['resets_of_echo_processor']:.0%}) "
        f"| {one['steps_per_second']:,} ({one['steps_of_echo']:.0%}, {one['steps_of_echo_processor']:.0%}) | "
        + (f"{one['bytes_a_session'] / 1024:.0f} KB |" if "bytes_a_session" in one else "– |")
        for name, one in found.items()
    ]
    text = f"""# Worlds behind OpenEnv's server, and our client

`python benchmarks/openenv_server.py` writes this. {machine}; client and servers on one machine, one request at a time. In
brackets: of the echo environment that `openenv init` writes with OpenEnv's client, by the clock and by processor time of both
sides, measured by turns (medians of {ROUNDS} ratios); where others use the machine, the second one counts. Resets come in groups
of {GROUP} of one seed. Our client opens a session for each of them.

| environment | resets/s | steps/s | memory a session |
|---|---|---|---|
{chr(10).join(rows)}
"""
    (RESULTS / "openenv_server.md").write_text(text)
    stamp(RESULTS / "openenv_server.json", {"rounds": ROUNDS, "seconds": SECONDS, "sessions": SESSIONS})


if __name__ == "__main__":
    main()
