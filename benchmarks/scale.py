"""What the plugin costs from 1 to 1,000 GPUs, from pieces measured on a CPU: writes results/scale.json and SCALE.md.

From .venv-verl, whose driver is measured:

    python benchmarks/scale.py            # measures the pieces, a minute
    python benchmarks/scale.py --check    # SCALE.md is what results/ says; also a test
"""

import argparse
import json
import os
import pickle
import platform
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from stamps import stamp

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE / "SCALE.md"
GPUS = (1, 8, 64, 256, 1000)
# The workload, which is assumed: each GPU brings the same share of an optimizer step (weak scaling).
ROLLOUTS, TOKENS, TURNS, STEP = (
    32,
    8192,
    10,
    120.0,
)  # rollouts a GPU and step, tokens of a response, turns, seconds of a step
WORKERS = 8  # verl's default number of agent-loop workers
RESULT_TEXT = "-rw-r--r-- 1 user user 1234 Nov 21 10:00 file.txt\n" * 32  # of a turn: 1.6 kB, about 400 tokens
MENDS = {
    "columns": "make each rollout's weights in the agent-loop workers, which know its spans, and leave N to the training workers",
    "agent loops": "more `agent.num_workers`: they are independent of each other",
    "reward workers": "more `reward.num_workers`, or a judge for a share of the rollouts",
    "worlds": "serve the world from more processes or machines (`wm env serve`)",
    "trajectories": "dump every n-th step, or a share of the rollouts",
    "bytes": "more storage units of the transfer queue; weights could travel as spans, which take a fraction of the bytes",
}


def median(function: Callable[[], Any], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


# -- the pieces ----------------------------------------------------------------------------------------------------------------


def measure() -> dict[str, Any]:
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "support.verl_cpu"  # read when verl is imported
    sys.path.insert(0, str(HERE.parent / "tests"))
    import torch

    torch.set_num_threads(1)
    from wm_plugin.data.write import write

    pieces = {**driver(), "loop_ms": loop(), "all_reduce_ms": {ranks: all_reduce(ranks) for ranks in (2, 4)}}
    episodes = [episode(number) for number in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        pieces["write_ms"] = 1e3 * median(lambda: write(episodes, path), 5) / len(episodes)
        pieces["dumped_bytes"] = sum(one.stat().st_size for one in Path(folder).rglob("*.jsonl")) / len(episodes)
    return {
        "question": "CPU time and bytes of a rollout, by piece",
        "rollout": {"tokens": TOKENS, "turns": TURNS},
        "device": f"CPU ({platform.machine()}), one thread",
        "pieces": pieces,
    }


def driver() -> dict[str, Any]:
    """The columns of a batch, which verl's driver makes, of one objective and of two; and what a rollout carries to it."""
    import torch

    from support import on_verl
    from support.on_verl import Rollout
    from wm_plugin import EchoConfig
    from wm_plugin.objectives import Span
    from wm_plugin.objectives.empty_batches import Tally
    from wm_plugin.objectives.run import Objectives
    from wm_plugin.tokens.spans import Origin
    from wm_plugin.verl.trainer import make_columns

    half, rows = TOKENS // TURNS // 2, 64
    spans = []
    for turn in range(TURNS):  # header, content, footer
        start = turn * 2 * half + half
        ends = (start, start + 4, start + half - 4, start + half)
        spans += [Span(*pair, "tool", "run_code", place == 1) for place, pair in enumerate(pairwise(ends))]
    mask = torch.ones(TOKENS, dtype=torch.long)
    for span in spans:
        mask[span.start : span.end] = 0
    row = on_verl.row_of(Rollout([1] * 16, [1] * TOKENS, mask.tolist(), spans))
    message = {"role": "tool", "content": RESULT_TEXT}
    packed = [Origin(span, message=dict(message)).pack() for span in spans]
    several = {"tools": EchoConfig(0.05, roles=("tool",)), "users": EchoConfig(0.01, roles=("user",))}
    found: dict[str, Any] = {"origins_bytes": len(pickle.dumps([Origin(span).pack() for span in spans]))}
    for name, given in (("one", EchoConfig(0.05)), ("two", several)):
        running = [on_verl.running(one, ["run_code"], name=own) for own, one in Objectives.read(given).items()]
        bytes_of: list[int] = []

        def columns(running: Any = running, bytes_of: list[int] = bytes_of) -> None:
            origins = [[Origin.unpack(values) for values in packed] for _ in range(rows)]
            for one in running:
                weighed = one.weigh(origins, [False] * rows, Tally())
                made = make_columns(one, weighed, [row] * rows)
                bytes_of.append(sum((t.values() if t.is_nested else t).nbytes for t in made.values()))

        found[f"columns_ms_{name}"] = 1e3 * median(columns, 15) / rows
        found[f"columns_bytes_{name}"] = sum(bytes_of[: len(running)]) / rows
    return found


def loop() -> float:
    """Milliseconds to find the content of a rollout's results in its tokens, which the agent loop does."""
    from support.agent_loop import make_tokenizer
    from wm_plugin.tokens.chat import Chat
    from wm_plugin.tokens.spans import ContentLocator, ToolBlock

    tokenizer = make_tokenizer()
    before = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "ls"}]

    def render(tools: Sequence[str | None], contents: Sequence[str]) -> str:  # noqa: ARG001 - the template names no tool
        results = [{"role": "tool", "content": content} for content in contents]
        text: str = tokenizer.apply_chat_template([*before, *results], tokenize=False, add_generation_prompt=True)
        return text

    start = len(tokenizer.apply_chat_template(before, tokenize=False))
    blocks = []
    for turn in range(TURNS):
        contents = (f"{turn}\n{RESULT_TEXT}",)
        blocks.append(ToolBlock(("run_code",), contents, tokenizer(render((), contents)[start:]).input_ids))
    return 1e3 * median(lambda: ContentLocator(Chat(tokenizer).encode, render).locate(blocks), 20)


