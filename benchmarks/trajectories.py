"""What converting rollouts costs: time against plain `json` parsing of the same file, peak memory, processes, filter and expand.

Synthetic files of realistic rows (a policy, five tools, twelve to thirty messages), made in a temporary folder. Time is CPU time
of one process; the measurements of one file take turns, and the median is reported. Memory is that of a process of its own.
Writes benchmarks/results/trajectories.json.
"""

import argparse
import json
import os
import platform
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from stamps import stamp

RESULTS = Path(__file__).parent / "results"
WORDS = [
    "order",
    "flight",
    "the",
    "customer",
    "error",
    "cancel",
    "refund",
    "wait",
    "returned",
    "door",
    "kitchen",
    "“quoted”",
    "é",
    "move",
]
LINES = ("openai", "sharegpt", "own", "word2world")
DOCUMENTS = ("tau2", "taubench", "scienceworld")
Row = dict[str, Any]


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=max(1, int(rng.gauss(words, words / 4)))))


def tool(number: int) -> Row:
    properties = {
        f"field_{n}": {"type": "string", "description": "What it is about, in a few words."} for n in range(4)
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "description": "Does it.", "parameters": parameters},
    }


def messages(rng: random.Random, turns: int) -> list[Row]:
    conversation = [{"role": "system", "content": text(rng, 300)}, {"role": "user", "content": text(rng, 30)}]
    for turn in range(turns):
        if turn % 3 == 2:
            conversation += [
                {"role": "assistant", "content": text(rng, 40)},
                {"role": "user", "content": text(rng, 20)},
            ]
            continue
        arguments = {f"field_{n}": text(rng, 2) for n in range(3)}
        function = {"name": f"tool_{turn % 5}", "arguments": json.dumps(arguments)}
        call = {
            "id": "call_" + "".join(rng.choices(string.ascii_letters + string.digits, k=24)),
            "type": "function",
            "function": function,
        }
        result = json.dumps({f"key_{n}": text(rng, 8) for n in range(8)})
        conversation.append({"role": "assistant", "content": None, "tool_calls": [call]})
        conversation.append({"role": "tool", "tool_call_id": call["id"], "name": function["name"], "content": result})
    return conversation


def openai(rng: random.Random, number: int) -> Row:
    return {"messages": messages(rng, 12), "tools": [tool(n) for n in range(5)], "id": number}


def sharegpt(rng: random.Random, number: int) -> Row:
    conversation = [
        {"from": "human", "loss": None, "value": text(rng, 300)},
        {"from": "gpt", "loss": False, "value": "OK"},
    ]
    for _ in range(12):
        conversation.append({"from": "human", "loss": None, "value": text(rng, 80)})
        conversation.append({"from": "gpt", "loss": True, "value": f"Thought: {text(rng, 30)}\nAction: {text(rng, 4)}"})
    return {"item_id": f"alfworld_{number}", "conversations": conversation, "reward": 1.0}


def word2world(rng: random.Random, number: int) -> Row:
    conversation = [{"role": "system", "content": text(rng, 300)}]
    for _ in range(15):
        conversation += [{"role": "user", "content": text(rng, 4)}, {"role": "assistant", "content": text(rng, 60)}]
    conversation[-1]["content"] += " [SUCCESS]"
    return {"messages": conversation, "item_id": f"task_{number}"}


def taubench(rng: random.Random, number: int) -> Row:
    return {"task_id": number, "reward": 1.0, "info": {"seed": number}, "traj": messages(rng, 12), "trial": 0}


def tau2(rng: random.Random, number: int) -> Row:
    conversation = [{**message, "timestamp": "2025-01-01T00:00:00", "cost": 0.01} for message in messages(rng, 12)[1:]]
    return {
        "id": str(number),
        "task_id": str(number),
        "reward_info": {"reward": 1.0},
        "messages": conversation,
        "trial": 0,
    }


def scienceworld(rng: random.Random, number: int) -> Row:
    path = [
        {
            "action": text(rng, 4),
            "observation": text(rng, 30),
            "score": "0.5",
            "isCompleted": "false",
            "freelook": text(rng, 60),
        }
        for _ in range(20)
    ]
    sequence = {"variationIdx": number, "fold": "train", "taskDescription": text(rng, 40), "path": path}
    return {"taskName": f"task-{number}", "goldActionSequences": [sequence]}


def rows(name: str, size: int) -> Iterator[bytes]:
    """Rows of a format until they are `size` bytes long together; a hundred different ones, over and over."""
    rng = random.Random(0)
    made = [json.dumps(globals()[name if name != "own" else "openai"](rng, n)).encode() for n in range(100)]
    if name == "own":
        made = own(made)
    while size > 0:
        for row in made:
            yield row
            size -= len(row)
            if size <= 0:
                return


def own(made: list[bytes]) -> list[bytes]:
    """Conversations as `wm data convert` writes them."""
    from wm_plugin.data import read

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        path.write_bytes(b"\n".join(made))
        return [trajectory.to_bytes() for trajectory in read(path, "openai")]


def make(name: str, path: Path, size: int) -> Path:
    """A file of a format."""
    with path.open("wb") as file:
        if name in LINES:
            file.writelines(row + b"\n" for row in rows(name, size))
            return path
        start, end = {
            "tau2": (b'{"info": {"environment_info": {"policy": "Sell."}}, "tasks": [], "simulations": [', b"]}"),
            "taubench": (b"[", b"]"),
            "scienceworld": (b"{", b"}"),
        }[name]  # fmt: skip
        file.write(start)
        for number, row in enumerate(rows(name, size)):
            key = f'"{number}": '.encode() if name == "scienceworld" else b""
            file.write((b",\n" if number else b"") + key + row)
        file.write(end)
    return path


