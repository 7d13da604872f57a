"""How near episodes in a world model come to the throughput of its server, and how much of a prompt is the prompt before it.

    python benchmarks/simulated.py --host verl     # verl's agent loop, as in a worker, with a policy that takes no time
    python benchmarks/simulated.py --host trl      # TRL's trainer, whose policy generates between the questions
    python benchmarks/simulated.py --prefix        # in any environment; --vllm URL --model NAME asks that server's cache, too

Each adds its part to benchmarks/results/simulated.json and writes the tables of all parts, simulated.md. Two servers, each in a
process of its own: one that takes 250 ms for an answer and gives 32 at once, and with --world DIR a tiny world model, such as
`wm lab pipeline sim_rl_tiny` leaves in runs/sim_rl_tiny/trl/world_s0. A repeat measures the server alone, by bare requests of
the bodies that episodes send, and then the episodes; their ratio is of the same minute. Nothing is cached.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from stamps import stamp

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH"))))

from wm_plugin.worlds import grid  # noqa: E402 - the processes of servers find it by the variable
from wm_plugin.worlds.wrappers.world_model_client import _Served  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "simulated.json"
LATENCY, AT_MOST = 0.25, 32
EPISODES, MOVES, REPEATS = 128, 6, 7
MODEL_EPISODES = 64
BOARD = "....\n....\n....\n...A>"


# -- servers ---------------------------------------------------------------------------------------------------------------


@contextmanager
def fixed(latency: float = LATENCY, at_most: int = AT_MOST) -> Iterator[str]:
    """A server process that answers after a while, so many at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serving = subprocess.Popen([sys.executable, __file__, "--serve", str(port), str(latency), str(at_most)])
    try:
        _wait_for(port, serving)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        serving.terminate()
        serving.wait()