def episode(number: int) -> Any:
    from wm_plugin.data import Trajectory
    from wm_plugin.data.schema import Source

    turn = {
        "action": {"text": f"I look at step {number}. " * 60, "calls": []},
        "observations": [{"kind": "environment", "text": RESULT_TEXT}],
    }
    fields = {
        "context": {"task": "Look."},
        "turns": [turn] * TURNS,
        "source": Source(format="wm", file="x", row=number),
    }
    return Trajectory.model_validate(fields)


def all_reduce(ranks: int) -> float:
    """Milliseconds of wall time for the count of one optimizer step, over processes of this machine by gloo."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_reduce, (ranks, folder), nprocs=ranks)
        return float((Path(folder) / "ms").read_text())


def _reduce(rank: int, ranks: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    counts, seconds = torch.ones(2, dtype=torch.int64), []
    for _ in range(200):
        start = time.perf_counter()
        dist.all_reduce(counts.clone())
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        (Path(folder) / "ms").write_text(str(1e3 * statistics.median(seconds)))
    dist.destroy_process_group()


# -- the page ------------------------------------------------------------------------------------------------------------------


def known(scale: Mapping[str, Any]) -> dict[str, float]:
    """The pieces, with those that other benchmarks measured."""
    pieces = dict(scale["pieces"])
    judge = json.loads((RESULTS / "rewards_judges.json").read_text())["RubricReward"]
    pieces["judge_ms"], pieces["judge_calls"] = judge["cpu_ms_a_call"], judge["calls_per_second_32_at_once"]
    worlds = json.loads((RESULTS / "environments.json").read_text())["environments"]
    steps = {
        one["environment"]: one["steps_per_second_together"] for one in worlds if "steps_per_second_together" in one
    }
    pieces["sql_steps"], pieces["alfworld_steps"] = steps["sql"], steps["alfworld"]
    return pieces


def at(gpus: int, pieces: Mapping[str, float]) -> dict[str, float]:
    """Shares of a step's seconds that each piece takes where it runs by default, and amounts, at a number of GPUs."""
    rollouts = ROLLOUTS * gpus
    return {
        "rollouts": rollouts,
        "columns_bytes": rollouts * pieces["columns_bytes_one"],
        "columns": rollouts * pieces["columns_ms_one"] / 1e3 / STEP,
        "columns, two objectives": rollouts * pieces["columns_ms_two"] / 1e3 / STEP,
        "agent loops": rollouts * pieces["loop_ms"] / 1e3 / STEP / WORKERS,
        "reward workers": rollouts * pieces["judge_ms"] / 1e3 / STEP / WORKERS,
        "verdicts": rollouts / STEP,
        "trajectories": rollouts * pieces["write_ms"] / 1e3 / STEP,
        "dumped_bytes": rollouts * pieces["dumped_bytes"],
        "sql": rollouts * TURNS / STEP / pieces["sql_steps"],
        "alfworld": rollouts * TURNS / STEP / pieces["alfworld_steps"],
    }


def first(row: Mapping[str, float]) -> str:
    """The piece with the largest share of a step, of those that the plugin runs."""
    return max(("columns", "agent loops", "reward workers", "trajectories"), key=lambda name: row[name])


