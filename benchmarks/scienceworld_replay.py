"""Which ScienceWorld tasks replay identically, and how each splits its variations: `benchmarks/results/scienceworld_replay.json`.

    python benchmarks/scienceworld_replay.py [TASK ...]

Of each task, two train variations and a test one are played in one JVM: the gold path up to 40 commands, then ten valid commands
drawn at random. The same commands are then given to that JVM again and to another one, after other episodes in between. A task
is allowed if all texts, scores and ends are equal. `wm_plugin/worlds/scienceworld.yaml` holds the result.

The committed result was made in shorter runs towards its end: `played` lists each task's variations. Where it lists two, the gold
path was cut at 25 commands; where it lists one, at 20, with six random ones. Tasks that are missing were not played.
"""

import json
import random
import sys
import time
from pathlib import Path

from stamps import stamp
from wm_plugin.worlds.scienceworld import Engine

RESULT = Path(__file__).parent / "results" / "scienceworld_replay.json"


def play(engine, task, variation, commands):
    engine.server.load(task, variation, "", False)
    engine.server.reset()
    texts = [engine.server.step("look around")]
    for command in commands:
        texts.append([engine.server.step(command), engine.server.getScore(), engine.server.getCompleted()])
        if texts[-1][2]:
            break
    return texts


def commands_of(engine, task, variation):
    engine.server.load(task, variation, "", True)
    gold = list(engine.server.getGoldActionSequence())[:40]
    rng = random.Random(variation)
    engine.server.load(task, variation, "", False)
    engine.server.reset()
    engine.server.step("look around")
    commands = []
    for step in range(len(gold) + 10):
        if step < len(gold) - 1:
            commands.append(gold[step])
        else:
            valid = [c for c in sorted(engine.server.getValidActionObjectCombinations()) if not c.startswith("focus")]
            commands.append(rng.choice(valid))
        engine.server.step(commands[-1])
    return commands


def main():
    one, other = Engine(), Engine()
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for task in sys.argv[1:] or sorted(one.server.getTaskNames()):
        if task in result and not sys.argv[1:]:
            continue
        began = time.monotonic()
        one.server.load(task, 0, "", False)
        split = {name: list(getattr(one.server, f"getVariations{name.title()}")()) for name in ("train", "dev", "test")}
        contiguous = [n for part in split.values() for n in part] == list(range(one.server.getTaskMaxVariations(task)))
        variations = [split["train"][0], split["train"][len(split["train"]) // 2], split["test"][0]]
        differences = []
        for variation in variations:
            commands = commands_of(one, task, variation)
            runs = [play(engine, task, variation, commands) for engine in (one, other, one)]
            for run in runs[1:]:
                at = next((n for n, pair in enumerate(zip(runs[0], run, strict=False)) if pair[0] != pair[1]), None)
                if at is not None:
                    differences.append([variation, at, runs[0][at], run[at]])
        result[task] = {
            "variations": {name: len(part) for name, part in split.items()},
            "contiguous": contiguous,
            "played": variations,
            "replays": not differences,
            "first_difference": differences[0] if differences else None,
            "seconds": round(time.monotonic() - began, 1),
        }
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
        stamp(RESULT, {}, [task])
        print(
            task, result[task]["replays"], contiguous, result[task]["variations"], result[task]["seconds"], flush=True
        )


if __name__ == "__main__":
    main()