def parse(path: Path) -> None:
    """Plain parsing, as one would write it."""
    with path.open(encoding="utf-8") as file:
        if path.suffix == ".json":
            json.load(file)
        else:
            for line in file:
                json.loads(line)


def convert(path: Path, workers: int = 1) -> None:
    from wm_plugin import main

    os.environ["NO_COLOR"] = "1"
    more = ["--workers", str(workers)] if workers > 1 else []
    with open(os.devnull, "w") as nothing:
        stdout, sys.stdout = sys.stdout, nothing
        try:
            failed = main(["data", "convert", str(path), "--out", str(path.with_name("out.jsonl")), *more])
        finally:
            sys.stdout = stdout
    if failed:
        raise SystemExit(f"{path} was not converted")


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    start = clock()
    work()
    return clock() - start


def speed(folder: Path, names: tuple[str, ...], size: int, repeats: int) -> list[Row]:
    figures = []
    for name in names:
        path = make(name, folder / f"{name}.{'jsonl' if name in LINES else 'json'}", size)
        megabytes = path.stat().st_size / 1e6
        parse(path)
        times = [(seconds(lambda: parse(path)), seconds(lambda: convert(path))) for _ in range(repeats)]  # noqa: B023
        plain, ours = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(b / a for a, b in times)
        figures.append(
            {"format": name, "megabytes": round(megabytes, 1), "json_seconds": plain, "convert_seconds": ours,
             "times_json": ratio, "megabytes_per_second": megabytes / ours}
        )  # fmt: skip
        print(f"{name}: {megabytes / ours:.0f} MB/s, {ratio:.2f} times plain json ({megabytes / plain:.0f} MB/s)")
        path.unlink()
    return figures


def memory(folder: Path, names: tuple[str, ...], size: int) -> list[Row]:
    """The peak of a process that converts a large file."""
    figures = []
    for name in names:
        path = make(name, folder / f"{name}.{'jsonl' if name in LINES else 'json'}", size)
        code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        code += "import trajectories, pathlib\n"
        code += f"trajectories.convert(pathlib.Path({str(path)!r}))\n"
        # not getrusage: a new process begins with its parent's peak there
        code += "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        figures.append(
            {"format": name, "megabytes": round(path.stat().st_size / 1e6), "peak_mib": round(int(done.stdout) / 1024)}
        )
        print(f"{name}: {figures[-1]['peak_mib']} MiB for {figures[-1]['megabytes']} MB", flush=True)
        path.unlink()
        path.with_name("out.jsonl").unlink()
    return figures


def processes(folder: Path, size: int) -> list[Row]:
    """Wall time of one and of two processes, by turns."""
    path = make("openai", folder / "openai.jsonl", size)
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(3):
        for workers, taken in times.items():
            taken.append(seconds(lambda: convert(path, workers), time.perf_counter))  # noqa: B023
    path.unlink()
    figures = [{"workers": workers, "seconds": min(taken)} for workers, taken in times.items()]
    print(*(f"{row['workers']} workers: {row['seconds']:.1f} s" for row in figures), sep=", ")
    return figures


def pipeline(folder: Path, size: int) -> Row:
    """Filter and expand, in trajectories and transitions a CPU second, reading and writing included."""
    from wm_plugin.data import expand, read
    from wm_plugin.data.filter import Filter
    from wm_plugin.data.write import write, write_transitions

    path = make("own", folder / "own.jsonl", size)
    counts: dict[str, int] = {}

    def filtered() -> None:
        counts["filter"] = write(
            Filter(["empty_actions", "retries", "too_short"])(read(path)), folder / "out.jsonl"
        ).trajectories

    def expanded() -> None:
        counts["expand"] = write_transitions(expand(read(path), history=4), folder / "out.jsonl")

    taken = {"filter": min(seconds(filtered) for _ in range(3)), "expand": min(seconds(expanded) for _ in range(3))}
    figures = {
        "trajectories_per_second": counts["filter"] / taken["filter"],
        "transitions_per_second": counts["expand"] / taken["expand"],
    }
    print(", ".join(f"{name}: {value:,.0f}" for name, value in figures.items()))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--megabytes", type=float, default=100, help="of the files of lines for times; documents have a fifth"
    )
    parser.add_argument("--large", type=float, default=1000, help="megabytes of the files for memory; 0: leave it out")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    size = int(args.megabytes * 1e6)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = {
            "question": "CPU seconds of wm data convert as a multiple of plain json parsing, peak memory, processes",
            "device": f"CPU ({platform.machine()}, {os.cpu_count()} cores, shared)",
            "versions": {name: metadata.version(name) for name in ("pydantic", "orjson", "ijson")},
            "lines": speed(folder, LINES, size, args.repeats),
            "documents": speed(folder, DOCUMENTS, size // 5, args.repeats),
            "processes": processes(folder, 4 * size),
            "pipeline": pipeline(folder, size // 5),
            "memory": memory(folder, ("openai", "tau2", "taubench"), int(args.large * 1e6)) if args.large else [],
        }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "trajectories.json").write_text(json.dumps(result, indent=2) + "\n")
    stamp(RESULTS / "trajectories.json", vars(args))


if __name__ == "__main__":
    main()
