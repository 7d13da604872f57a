"""How near 32 calls at once come to 32 times one call, on a server that takes 20 ms: a judge, its client, other clients.

A round measures both, one after the other. The best round counts, and all are written down: a machine that is shared has bad
moments. The server has a process of its own. Writes benchmarks/results/rewards_judges.json.
"""

import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stamps import stamp
from wm_plugin.client.cache import ReplyCache
from wm_plugin.client.server import Server
from wm_plugin.rewards import RubricReward

RESULTS = Path(__file__).parent / "results"
SERVER = Path(__file__).parents[1] / "tests" / "support" / "openai_server.py"
LATENCY, AT_ONCE, ROUNDS = 0.02, 32, 5
ONE, MANY = 25, 1600  # calls
OBSERVED = "\n".join(f"-rw-r--r-- 1 user user {n * 37} Nov 21 10:{n:02} file_{n}.txt" for n in range(20))  # 1 kB


def rubric(base_url: str, calls: int, concurrency: int) -> float:
    """Seconds for so many judgements, prompts and verdicts included."""
    reward = RubricReward({"base_url": base_url, "model": "judge", "concurrency": concurrency}, domain="terminal")
    predictions = [f"{OBSERVED}\n{n}" for n in range(calls)]
    reward(predictions[:concurrency], [OBSERVED] * concurrency)  # connects
    return seconds(lambda: reward(predictions, [OBSERVED] * calls))


def client(base_url: str, calls: int, concurrency: int) -> float:
    server = Server(base_url, "judge", concurrency=concurrency)
    questions = [[{"role": "user", "content": f"{OBSERVED}\n{n}"}] for n in range(calls)]
    server.complete(questions[:concurrency])
    return seconds(lambda: server.complete(questions))


def bare_aiohttp(base_url: str, calls: int, concurrency: int) -> float:
    """What the machine allows: nothing but the requests."""
    import aiohttp

    async def ask() -> float:
        slots = asyncio.Semaphore(concurrency)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one(n: int) -> None:
                messages = [{"role": "user", "content": f"{OBSERVED}\n{n}"}]
                async with slots, session.post(f"{base_url}/chat/completions", json={"messages": messages}) as answer:
                    await answer.json()

            await asyncio.gather(*map(one, range(concurrency)))
            start = time.perf_counter()
            await asyncio.gather(*map(one, range(calls)))
            return time.perf_counter() - start

    return asyncio.run(ask())


def openai_client(base_url: str, calls: int, concurrency: int) -> float:
    from openai import AsyncOpenAI

    async def ask() -> float:
        slots = asyncio.Semaphore(concurrency)
        async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as asked:

            async def one(n: int) -> None:
                async with slots:
                    message = {"role": "user", "content": f"{OBSERVED}\n{n}"}
                    await asked.chat.completions.create(model="judge", messages=[message])

            await asyncio.gather(*map(one, range(concurrency)))
            start = time.perf_counter()
            await asyncio.gather(*map(one, range(calls)))
            return time.perf_counter() - start

    return asyncio.run(ask())


def cached(base_url: str) -> dict[str, float]:
    """The same judgements again, from the disk."""
    with tempfile.TemporaryDirectory() as folder:
        cache = ReplyCache(Path(folder) / "cache.db")
        reward = RubricReward({"base_url": base_url, "model": "judge"}, domain="terminal", cache=cache)
        predictions = [f"{OBSERVED}\n{n}" for n in range(MANY)]
        first = seconds(lambda: reward(predictions, [OBSERVED] * MANY))
        again = seconds(lambda: reward(predictions, [OBSERVED] * MANY))
        return {
            "first_per_second": round(MANY / first),
            "cached_per_second": round(MANY / again),
            "hit_share": reward.figures["cache_hit_share"],
        }


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(ask: Callable[[str, int, int], float], base_url: str) -> dict[str, float]:
    rounds, cpu = [], time.process_time()
    for _ in range(ROUNDS):
        one, many = ONE / ask(base_url, ONE, 1), MANY / ask(base_url, MANY, AT_ONCE)
        rounds.append({"one": one, "many": many, "ratio": many / (AT_ONCE * one)})
    cpu = time.process_time() - cpu
    best = max(rounds, key=lambda found: found["ratio"])
    return {
        "calls_per_second_one_at_a_time": round(best["one"], 1),
        f"calls_per_second_{AT_ONCE}_at_once": round(best["many"], 1),
        "ratio": round(best["ratio"], 3),
        "ratio_of_each_round": [round(found["ratio"], 3) for found in rounds],
        "cpu_ms_a_call": round(1e3 * cpu / (ROUNDS * (ONE + MANY)), 2),
    }


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serving = subprocess.Popen([sys.executable, SERVER, str(port), str(LATENCY)])
    base_url = f"http://127.0.0.1:{port}/v1"
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        arms = {"RubricReward": rubric, "Server": client, "bare aiohttp": bare_aiohttp}
        try:
            import openai  # noqa: F401
        except ModuleNotFoundError:
            print("openai is not installed: its client is left out")
        else:
            arms["openai"] = openai_client
        found = {name: measure(ask, base_url) for name, ask in arms.items()} | {"cache": cached(base_url)}
    finally:
        serving.terminate()
        serving.wait()
    for name, figures in found.items():
        print(name, figures)
    cores = os.cpu_count()
    about = {
        "latency_s": LATENCY,
        "at_once": AT_ONCE,
        "calls": MANY,
        "cores": cores,
        "python": platform.python_version(),
    }
    about["load_average"] = round(os.getloadavg()[0], 1)  # above the number of cores, the ratios are the machine's
    (RESULTS / "rewards_judges.json").write_text(json.dumps({"about": about} | found, indent=2) + "\n")
    stamp(RESULTS / "rewards_judges.json", {})


if __name__ == "__main__":
    main()