def page(scale: Mapping[str, Any]) -> str:
    pieces = known(scale)
    rows = {gpus: at(gpus, pieces) for gpus in GPUS}
    largest = {gpus: first(row) for gpus, row in rows.items()}
    reduce_ms = pieces["all_reduce_ms"]
    measured = [
        (
            "columns: weights, tool numbers, counts; one objective",
            f"{pieces['columns_ms_one']:.2f} ms, {pieces['columns_bytes_one']:,.0f} bytes",
            "verl's driver",
        ),
        (
            "the same, two objectives",
            f"{pieces['columns_ms_two']:.2f} ms, {pieces['columns_bytes_two']:,.0f} bytes",
            "verl's driver",
        ),
        (
            "the spans that it carries to the driver, without messages",
            f"{pieces['origins_bytes']:,.0f} bytes",
            "agent loop",
        ),
        (
            f"finding the content of {TURNS} results of {len(RESULT_TEXT) / 1e3:.1f} kB",
            f"{pieces['loop_ms']:.1f} ms",
            "agent loop",
        ),
        (
            "a judge's call (`rewards_judges.json`)",
            f"{pieces['judge_ms']:.2f} ms; {pieces['judge_calls']:,.0f} calls a second at 32 at once",
            "reward worker",
        ),
        (
            "writing the trajectory",
            f"{pieces['write_ms']:.2f} ms, {pieces['dumped_bytes']:,.0f} bytes",
            "driver",
        ),
    ]
    amounts: list[tuple[str, Callable[[int], str]]] = [
        ("rollouts a step", lambda n: f"{rows[n]['rollouts']:,.0f}"),
        ("our columns, MB a step", lambda n: f"{rows[n]['columns_bytes'] / 1e6:,.1f}"),
        ("trajectories, MB a step", lambda n: f"{rows[n]['dumped_bytes'] / 1e6:,.1f}"),
        ("verdicts a second", lambda n: f"{rows[n]['verdicts']:,.1f}"),
        ("processes that a fast world (sql) keeps busy", lambda n: f"{rows[n]['sql']:,.2f}"),
        ("the same, a slow world (ALFWorld)", lambda n: f"{rows[n]['alfworld']:,.1f}"),
        ("columns, share of a step", lambda n: f"{rows[n]['columns']:.2%}"),
        ("columns of two objectives", lambda n: f"{rows[n]['columns, two objectives']:.2%}"),
        ("trajectories", lambda n: f"{rows[n]['trajectories']:.2%}"),
        (f"agent loops, each of {WORKERS} workers", lambda n: f"{rows[n]['agent loops']:.2%}"),
        (f"reward workers, each of {WORKERS}", lambda n: f"{rows[n]['reward workers']:.2%}"),
        ("**first of ours**", lambda n: largest[n]),
    ]
    paragraphs = [
        "`python benchmarks/scale.py` measures the pieces and writes this page; `--check` and a test compare the two. Nothing "
        "here ran on a GPU or on more than one machine.",
        f"**Measured**, on one CPU thread, of a rollout of {TOKENS:,} tokens in {TURNS} turns, half of them the environment's:",
        table([("piece", "a rollout", "where"), *measured], "|---|---|---|"),
        "All-reduces: one of K + 1 integers an optimizer step for K objectives (8 bytes each), and one of the figures' sums "
        "where they are logged. Neither grows with tokens. By gloo between processes of one machine one takes "
        f"{reduce_ms['2']:.2f} ms over 2 and {reduce_ms['4']:.2f} ms over 4; a network's latency is not in it.",
        f"**Extrapolated**, by multiplying: {ROLLOUTS} rollouts a GPU and optimizer step and a step of {STEP:.0f} s at every "
        f"size (weak scaling; assumed), verl's default of {WORKERS} agent-loop and {WORKERS} reward workers, one judgement a "
        "rollout, every rollout dumped. Columns and trajectories are the driver's, and a step waits for them; the others run "
        "beside it.",
        table(
            [("GPUs", *(f"{n:,}" for n in GPUS)), *((what, *map(shown, GPUS)) for what, shown in amounts)],
            "|---|" + "---:|" * len(GPUS),
        ),
        "## What to do about it",
        "\n".join(wrapped(f"* **{n:,}**: {advice(rows[n])}") for n in GPUS),
        "\n".join(wrapped(f"* {name}: {mend}.") for name, mend in MENDS.items()),
        "A judge's own machine is not in the shares: how many verdicts a GPU gives is not measured (`gpu.py rewards` does). At "
        f"1,000 GPUs it must give {rows[1000]['verdicts']:,.0f} a second, each of which reads a prompt of a thousand tokens or "
        "more. What the driver does for each rollout without us, the transfer queue and the weights' way to the rollout engine "
        "are the host's, and are not here either: they may well give way first.",
    ]
    return "# From 1 to 1,000 GPUs\n\n" + "\n\n".join(map(wrapped, paragraphs)) + "\n"


def advice(row: Mapping[str, float]) -> str:
    """The first bottleneck at one size, in words."""
    name, said = first(row), []
    if row["alfworld"] > 1:
        said.append(f"a slow world, which keeps {row['alfworld']:,.1f} processes busy")
    said.append(
        f"of ours {name}, {row[name]:.1%} of a step" + (": mend it" if row[name] > 0.05 else ", which can stay")
    )
    return "; then ".join(said) + "."


def table(rows: Sequence[Sequence[str]], rule: str) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, rule, *body])


def wrapped(text: str) -> str:
    if text.startswith(("|", "#")) or "\n" in text:
        return text
    return textwrap.fill(text, 128, subsequent_indent="  " * text.startswith("* "), break_on_hyphens=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare SCALE.md with the results, and measure nothing")
    options = parser.parse_args()
    path = RESULTS / "scale.json"
    if options.check:
        same = PAGE.exists() and PAGE.read_text() == page(json.loads(path.read_text()))
        print("SCALE.md is what results/ says" if same else "SCALE.md differs from results/: run benchmarks/scale.py")
        return 0 if same else 1
    path.write_text(json.dumps(measure(), indent=1) + "\n")
    stamp(path, {})
    PAGE.write_text(page(json.loads(path.read_text())))
    print(PAGE.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
