"""What evaluations cost: `wm eval one-step` beside the bare generation of the same answers by the same server.

The server has a process of its own and takes a second for each answer, however many it is asked at once: 32 observations of 300
tokens a second. A round measures both, one after the other, in turn the one and the other first. The median of
the rounds' ratios counts, and all are written down. One-step's seconds are those of the whole evaluation: prompts are written,
answers are kept on the disk, scored, and summed up with intervals. Writes benchmarks/results/evaluation.json.
"""

import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stamps import stamp
from wm_plugin.client.answers import Answers, ServerModel
from wm_plugin.client.server import Server
from wm_plugin.data.prompts import load
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.lab.evaluation.cases import episodes
from wm_plugin.lab.evaluation.fidelity import fidelity

RESULTS = Path(__file__).parent / "results"
SERVER = Path(__file__).parents[1] / "tests" / "support" / "openai_server.py"
LATENCY, AT_ONCE, ROUNDS = 1.0, 32, 3
EPISODES, TURNS = 96, 12


def trajectories() -> Iterator[Trajectory]:
    """Sessions in a shell whose observations are of 1 kB."""
    for episode in range(EPISODES):
        turns = []
        for turn in range(TURNS):
            text = "\n".join(f"-rw-r--r-- 1 user user {n * 37 + turn} file_{episode}_{n}.txt" for n in range(24))
            tool = ("list", "read", "write")[turn % 3]
            call = Action(calls=[Call(name=tool, arguments={"path": f"/data/{turn}"})])
            turns.append(Turn(action=call, observations=[Observation(kind="tool", text=text, tool=tool, call=0)]))
        yield Trajectory(turns=turns, context=Context(task=f"Tidy {episode}."), task_id=str(episode), success=True)


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server that says the same to everybody."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port), str(LATENCY)])
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def one_step() -> dict[str, object]:
    """Turns a second of both ways, and their ratio."""
    prompts, items = load("word2world"), list(trajectories())
    cases = [case for one in episodes(items, "word2world", prompts, world_context=True) for case in one.cases]
    questions = [case.messages for case in cases]

    def connected() -> Server:
        server = Server(base_url, "m", concurrency=AT_ONCE, timeout=600.0, max_tokens=1024)
        server.complete(questions[:AT_ONCE])
        return server

    def bare() -> float:
        server = connected()
        start = time.perf_counter()
        answers = server.complete(questions)
        assert len(answers) == len(cases)
        return time.perf_counter() - start

    def evaluated() -> float:
        nonlocal cpu
        server = connected()
        with tempfile.TemporaryDirectory() as folder:
            start, cpu = time.perf_counter(), time.process_time()
            answers = Answers(ServerModel(server), Path(folder) / "answers.jsonl")
            result = fidelity(iter(items), answers, prompts, folder=Path(folder))
            took, cpu = time.perf_counter() - start, time.process_time() - cpu
        assert result.measure("exact").count == len(cases) == answers.asked
        return took

    rounds, cpu = [], 0.0
    with serving() as base_url:
        for number in range(ROUNDS):
            ways = {"bare": bare, "one_step": evaluated}
            order = list(ways) if number % 2 == 0 else list(ways)[::-1]
            rounds.append({name: len(cases) / ways[name]() for name in order})
    ratios = [turn["one_step"] / turn["bare"] for turn in rounds]
    return {
        "latency_s": LATENCY,
        "at_once": AT_ONCE,
        "turns": len(cases),
        "bare_turns_per_second": round(statistics.median(turn["bare"] for turn in rounds), 1),
        "one_step_turns_per_second": round(statistics.median(turn["one_step"] for turn in rounds), 1),
        "one_step_cpu_ms_a_turn": round(1e3 * cpu / len(cases), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_of_each_round": [round(ratio, 3) for ratio in ratios],
    }


def main() -> None:
    about = {"cores": os.cpu_count(), "python": platform.python_version()}
    results = {"one_step": one_step()}
    about["load_average"] = round(os.getloadavg()[0], 1)  # above the number of cores, the ratios are the machine's
    for name, figures in results.items():
        print(name, figures)
    (RESULTS / "evaluation.json").write_text(json.dumps({"about": about} | results, indent=2) + "\n")
    stamp(RESULTS / "evaluation.json", {})


if __name__ == "__main__":
    main()