@contextmanager
def tiny_model(world: Path) -> Iterator[str]:
    """A server process of a tiny world model."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "url"
        code = f"import os, time; open({str(note)!r}, 'w').write(os.environ['WM_TINY_SERVER']); time.sleep(10**6)"
        command = [
            sys.executable,
            "-m",
            "wm_plugin.lab.tiny",
            "serve",
            "--model",
            str(world),
            sys.executable,
            "-c",
            code,
        ]
        # a session of its own: its end is that of the command beside it, too
        serving = subprocess.Popen(command, start_new_session=True)
        try:
            while not (note.exists() and note.read_text()):
                if serving.poll() is not None:
                    raise SystemExit("the tiny model's server ended")
                time.sleep(0.1)
            yield note.read_text()
        finally:
            os.killpg(serving.pid, 15)
            serving.wait()


def _wait_for(port: int, process: subprocess.Popen) -> None:
    while True:
        if process.poll() is not None:
            raise SystemExit("the server ended")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)


def serve(port: int, latency: float, at_most: int) -> None:
    """What the process of `fixed` runs."""
    from aiohttp import web

    slots = asyncio.Semaphore(at_most)
    answer = {"choices": [{"message": {"role": "assistant", "content": BOARD}, "finish_reason": "stop"}]}

    async def complete(request: web.Request) -> web.Response:
        await request.read()
        async with slots:
            await asyncio.sleep(latency)
        return web.json_response(answer)

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/chat/completions", complete)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


# -- who asks --------------------------------------------------------------------------------------------------------------


class Recorded:
    """The bodies that simulated episodes send, while it is in force."""

    def __enter__(self) -> list[dict[str, Any]]:
        self._plain, bodies = _Served.answer, []

        async def answer(served: Any, question: Any, temperature: float, seed: int) -> Any:
            bodies.append(served._server.body(question))
            return await self._plain(served, question, temperature, seed)

        _Served.answer = answer  # type: ignore[method-assign]
        return bodies

    def __exit__(self, *_: object) -> None:
        _Served.answer = self._plain  # type: ignore[method-assign]


def bare(base_url: str, bodies: Sequence[dict[str, Any]], at_once: int) -> float:
    """Seconds for the requests alone, so many at once."""
    import aiohttp

    async def ask() -> float:
        slots = asyncio.Semaphore(at_once)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one(body: dict[str, Any]) -> None:
                async with slots, session.post(f"{base_url}/chat/completions", json=body) as reply:
                    reply.raise_for_status()
                    await reply.read()

            start = time.perf_counter()
            await asyncio.gather(*map(one, bodies))
            return time.perf_counter() - start

    return asyncio.run(ask())


def simulation(base_url: str, at_once: int) -> dict[str, Any]:
    return {
        "url": base_url,
        "model": "world",
        "api_key_env": None,
        "cache": False,
        "concurrency": at_once,
        "repair": 0,
        "max_tokens": 128,
        "prompts": str(ROOT / "recipes" / "pipelines" / "sim_tiny_prompts.yaml"),
        "closings": [],
    }


def on_verl(base_url: str, episodes: int, repeats: int) -> dict[str, Any]:
    """Episodes that run at once in verl's agent loop, in turns with the bare requests."""
    from support.agent_loop import call, config, episode, make_tokenizer
    from wm_plugin.verl.names import INFO, TRAINING

    tokenizer = make_tokenizer()
    rows = grid.dataset_rows(episodes, seed=1)
    made = config({"environment": "grid", "simulation": simulation(base_url, episodes)}, response_length=4000)

    async def play() -> tuple[float, int]:
        rng = random.Random(0)
        start = time.perf_counter()
        outputs = await asyncio.gather(
            *(
                episode(
                    tokenizer,
                    [call("move", direction=rng.choice("UDLR")) for _ in range(MOVES)] + ["Done."],
                    made,
                    {"raw_prompt": row["prompt"], "extra_info": {"board": row["board"]}, TRAINING: 1.0},
                )
                for row in rows
            )
        )
        seconds = time.perf_counter() - start
        infos = [output.extra_fields[INFO] for output in outputs]
        if any(info["lost"] for info in infos):
            raise SystemExit("episodes were lost: nothing is measured")
        return seconds, int(sum(info["simulation/requests"] for info in infos))

    with Recorded() as bodies:
        asyncio.run(play())
    found = []
    for _ in range(repeats):
        alone = len(bodies) / bare(base_url, bodies, episodes)
        seconds, requests = asyncio.run(play())
        found.append({"server": alone, "episodes": requests / seconds, "ratio": requests / seconds / alone})
    return figures(found, len(bodies))


def on_trl(base_url: str, episodes: int, repeats: int) -> dict[str, Any]:
    """Steps of TRL's trainer without learning: all questions of a turn are asked at once, and then the policy generates."""
    import torch

    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
    from wm_plugin.lab.tiny.warm_start import behaviour_cloning
    from wm_plugin.trl import train

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = make_tokenizer()
        model = make_model(tokenizer, seed=0)
        behaviour_cloning(model, tokenizer, 0, steps=40, demonstrations=300, environment_weight=0.0)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        flags = {
            "model_name_or_path": folder, "output_dir": f"{folder}/out", "simulation": json.dumps(simulation(base_url, episodes)),
            "learning_rate": 0.0, "per_device_train_batch_size": episodes, "max_steps": repeats, "save_strategy": "no",
            "train_rows_kwargs": '{"count": 64, "seed": 1}', "disable_tqdm": "true",
        }  # fmt: skip
        config = ROOT / "recipes" / "trl" / "sim_table_tiny.yaml"
        trainer, _ = train.build(
            ["--config", str(config), *(part for name, value in flags.items() for part in (f"--{name}", str(value)))]
        )
        loop, found = trainer._tool_call_loop, []

        def timed(*args: Any, **kwargs: Any) -> Any:
            with Recorded() as bodies:
                start = time.perf_counter()
                result = loop(*args, **kwargs)
                seconds = time.perf_counter() - start
            alone = len(bodies) / bare(base_url, bodies, episodes)
            found.append({"server": alone, "episodes": len(bodies) / seconds, "ratio": len(bodies) / seconds / alone})
            return result

        trainer._tool_call_loop = timed
        trainer.train()
    return figures(found, None)


