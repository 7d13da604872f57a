"""How fast the worlds are: steps and resets a second, against the underlying library's own loop where there is one, 64 together,
memory an instance, and whether what they show is the same in another process.

Every world of the registry that can run here. What is compared takes turns in one process, and the median of the ratios counts: a
step of a library is its step, and the decoding that makes text of it. A world that is slow is measured for a few seconds alone.
Writes benchmarks/results/environments.json and .md.
"""

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import text_worlds
from stamps import stamp
from wm_plugin.worlds import ENVIRONMENTS
from wm_plugin.worlds.check import check, texts
from wm_plugin.worlds.kit.commands import CommandEnvironment
from wm_plugin.worlds.kit.protocol import ToolCall
from wm_plugin.worlds.worlds import World, load

RESULTS = Path(__file__).parent / "results"
TOGETHER = 64
ROUNDS = 31  # short ones, so that what else the machine does meets both alike
MEMORY = 8 << 30  # bytes that the instances of a world may take together
STEPS = 5  # of each slow one of them
SECONDS = 0.15  # of one measurement, about
Loop = Callable[[], Iterator[None]]  # a step a yield, for ever


def ours(world: World, rows: Sequence[dict[str, Any]], calls: Sequence[Sequence[ToolCall]]) -> Iterator[None]:
    """The recorded calls on one instance; only they count, so that resets are stepped over outside the clock."""
    environment = world.make()
    for row, recorded in cycle(zip(rows, calls, strict=True)):
        environment.reset(**row)
        for name, arguments in recorded:
            getattr(environment, name)(**arguments)
            yield


def resets(world: World, rows: Sequence[dict[str, Any]]) -> Iterator[None]:
    environment = world.make()
    for row in cycle(rows):
        environment.reset(**row)
        yield


def together(world: World, rows: Sequence[dict[str, Any]], calls: Sequence[Sequence[ToolCall]]) -> Iterator[None]:
    """One step of each of `TOGETHER` instances in turn, each with its own row."""

    def one(start: int) -> Iterator[None]:
        order = [(start + place) % len(rows) for place in range(len(rows))]
        return ours(world, [rows[place] for place in order], [calls[place] for place in order])

    loops = [one(start) for start in range(TOGETHER)]
    while True:
        for loop in loops:
            next(loop)
            yield


def in_threads(world: World, played: Sequence[tuple[dict[str, Any], list[ToolCall]]], size: int) -> dict[str, Any]:
    """Slow worlds, whose engines are processes of their own: each instance in a thread, as verl steps them, a few steps each."""
    count = min(TOGETHER, MEMORY // max(size, 1))
    environments = [world.make() for _ in range(count)]

    def start(place: int) -> None:
        environments[place].reset(**played[place % len(played)][0])

    def play(place: int) -> int:
        made = played[place % len(played)][1][:STEPS]
        for name, arguments in made:
            getattr(environments[place], name)(**arguments)
        return len(made)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(start, range(count)))
        began = time.perf_counter()
        steps = sum(pool.map(play, range(count)))
        spent = time.perf_counter() - began
    return {"together": count, "steps_per_second_together": steps / spent}


# The library's own loops: the same work, without us. Each yields after a step.


def taxi_moves(world: World) -> tuple[Loop, Loop]:
    """Moves from start states: gymnasium's step and decode, and our turn of one action."""
    from gymnasium.envs.toy_text.taxi import TaxiEnv

    from wm_plugin.worlds.taxi import ACTIONS

    states = [row["state"] for row in world.rows(32)]
    moves = random.Random(0).choices(range(4), k=29)  # one less than an episode takes

    def library() -> Iterator[None]:
        taxi = TaxiEnv()
        taxi.reset(seed=0)
        for state in cycle(states):
            taxi.s = state
            for move in moves:
                observed = taxi.step(move)[0]
                list(taxi.decode(observed))
                yield

    def here() -> Iterator[None]:
        environment = world.make()
        for state in cycle(states):
            environment.reset(state)
            for move in moves:
                environment.act(ACTIONS[move])
                yield

    return here, library


