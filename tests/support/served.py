"""A world behind `wm env serve`, in a process of its own, and worlds to put behind it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wm_plugin.worlds.agents.rollout as rollout
from support.processes import ToyEnvironment
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.kit.protocol import ToolCall
from wm_plugin.worlds.worlds import World

TESTS = Path(__file__).parents[1]
CONTROL = {"perturbations": [{"name": "error", "rate": 0.4}], "seed": 8}


def hard_calls(world: World, row: Mapping[str, Any]) -> list[ToolCall]:
    """The expert's calls and, between them, a tool that does not exist and arguments that do not fit."""
    played = rollout.play(world.make(), row, scripted(world.expert()), max_turns=30)
    calls = [(call.name, call.arguments) for turn in played.turns for call in turn.action.calls]
    calls += calls[-1:] * 50  # until the world ends it, where control loses the last
    calls[1:1] = [("nothing", {}), (calls[0][0], {"wrong": 1}), (calls[0][0], {})]
    return calls


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address. A process that still runs at the end is interrupted, and must end as it should."""
    command = [sys.executable, "-m", "wm_plugin", "env", "serve", *words, "--port", "0", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)["url"]
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=30) == ("", "wm: interrupted\n")
                assert process.returncode == 130
        finally:
            process.kill()


def as_step(call: ToolCall) -> dict[str, Any]:
    """An action as OpenEnv's generic client sends it."""
    return {"type": "call_tool", "tool_name": call[0], "arguments": call[1]}


def as_host(observation: dict[str, Any]) -> str:
    """What TRL shows a policy of a step's observation: a client raises its error."""
    return str({"error": observation["error"]["message"]}) if observation["error"] else observation["result"]


class Toys(ToyEnvironment):
    """A world with an engine's process, that fails on what its tools and rows ask for."""

    def reset(self, count: int = 0, max_turns: int | None = None, **_: Any) -> str:
        if count == 13:
            raise RuntimeError("no such floor")
        return super().reset(count, max_turns)

    def act(self, command: str) -> str:
        """Act.

        Args:
            command: up or stay.

        Returns:
            The count.
        """
        if command == "raise":
            raise RuntimeError("unlucky")
        return super().act(command)


class Counter:
    """Never says that it is over; what a tool does, and how it fails, is in its argument."""

    def __init__(self) -> None:
        self._total, self._fails = 0.0, False

    def reset(self, seed: int = 0) -> str:
        if seed == 13 or self._fails:
            self._fails = True  # for good
            raise RuntimeError("no such floor")
        self._total = float(seed)
        return f"At {seed}."

    async def add(self, number: int) -> str:
        if number == 13:
            raise RuntimeError("unlucky \ud800" * 1000)
        self._total += number
        return f"{self._total:g} \ud800"

    def count(self) -> str:
        total = self._total
        time.sleep(0.001)  # what comes between is lost
        self._total = total + 1
        return f"{self._total:g}"

    def get_reward(self) -> float:
        return self._total