def figures(found: Sequence[dict[str, float]], requests: int | None) -> dict[str, Any]:
    ratios = [one["ratio"] for one in found]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "requests_a_repeat": requests,
        "server_per_second": round(statistics.median(one["server"] for one in found), 1),
        "episodes_per_second": round(statistics.median(one["episodes"] for one in found), 1),
        "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "ratio_of_each_repeat": [round(ratio, 3) for ratio in ratios],
    }


# -- prefixes --------------------------------------------------------------------------------------------------------------


def prefixes(vllm: str | None, model: str | None) -> dict[str, Any]:
    """Of each question's tokens, how many are those of the question before it in the episode, with its answer."""
    from wm_plugin.client.answers import Answer
    from wm_plugin.data.prompts import load
    from wm_plugin.data.schema import Action, Call, Context, Trajectory
    from wm_plugin.lab.tiny.world_model import world_tokenizer
    from wm_plugin.worlds.wrappers.simulated_episode import Simulation

    tokenizer, shared, total, questions = world_tokenizer(), 0, 0, []
    for row in grid.dataset_rows(32, seed=1):
        world, rng = grid.GridEnvironment(), random.Random(row["board"])
        episode, before = Simulation(load("word2world")), []
        episode.reset(
            Trajectory(turns=(), context=Context(initial_state=world.reset(row["board"])), task_id=row["board"])
        )
        while not world.over:
            direction = rng.choice("UDLR")
            action = Action(calls=(Call(name="move", arguments={"direction": direction}),))
            messages = episode.question(action)
            questions.append(messages)
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            ids = tokenizer(text).input_ids
            if before:
                same = next(
                    (n for n, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), min(len(before), len(ids))
                )
                shared, total = shared + same, total + len(ids)
            before = ids
            episode.step(action, Answer(world.move(direction)))
    found: dict[str, Any] = {"by": "the tokenizer of the tiny world model", "questions": len(questions)}
    found["share_of_a_prompt_that_was_the_one_before"] = round(shared / total, 4)
    found |= _cached_generation(tokenizer, questions)
    if vllm is not None:
        found["vllm"] = _of_vllm(vllm, str(model), questions)
    return found


def _cached_generation(tokenizer: Any, questions: Sequence[Any]) -> dict[str, Any]:
    """transformers with a cache: seconds of reading an episode's longest prompt with and without what was read before."""
    import torch

    from wm_plugin.lab.tiny.policy import make_model

    torch.set_num_threads(1)
    model = make_model(tokenizer, seed=0).eval()
    text = tokenizer.apply_chat_template(max(questions, key=len), add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(text).input_ids])
    known = ids.shape[1] - 23  # the last observation, its end and the action
    whole, rest = [], []
    with torch.inference_mode():
        for _ in range(20):
            start = time.perf_counter()
            model(input_ids=ids, use_cache=True)
            whole.append(time.perf_counter() - start)
            cache = model(input_ids=ids[:, :known], use_cache=True).past_key_values
            start = time.perf_counter()
            model(input_ids=ids[:, known:], past_key_values=cache, use_cache=True)
            rest.append(time.perf_counter() - start)
    return {
        "engine": "transformers with a cache, the tiny model",
        "prompt_tokens": int(ids.shape[1]),
        "ms_whole": round(1e3 * statistics.median(whole), 2),
        "ms_with_prefix": round(1e3 * statistics.median(rest), 2),
    }


def _of_vllm(base_url: str, model: str, questions: Sequence[Any]) -> dict[str, Any]:
    """What vLLM counts of its prefix cache, over the questions in their order."""
    import urllib.request

    def counters() -> dict[str, float]:
        with urllib.request.urlopen(f"{base_url.removesuffix('/v1')}/metrics") as page:
            lines = page.read().decode().splitlines()
        return {
            line.split("{")[0]: float(line.rsplit(" ", 1)[1])
            for line in lines
            if "prefix_cache" in line and line[0] != "#"
        }

    from wm_plugin.client.server import Server

    server, before = Server(base_url, model, api_key_env=None, max_tokens=1), counters()
    for messages in questions:
        server.complete([messages])
    after = counters()
    read, cached = (
        int(after[name] - before.get(name, 0.0))
        for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    )
    return {"prompt_tokens": read, "from_its_cache": cached, "share": round(cached / read, 4)}