def sokoban_moves(world: World) -> tuple[Loop, Loop]:
    """Moves and pushes anywhere: the game of reasoning-gym, its matrix as text and its test for the goal; ours."""
    from reasoning_gym.games.contrib.sokoban.src.game import Game

    boards = [row["board"] for row in world.rows(8)]
    rng = random.Random(0)
    steps = [(rng.choice(("move", "push")), rng.choice(("up", "down", "left", "right"))) for _ in range(29)]

    def library() -> Iterator[None]:
        for board in cycle(boards):
            drawn = board.translate(str.maketrans("#.P+BG*", "+-*%@X$"))
            game = Game(height=len(drawn.split("\n")), width=drawn.index("\n"))
            game.load_puzzle_matrix([list(row) for row in drawn.split("\n")])
            for _, direction in steps:
                game.player.update(key=direction[0].upper())
                "\n".join("".join(row) for row in game.get_matrix())
                game.is_level_complete()
                yield

    def here() -> Iterator[None]:
        environment = world.make()
        for board in cycle(boards):
            environment.reset(board, max_turns=100)
            for verb, direction in steps:
                if environment.over:
                    environment.reset(board, max_turns=100)
                environment.act(f"{verb} {direction}")
                yield

    return here, library


def maze_levels(world: World) -> tuple[Loop, Loop]:
    """Mazes of 11x11 cells, each from a seed: by mazelib, as its documentation makes them, and as our text of walls and floor."""
    del world
    from mazelib import Maze
    from mazelib.generate.Prims import Prims

    from wm_plugin.worlds.maze import _own_generators, _prim_maze

    def library() -> Iterator[None]:
        seed = 0
        while True:
            seed += 1
            maze = Maze(seed)
            maze.generator = Prims(5, 5)
            maze.generate()
            yield

    def here() -> Iterator[None]:
        seed = 0
        with _own_generators():
            while True:
                seed += 1
                _prim_maze(11, seed)
                yield

    return here, library


def plain_bash(files: dict[str, str]) -> tuple[Any, Callable[[str], bytes]]:
    """A bash that reads commands from a pipe, in the terminal's sandbox with the same files; and a function that runs one."""
    from wm_plugin.runtime import sandbox
    from wm_plugin.worlds.kit import shell_box

    (inner, given), (output, printed) = os.pipe(), os.pipe()
    script = f"exec /usr/bin/bash <&{inner} >&{printed} 2>&1"
    options = shell_box.options_of(shell_box.LIMITS)
    pass_fds = (inner, printed)
    opened = shell_box.starter(os.getpid()).submit(
        sandbox.start, ["/usr/bin/bash", "-c", script], options, shell_box._FIXED, pass_fds
    )
    started = opened.result()
    for number in pass_fds:
        os.close(number)

    def run(command: str) -> bytes:
        os.write(given, f"{command}\necho end-of-it $?\n".encode())
        text = b""
        while b"end-of-it " not in text or not text.endswith(b"\n"):
            text += os.read(output, 1 << 16)
        return text

    def end() -> None:
        started.end()
        os.close(given)
        os.close(output)

    for path, content in files.items():
        run(f"mkdir -p $(dirname '{path}'); cat > '{path}' <<'END'\n{content}END")
    return end, run


def terminal_commands(world: World) -> tuple[Loop, Loop]:
    """Commands that read files."""
    row = world.rows(1, max_turns=1)[0] | {"task": "by_path", "max_turns": 10**6}
    commands = [
        "ls -l",
        "wc -l access.log",
        "head -n 2 access.log",
        "cut -d' ' -f4 access.log | sort | uniq -c",
        "pwd; cd; echo $HOME",
    ]

    def library() -> Iterator[None]:
        environment = world.make()
        environment.reset(**row)
        _, run = plain_bash(dict(environment._task.files))
        for command in cycle(commands):
            run(command)
            yield

    def here() -> Iterator[None]:
        environment = world.make()
        environment.reset(**row)
        for command in cycle(commands):
            environment.run(command)
            yield

    return here, library


NATIVE: dict[str, tuple[str, Callable[[World], tuple[Loop, Loop]]]] = {
    "maze": ("levels of mazelib", maze_levels),
    "sokoban": ("moves of reasoning-gym's game", sokoban_moves),
    "taxi": ("steps of gymnasium, decoded", taxi_moves),
    "terminal": ("commands of a plain bash in the same sandbox", terminal_commands),
}


def rate(loop: Iterator[None], seconds: float = SECONDS) -> float:
    """Yields a second. The collector runs outside the clock."""
    next(loop)
    batch, done = 1, 0
    gc.collect()
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        for _ in islice(loop, batch):
            pass
        done += batch
        batch = min(batch * 2, 256)
    return done / spent


def ratio(here: Iterator[None], library: Iterator[None]) -> tuple[float, float, float]:
    """Ours a second, the library's a second, and the median of the ratios of neighbouring measurements."""
    pairs = [(rate(here, SECONDS / 3), rate(library, SECONDS / 3)) for _ in range(ROUNDS)]
    return (
        statistics.median(one for one, _ in pairs),
        statistics.median(other for _, other in pairs),
        statistics.median(one / other for one, other in pairs),
    )


