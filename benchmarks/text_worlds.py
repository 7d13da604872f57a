"""The text worlds' engines in the libraries' own loops, in this process: what `environments.py` holds ours against."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from wm_plugin.environments.worlds import World

Loop = Callable[[], Iterator[float]]
Library = tuple[Callable[[dict[str, Any]], Any], Callable[[str], Any]]  # start the episode of a row, give it a command


def textworld() -> Library:
    """`textworld.start` once a game, `reset` and `step`, with the facts that tell what is effective."""
    import textworld as library

    from wm_plugin.environments.textworld import make_game, settings_of

    current: list[Any] = [None, None]  # a seed and its game

    def start(row: dict[str, Any]) -> None:
        if row["seed"] != current[0]:
            if current[1] is not None:
                current[1].close()
            path = str(make_game(settings_of(row["level"]), row["seed"]))
            current[:] = row["seed"], library.start(path, library.EnvInfos(facts=True))
        current[1].reset()

    return start, lambda command: current[1].step(command)


def alfworld() -> Library:
    """`PddlEnv` and ALFWorld's names: `load` and `reset` for a game, and `step`."""
    from wm_plugin.environments.alfworld import Engine, build

    engine = Engine()

    def start(row: dict[str, Any]) -> None:
        engine._env.load(build(row["level"], row["seed"]))
        names = engine._demangler(game_infos=engine._env._entity_infos)
        for info in engine._env._entity_infos.values():
            info.name = names.demangle_alfred_name(info.id)
        engine._env.reset()

    return start, lambda command: engine._env.step(command)


def scienceworld() -> Library:
    """`load`, `server.reset` and the raw `server.step`, with the score and the end, as the package launches Java."""
    from scienceworld import ScienceWorldEnv

    env = ScienceWorldEnv("", envStepLimit=10**9)

    def start(row: dict[str, Any]) -> None:
        env.load(row["task"], row["variation"])
        env.server.reset()

    def step(command: str) -> None:
        env.server.step(command)
        env.server.getScore()
        env.server.getCompleted()

    return start, step


LIBRARIES: dict[str, tuple[str, Callable[[], Library]]] = {
    "alfworld": ("textworld's PddlEnv", alfworld),
    "scienceworld": ("its server, raw", scienceworld),
    "textworld": ("textworld", textworld),
}


def solution(world: World, row: dict[str, Any]) -> list[str]:
    """The expert's commands without the last, so that the episode goes on, with looking around between them."""
    environment = world.make()
    environment.reset(**row)
    look = "look around" if world.name == "scienceworld" else "look"
    return [command for step in environment._ask("plan")[:-1] for command in (step, look)] or [look]


def steps(world: World, rows: int = 2) -> tuple[Loop, Loop]:
    """Ours, and the library's: the same commands of the same rows."""
    chosen = world.rows(rows)
    plans = [solution(world, row) for row in chosen]
    start, step = LIBRARIES[world.name][1]()

    def here() -> Iterator[float]:
        environment = world.make()
        while True:
            for row, plan in zip(chosen, plans, strict=True):
                environment.reset(**row, max_turns=10**6)
                for command in plan:
                    began = time.perf_counter()
                    environment.act(command)
                    yield time.perf_counter() - began

    def library() -> Iterator[float]:
        while True:
            for row, plan in zip(chosen, plans, strict=True):
                start(row)
                for command in plan:
                    began = time.perf_counter()
                    step(command)
                    yield time.perf_counter() - began

    return here, library


def resets(world: World, rows: int = 2) -> tuple[Loop, Loop]:
    chosen = world.rows(rows)
    start, _ = LIBRARIES[world.name][1]()

    def here() -> Iterator[float]:
        environment = world.make()
        while True:
            for row in chosen:
                began = time.perf_counter()
                environment.reset(**row)
                yield time.perf_counter() - began

    def library() -> Iterator[float]:
        while True:
            for row in chosen:
                began = time.perf_counter()
                start(row)
                yield time.perf_counter() - began

    return here, library


def compare(world: World, count: int) -> dict[str, Any]:
    """Steps and resets a second, ours and the library's, in turns in one run; ratios above 1: ours is faster."""
    found: dict[str, Any] = {}
    for what, make, pairs_of in (("steps", steps, count), ("resets", resets, max(4, count // 5))):
        here, library = (loop() for loop in make(world))
        for loop in (here, library):
            next(loop), next(loop)  # what is only done once
        pairs = [(next(here), next(library)) for _ in range(pairs_of)]
        mine, theirs = (statistics.median(one) for one in zip(*pairs, strict=True))
        name = f"{what} of {LIBRARIES[world.name][0]}"
        found[what] = {"what": name, "ours": 1 / mine, "library": 1 / theirs, "ratio": theirs / mine}
    return found
