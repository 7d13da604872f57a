"""The text worlds' engines in the libraries' own loops, in this process: what `environments.py` holds ours against."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any

from wm_plugin.worlds.worlds import World

Loop = Callable[[], Iterator[float]]
Library = tuple[Callable[[dict[str, Any]], Any], Callable[[str], Any]]  # start the episode of a row, give it a command


def textworld() -> Library:
    """`textworld.start` once a game, `reset` and `step`, with the facts that tell what is effective."""
    import textworld as library

    from wm_plugin.worlds.textworld import make_game, settings_of

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
    from wm_plugin.worlds.alfworld import Engine, build

    engine = Engine()

    def start(row: dict[str, Any]) -> None:
        engine._env.load(build(row["level"], row["seed"]))
        names = engine._demangler(game_infos=engine._env._entity_infos)
        for info in engine._env._entity_infos.values():
            info.name = names.demangle_alfred_name(info.id)
        engine._env.reset()

    return start, lambda command: engine._env.step(command)


def scienceworld(options: Sequence[str] = ()) -> Library:
    """`load` and the raw `server.step`, with the score and the end, as the package launches Java, or with more options.

    The package's documentation resets after it has loaded, which loads the same again: that is left out.
    """
    from py4j import java_gateway
    from scienceworld import ScienceWorldEnv, scienceworld

    def launch(**arguments: Any) -> Any:
        return java_gateway.launch_gateway(**arguments, javaopts=list(options))

    scienceworld.launch_gateway, before = launch, scienceworld.launch_gateway
    try:
        env = ScienceWorldEnv("", envStepLimit=10**9)
    finally:
        scienceworld.launch_gateway = before

    def start(row: dict[str, Any]) -> None:
        env.load(row["task"], row["variation"])

    def step(command: str) -> None:
        env.server.step(command)
        env.server.getScore()
        env.server.getCompleted()

    return start, step


LIBRARIES: dict[str, dict[str, Callable[[], Library]]] = {
    "alfworld": {"textworld's PddlEnv": alfworld},
    "scienceworld": {
        "its server, which does not replay": scienceworld,
        "its server with replays": lambda: scienceworld(("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")),
    },
    "textworld": {"textworld": textworld},
}


def solution(world: World, row: dict[str, Any]) -> list[str]:
    """The expert's commands without the last, so that the episode goes on, with looking around between them."""
    environment = world.make()
    environment.reset(**row)
    look = "look around" if world.name == "scienceworld" else "look"
    return [command for step in environment._ask("plan")[:-1] for command in (step, look)] or [look]


def steps(world: World, library: Library, rows: int = 2) -> tuple[Loop, Loop]:
    """Ours, and the library's: the same commands of the same rows."""
    chosen = world.rows(rows)
    plans = [solution(world, row) for row in chosen]
    start, step = library

    def here() -> Iterator[float]:
        environment = world.make()
        while True:
            for row, plan in zip(chosen, plans, strict=True):
                environment.reset(**row, max_turns=10**6)
                for command in plan:
                    began = time.perf_counter()
                    environment.act(command)
                    yield time.perf_counter() - began

    def there() -> Iterator[float]:
        while True:
            for row, plan in zip(chosen, plans, strict=True):
                start(row)
                for command in plan:
                    began = time.perf_counter()
                    step(command)
                    yield time.perf_counter() - began

    return here, there


def resets(world: World, library: Library, rows: int = 2) -> tuple[Loop, Loop]:
    chosen = world.rows(rows)

    def here() -> Iterator[float]:
        environment = world.make()
        while True:
            for row in chosen:
                began = time.perf_counter()
                environment.reset(**row)
                yield time.perf_counter() - began

    def there() -> Iterator[float]:
        while True:
            for row in chosen:
                began = time.perf_counter()
                library[0](row)
                yield time.perf_counter() - began

    return here, there


def compare(world: World, rounds: int = 15) -> list[dict[str, Any]]:
    """Steps and resets a second, ours and each library's, by turns in one run; ratios above 1: ours is faster.

    By turns of several: a step after another process's finds the processor asleep and its caches cold.
    """
    found = []
    for name, make in LIBRARIES[world.name].items():
        for what, measured, together, warm in (("steps", steps, 20, 150), ("resets", resets, 4, 20)):
            loops = [loop() for loop in measured(world, make())]
            for loop in loops:
                _spend(loop, warm)
            taken = [[statistics.median(islice(loop, together)) for loop in loops] for _ in range(rounds)]
            mine, theirs = (statistics.median(column) for column in zip(*taken, strict=True))
            ratio = statistics.median(library / ours for ours, library in taken)
            found.append({"what": f"{what} of {name}", "ours": 1 / mine, "library": 1 / theirs, "ratio": ratio})
    return found


def _spend(loop: Iterator[float], most: int, seconds: float = 20.0) -> None:
    """What is only done once, and what Java compiles on the way."""
    until = time.perf_counter() + seconds
    for _ in takewhile(lambda _: time.perf_counter() < until, islice(loop, most)):
        pass