# -- the file --------------------------------------------------------------------------------------------------------------


def save(part: str, found: dict[str, Any], options: argparse.Namespace) -> None:
    whole = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    versions = {name: metadata.version(name) for name in ("transformers", "torch")} | {
        "python": platform.python_version()
    }
    about = {"cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1), "versions": versions}
    whole[part] = found | {"about": about}
    RESULTS.write_text(json.dumps(dict(sorted(whole.items())), indent=2) + "\n")
    RESULTS.with_suffix(".md").write_text(tables(whole))
    stamp(RESULTS, vars(options), [part])


def tables(whole: dict[str, Any]) -> str:
    lines = [
        "Episodes in a world model against the bare server, by `python benchmarks/simulated.py`. The ratio is the median of the "
        "repeats, with their quartiles; a repeat measures both. Above as many cores in the load average, the machine was shared.",
        "",
        "| host | server | its own answers/s | in episodes | ratio | quartiles | repeats | load average / cores |",
        "|---|---|---:|---:|---:|---|---:|---|",
    ]
    for host in ("verl", "trl"):
        for server, one in whole.get(host, {}).items():
            if server == "about":
                continue
            about = whole[host]["about"]
            cells = [host, server, one["server_per_second"], one["episodes_per_second"], one["ratio"]]
            cells += [" to ".join(map(str, one["quartiles"])), len(one["ratio_of_each_repeat"])]
            lines.append(f"| {' | '.join(map(str, [*cells, '{load_average} / {cores}'.format(**about)]))} |")
    if "prefix" in whole:
        one = whole["prefix"]
        lines += [
            "",
            f"A prompt only ever grows: {one['share_of_a_prompt_that_was_the_one_before']:.1%} of a question's tokens are those "
            f"of the question before it ({one['questions']} questions, by {one['by']}). {one['engine']}: {one['ms_whole']} ms "
            f"for a prompt of {one['prompt_tokens']} tokens, {one['ms_with_prefix']} ms with what was read before.",
        ]
        if "vllm" in one:
            vllm = one["vllm"]
            lines += [
                "",
                f"vLLM took {vllm['share']:.0%} of the prompts' {vllm['prompt_tokens']:,} tokens from its cache, by its own "
                "count: whole blocks alone, and the first question of an episode has none before it.",
            ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", choices=("trl", "verl"))
    parser.add_argument("--world", type=Path, metavar="DIR", help="a tiny world model to serve, too")
    parser.add_argument("--prefix", action="store_true")
    parser.add_argument("--vllm", metavar="URL", help="a server of vLLM's, with --model, for --prefix")
    parser.add_argument("--model", help="its model's name")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--trial", action="store_true", help="a repeat of few episodes, into no file")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        port, latency, at_most = options.serve
        serve(int(port), float(latency), int(at_most))
        return
    if not (options.host or options.prefix):
        parser.error("name the --host whose environment this is, or --prefix")
    measure = {"verl": on_verl, "trl": on_trl}.get(options.host)
    if measure is not None:
        repeats = 1 if options.trial else options.repeats
        episodes, of_model = (8, 8) if options.trial else (EPISODES, MODEL_EPISODES)
        found = {}
        with fixed() as url:
            found[f"{LATENCY * 1e3:g} ms, {AT_MOST} at once"] = measure(url, episodes, repeats)
        if options.world is not None:
            with tiny_model(options.world) as url:
                found["a tiny world model"] = measure(url, of_model, repeats)
        print(json.dumps(found, indent=2))
        if not options.trial:
            save(options.host, found, options)
    if options.prefix:
        found = prefixes(options.vllm, options.model)
        print(json.dumps(found, indent=2))
        if not options.trial:
            save("prefix", found, options)


if __name__ == "__main__":
    main()
