"""Every world of the registry on a real host, and one of `wm env new`: actions of a wanderer, and what the host makes of them."""

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wm_plugin.data import Trajectory
from wm_plugin.hosting.world import is_waiting
from wm_plugin.worlds import ENVIRONMENTS
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.new import write
from wm_plugin.worlds.worlds import World, load

OWN = [name for name in ENVIRONMENTS if name != "tau2"]  # which the user installs
QUICK = {"grid"}  # others have long prompts, or engines and packages that take seconds to start
NAMES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in OWN]
NEW = "my_world:MyWorld"  # of `new_world`
TURNS, SEED = 3, 5
END = "That is all."  # said after the wanderer's last call


@dataclass(frozen=True)
class Episode:
    """A row, and what happens in its world."""

    row: Mapping[str, Any]
    played: Trajectory

    @property
    def turns(self) -> list[str]:
        """What the policy says, turn by turn: Hermes' form, which Qwen's chat templates have."""
        return [*(_call(turn.action.calls[0]) for turn in self.played.turns), END]

    @property
    def observations(self) -> list[str]:
        return [observation.text for turn in self.played.turns for observation in turn.observations]


def new_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a world as `wm env new` does, where Python finds it, and return its name."""
    for module in ("my_world", "my_world.test_my_world"):
        monkeypatch.delitem(sys.modules, module, raising=False)  # another test's
    monkeypatch.syspath_prepend(str(folder))
    write("my_world", folder)
    return NEW


def world(name: str, *, skip: bool = True) -> World:
    """The world, or a skip that names what is missing."""
    found = load(name)
    if (missing := found.missing()) and skip:
        pytest.skip(f"{name} needs {', '.join(missing)}")
    return found


def episodes(name: str, host: str, count: int = 2) -> list[Episode]:
    """Episodes of `TURNS` turns, or fewer where the world ends. Of rows that look alike at first there is one.

    Their figures have the answer after them, which a world that is not over counts.
    """
    of = world(name)
    rows = of.rows(count, seed=SEED)
    wanderers = [scripted(of.wanderer(random.Random(number))) for number in range(count)]
    found = {}
    for row, policy in zip(rows, wanderers, strict=True):
        environment = of.make()
        played = play(environment, row, policy, max_turns=TURNS, host=host)
        figures = dict(played.metadata["figures"])
        for name in figures.keys() & {"turns", "actions", "invalid"}:
            figures[name] += is_waiting(environment)
        played = played.model_copy(update={"metadata": {**played.metadata, "figures": figures}})
        found.setdefault(played.context.initial_state, Episode(row, played))
    return list(found.values())


def _call(call: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
