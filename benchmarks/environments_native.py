"""The text worlds' engines in the libraries' own loops, in this process: what `environments.py` holds ours against.

    python benchmarks/environments_native.py [NAME ...]

prints steps and resets a second of both, and the memory of an instance's processes. `NATIVE` has, by name, what is compared, and
a function from a world to two endless loops of the same commands, ours and the library's. They yield the seconds of each step, in
which no reset is; `RESETS` has the same for resets.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wm_plugin.environments.worlds import World, load

Loop = Callable[[], Iterator[float]]
Library = tuple[Callable[[dict[str, Any]], Any], Callable[[str], Any]]  # start the episode of a row, give it a command


def textworld() -> Library:
    """`textworld.start` once a game, `reset` and `step`, with the facts that tell what is effective."""
    import textworld as library

    from wm_plugin.environments.textworld import make_game, settings_of

    games: dict[int, Any] = {}
    current: list[Any] = [None]

    def start(row: dict[str, Any]) -> None:
        if row["seed"] not in games:
            path = str(make_game(settings_of(row["level"]), row["seed"]))
            games[row["seed"]] = library.start(path, library.EnvInfos(facts=True))
        current[0] = games[row["seed"]]
        current[0].reset()

    return start, lambda command: current[0].step(command)


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
    "alfworld": ("steps of textworld's PddlEnv", alfworld),
    "scienceworld": ("raw steps of its server", scienceworld),
    "textworld": ("steps of textworld", textworld),
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


NATIVE: dict[str, tuple[str, Callable[[World], tuple[Loop, Loop]]]] = {
    name: (what, steps) for name, (what, _) in LIBRARIES.items()
}
RESETS = {name: (what.replace("steps", "resets"), resets) for name, (what, _) in LIBRARIES.items()}


def memory(process: int) -> int:
    """Resident bytes of a process and of what it started, pages that they share counted once for each."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == process:  # its session
            total += int(fields[21]) * 4096
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="worlds (default: all)")
    parser.add_argument("--count", type=int, default=30, help="steps of each, and a fifth of it resets")
    options = parser.parse_args()
    for name in options.names or LIBRARIES:
        world = load(name)
        if missing := world.missing():
            print(f"{name}: not measured: {' and '.join(missing)}")
            continue
        for what, make, count in (("steps", steps, options.count), ("resets", resets, max(4, options.count // 5))):
            here, library = (loop() for loop in make(world))
            for loop in (here, library):
                next(loop), next(loop)  # what is only done once
            pairs = [(next(here), next(library)) for _ in range(count)]
            mine, theirs = (statistics.median(one) for one in zip(*pairs, strict=True))
            print(f"{name}: {1 / mine:.1f} {what}/s, library {1 / theirs:.1f}, {theirs / mine:.0%}", flush=True)
        environment = world.make()
        environment.reset(**world.rows(1)[0])
        print(f"{name}: {memory(environment._process.pid) / 2**20:.0f} MB an instance", flush=True)


if __name__ == "__main__":
    main()