def measure(name: str, seeds: int) -> dict[str, Any]:
    world = load(name)
    if missing := world.missing():
        return {"environment": name, "missing": missing}
    report = check(world, seeds=seeds)
    found: dict[str, Any] = {
        "environment": name,
        "level": report.level,
        "checked": report.ok,
        "failing": [f"{finding.name}: {finding.detail}" for finding in report.findings if finding.state == "fail"],
        "expert_success": report.expert_success,
        "steps_per_second": report.steps_per_second,
        "resets_per_second": report.resets_per_second,
        "bytes_an_instance": report.bytes_an_instance,
    }
    rows = world.some_rows(seeds)
    environment, calls = world.make(), []
    for number, row in enumerate(rows):
        made: list[ToolCall] = []
        texts(environment, row, world.wanderer(random.Random(number)), made)
        calls.append(made)
    played = [(row, made) for row, made in zip(rows, calls, strict=True) if made]
    if played and (issubclass(world.environment, CommandEnvironment) or report.steps_per_second < 200):
        found |= in_threads(world, played, report.bytes_an_instance or 0)
    elif played:
        found["together"] = TOGETHER
        found["steps_per_second_together"] = rate(
            together(world, [row for row, _ in played], [made for _, made in played]), 3 * SECONDS
        )
        alone = ours(world, [row for row, _ in played], [made for _, made in played])
        found["steps_per_second_with_resets"] = rate(alone, 3 * SECONDS)
    if name in NATIVE:
        what, make = NATIVE[name]
        here, library = make(world)
        mine, theirs, share = ratio(here(), library())
        found["native"] = [{"what": what, "ours": mine, "library": theirs, "ratio": share}]
    if name in text_worlds.LIBRARIES:
        found["native"] = text_worlds.compare(world)
    return found


def table(results: dict[str, Any]) -> str:
    lines = [
        "# Speed of the environments",
        "",
        f"`make bench` writes this. {results['machine']}, one process. A step is a tool call of the world's wanderer and the "
        "text that it returns; a reset is that of one instance, used again. *Together*: steps a second of so many instances, "
        "stepped in turn, resets included; those of slow worlds in threads, without resets. *Native*: ours against the same work "
        "in the library underneath, by turns in one run. *Same everywhere*: rows and texts are equal, byte for byte, with a used "
        "and a new instance and in a process with other hashes, and the rest of `wm env check` holds. "
        "`terminal` was measured while others used the machine: of its row the ratio counts, taken by turns, and not the rates.",
        "",
        "| world | steps/s | resets/s | together, steps/s | native | memory an instance | expert | same everywhere |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["environments"]:
        if "missing" in row:
            lines.append(f"| {row['environment']} | not measured: {' and '.join(row['missing'])} | | | | | | |")
            continue
        compared = [f"{o['ratio']:.0%} of {o['what']} ({o['library']:,.4g}/s)" for o in row.get("native", ())]
        against = "; ".join(compared) or "–"
        memory = row["bytes_an_instance"]
        size = "–" if memory is None else f"{memory / 1024:,.1f} KB" if memory < 2**20 else f"{memory / 2**20:,.0f} MB"
        expert = "–" if row["expert_success"] is None else f"{row['expert_success']:.0%}"
        many = f"{row['steps_per_second_together']:,.0f} ({row['together']})" if "together" in row else "–"
        same = "yes" if row["checked"] else "; ".join(row["failing"])
        lines.append(
            f"| {row['environment']} | {row['steps_per_second']:,.0f} | {row['resets_per_second']:,.0f} | {many} | {against} | "
            f"{size} | {expert} | {same} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="worlds (default: all); others keep the figures that they have")
    parser.add_argument("--seeds", type=int, default=20, help="rows that each world is checked and measured on")
    options = parser.parse_args()
    path = RESULTS / "environments.json"
    kept = {row["environment"]: row for row in json.loads(path.read_text())["environments"]} if path.exists() else {}
    names = options.names or list(ENVIRONMENTS)
    for name in names:
        kept[name] = measure(name, options.seeds)
        print(json.dumps(kept[name]), file=sys.stderr)
        write([kept[name] for name in ENVIRONMENTS if name in kept])  # at once: some worlds take minutes
    stamp(RESULTS / "environments.json", {"seeds": options.seeds}, list(names))
    print((RESULTS / "environments.md").read_text())


def write(environments: list[dict[str, Any]]) -> None:
    there = {one.metadata["Name"].lower() for one in metadata.distributions()}
    libraries = ("alfworld", "gymnasium", "mazelib", "reasoning-gym", "scienceworld", "textworld")
    results = {
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}",
        "packages": {name: metadata.version(name) for name in libraries if name in there},
        "environments": environments,
    }
    path = RESULTS / "environments.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    path.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
