"""The figures that need a GPU: three calls of at most nine minutes each, on one H100 that reaches nothing else.

`gpu_pack.py` packs what travels with each call:

    sh gpu/speed/run.sh RESULTS      # the term's cost at 0.5B, random weights of Qwen2.5's shape, bf16, 4k tokens (step_time.py)
    sh gpu/table/run.sh RESULTS      # SmolLM2-135M on the grid: 200 steps of GRPO at coefficients 0 and 0.05
    sh gpu/rewards/run.sh RESULTS    # a judge's verdicts and embeddings a second, random weights

Each writes RESULTS/<part>.json after every piece: the GPU, versions, commit, settings, and `finished`, which is false until its
last piece is there. A part ends by itself at --minutes with what it has by then, and exit code 1. `--tiny` runs it on a CPU in
seconds. No figure of these is in the repository: no GPU was at hand, and the settings are not tuned on one. The question and the
rule of the table stand below. The table has one seed and one base, and no perplexity, since the vocabulary is cut to single
characters to fit into a call: grid_135m.py has that, a second base and three seeds, on a CPU.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

MINUTES = 8.0  # of nine: starting Python and reading weights takes some
COEFFS = (0.0, 0.05)
TABLE = {
    "question": "does GRPO with the term keep a 135M model's world model, and does success change?",
    "rule": "written before the run: one seed, so no claim; held-out success with its standard error of independent boards, and "
    "NLL and exact match of the next board, of the start and of both arms, at the last step that both reached",
}
SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "repeats": 30,
        "table": {
            "sft_steps": 300,
            "sft_rate": 3e-4,
            "cloning_steps": 120,
            "cloning_rate": 2e-4,
            "steps": 200,
            "every": 25,
            "episodes": 128,
            "rate": 2e-5,
            "boards": 512,
        },
        "judge": {"prompt": 1024, "verdict": 64, "at_once": (1, 8, 32, 128)},
        "texts": 4096,
    },
    "tiny": {
        "repeats": 2,
        "table": {
            "sft_steps": 2,
            "sft_rate": 3e-3,
            "cloning_steps": 2,
            "cloning_rate": 2e-3,
            "steps": 2,
            "every": 1,
            "episodes": 16,
            "rate": 3e-4,
            "boards": 16,
        },
        "judge": {"prompt": 16, "verdict": 4, "at_once": (1, 2)},
        "texts": 16,
    },
}
QWEN = {  # Qwen2.5-0.5B's shape
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
MINILM = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


class TimeIsUp(Exception):
    """A part's minutes are over."""


class Result(dict[str, Any]):
    """A part's figures, which are written whenever some are added."""

    def __init__(self, path: Path, **facts: Any) -> None:
        super().__init__(facts, finished=False)
        self.path, self.began = path, time.monotonic()
        self.add()

    def add(self, **figures: Any) -> None:
        self.update(figures, seconds=round(time.monotonic() - self.began, 1))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self, indent=1) + "\n")
        new.replace(self.path)


@contextmanager
def limit(minutes: float) -> Iterator[None]:
    """Raise TimeIsUp in the block once so many minutes have passed."""

    def ring(*_: Any) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- the term's cost -----------------------------------------------------------------------------------------------------------


def speed(result: Result, size: dict[str, Any], options: argparse.Namespace) -> None:
    import step_time

    for found in step_time.measure("tiny" if options.tiny else "cuda", size["repeats"]):
        for row in found["arms"]:
            row["tokens_a_second"] = found["tokens"] / row["seconds_median"]
        result.add(**found)


# -- the table of the 135M model -----------------------------------------------------------------------------------------------


def table(result: Result, size: dict[str, Any], options: argparse.Namespace) -> None:
    """Warm start, then both arms side by side in processes of their own, which share the GPU."""
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
    from wm_plugin.lab.tiny.warm_start import behaviour_cloning, world_model_sft

    tokenizer = make_tokenizer()
    if options.tiny and not (options.packed / "weights.bin").exists():
        model: Any = make_model(tokenizer, 0)
    else:
        import gpu_pack

        model = gpu_pack.load_weights(options.packed)
    model = model.to(device(options))
    result.add(**TABLE, parameters=model.num_parameters(), untrained=measured(model, tokenizer, size))
    exact = world_model_sft(model, tokenizer, 0, max_steps=size["sft_steps"], rate=size["sft_rate"])
    behaviour_cloning(model, tokenizer, 0, steps=size["cloning_steps"], rate=size["cloning_rate"])
    result.add(exact_after_sft=exact, start=measured(model, tokenizer, size))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        left = options.minutes - (time.monotonic() - result.began) / 60 - 0.3
        flags = ["--packed", folder, "--minutes", str(left), *(["--tiny"] if options.tiny else [])]
        running = {
            coeff: subprocess.Popen(
                [sys.executable, __file__, "table", *flags, "--out", f"{options.out}/arms", "--arm", str(coeff)]
            )
            for coeff in COEFFS
        }
        try:
            while True:
                over = all(process.poll() is not None for process in running.values())
                files = {coeff: options.out / "arms" / f"table_{coeff:g}.json" for coeff in COEFFS}
                arms = {f"{coeff:g}": json.loads(path.read_text()) for coeff, path in files.items() if path.exists()}
                result.add(arms=arms)
                if over:
                    break
                time.sleep(0.2 if options.tiny else 5)
        finally:
            for process in running.values():
                process.kill()
                process.wait()
    if any(not one["finished"] for one in result["arms"].values()) or len(result["arms"]) < len(COEFFS):
        raise TimeIsUp


def arm(result: Result, size: dict[str, Any], options: argparse.Namespace) -> None:
    """200 steps of GRPO at one coefficient, measured on held-out boards now and then."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback
    from trl import GRPOConfig

    from wm_plugin import EchoConfig
    from wm_plugin.lab.tiny.policy import make_tokenizer
    from wm_plugin.lab.tiny.warm_start import TURN_TOKENS, boards_of
    from wm_plugin.trl import WorldModelGRPOTrainer
    from wm_plugin.worlds.grid import MAX_TURNS, GridEnvironment

    tokenizer, generations = make_tokenizer(), 8
    model = AutoModelForCausalLM.from_pretrained(options.packed, dtype=torch.float32)

    class Measure(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ARG002
            if state.global_step % size["every"] == 0:
                rows = [*result.get("steps", []), {"step": state.global_step, **measured(model, tokenizer, size)}]
                result.add(steps=rows)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
            kept = ("reward", "echo/nll", "echo/tokens", "echo/coeff", "step_time")
            if "reward" in (logs or {}):
                result.add(logs=[*result.get("logs", []), {name: logs[name] for name in kept if name in logs}])

    prompt = [{"role": "user", "content": ""}]  # the first board is all
    boards = boards_of(GridEnvironment, size["steps"] * size["episodes"] // generations, 1_000_003)
    cuda = device(options) == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            seed=0,
            use_cpu=not cuda,
            bf16=cuda,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            gradient_checkpointing=False,
            max_steps=size["steps"],
            per_device_train_batch_size=size["episodes"],
            num_generations=generations,
            max_completion_length=TURN_TOKENS * MAX_TURNS + 1,
            max_tool_calling_iterations=MAX_TURNS,
            beta=0.0,
            loss_type="dapo",
            learning_rate=size["rate"],
            lr_scheduler_type="constant",
            warmup_steps=5,
            adam_beta2=0.95,
            weight_decay=0.0,
        )
        trainer = WorldModelGRPOTrainer(
            model=model,
            args=args,
            train_dataset=Dataset.from_list([{"prompt": prompt, "board": board} for board in boards]),
            processing_class=tokenizer,
            environment_factory=GridEnvironment,
            reward_funcs=[],
            world_model=EchoConfig(coeff=options.arm),
            callbacks=[Measure()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def measured(model: Any, tokenizer: Any, size: dict[str, Any]) -> dict[str, float]:
    """Held-out success with its standard error, and NLL (nats a token) and exact match of the next board."""
    from wm_plugin.lab.tiny.held_out import HeldOut

    means = HeldOut(tokenizer, size["boards"]).measure(model).means()
    error = (means["success"] * (1 - means["success"]) / size["boards"]) ** 0.5
    return {**means, "success_standard_error": error}


# -- judges and embeddings -----------------------------------------------------------------------------------------------------


def rewards(result: Result, size: dict[str, Any], options: argparse.Namespace) -> None:
    """A judge is a prompt to read and a verdict to write; an embedding is one forward. Both without a serving engine: a floor."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    judge, place = size["judge"], device(options)
    shape = {**SMALL, "num_key_value_heads": 1, "vocab_size": 128} if options.tiny else QWEN
    with torch.device(place):
        model = Qwen2ForCausalLM(Qwen2Config(**shape)).to(torch.bfloat16 if place == "cuda" else torch.float32).eval()
    rows = []
    for at_once in judge["at_once"]:
        prompt = torch.randint(shape["vocab_size"], (at_once, judge["prompt"]), device=place)
        fixed = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0}

        ask = partial(model.generate, prompt, **fixed)
        ask(max_new_tokens=2, min_new_tokens=2)
        first, whole = (
            timed(partial(ask, max_new_tokens=tokens, min_new_tokens=tokens), place) for tokens in (1, judge["verdict"])
        )
        rows.append(
            {
                "at_once": at_once,
                "verdicts_a_second": at_once / whole,
                "read_tokens_a_second": at_once * judge["prompt"] / first,
                "written_tokens_a_second": at_once * (judge["verdict"] - 1) / max(whole - first, 1e-9),
            }
        )
        result.add(judge={**judge, "parameters": model.num_parameters(), "rows": rows})
    del model
    result.add(embeddings=embeddings(size["texts"], place, tiny=options.tiny))


def embeddings(count: int, place: str, *, tiny: bool) -> dict[str, Any]:
    """Texts and tokens a second of the reward itself, with a random model of all-MiniLM-L6-v2's shape and a token a byte."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer  # deprecated in 6, and all that 5 has
    from transformers import BertConfig, BertModel

    from rewards import pairs
    from support.tiny import byte_level, fast
    from wm_plugin.rewards import EmbeddingReward

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = fast(byte_level(), None)
        config = BertConfig(**(SMALL if tiny else MINILM), vocab_size=len(tokenizer), max_position_embeddings=512)
        BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        modules = Transformer(folder, max_seq_length=256), Pooling(config.hidden_size)
        SentenceTransformer(modules=list(modules), device="cpu").save(f"{folder}/model")
        reward = EmbeddingReward(f"{folder}/model", 0.2, device=place, batch_size=256)
        predictions, targets = pairs(count, 6)
        reward(*pairs(16, 6, seed=1))
        seconds = timed(lambda: reward(predictions, targets), place)
    texts = {*predictions, *targets}
    tokens = sum(len(row) for row in tokenizer([*texts], truncation=True, max_length=256).input_ids)
    return {
        "parameters": sum(one.numel() for one in BertModel(config).parameters()),
        "texts": len(texts),
        "rewards_a_second": count / seconds,
        "texts_a_second": len(texts) / seconds,
        "tokens_a_second": tokens / seconds,
    }


def timed(function: Any, place: str) -> float:
    if place == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if place == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


# -- all parts -----------------------------------------------------------------------------------------------------------------

PARTS = {"speed": speed, "table": table, "rewards": rewards}


def device(options: argparse.Namespace) -> str:
    return "cpu" if options.tiny else "cuda"


def facts(options: argparse.Namespace, settings: Any) -> dict[str, Any]:
    manifest = options.packed / "manifest.json"
    here = Path(__file__).parents[1]
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    import wm_plugin

    return {
        "part": options.part,
        "gpu": f"none: a CPU ({platform.machine()}), tiny sizes" if options.tiny else torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "transformers": transformers.__version__}
        | {"trl": trl.__version__, "python": platform.python_version()},
        "commit": json.loads(manifest.read_text())["commit"] if manifest.exists() else git.stdout.strip(),
        "code": str(Path(wm_plugin.__file__).parents[1]),
        "settings": settings,
        "minutes": options.minutes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--packed", type=Path, default=Path("."), help="the folder that gpu_pack.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"the part ends then (default: {MINUTES:g})")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, in seconds, to see that it runs")
    parser.add_argument("--arm", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        parser.error("there is no GPU; --tiny runs on a CPU")
    torch.set_float32_matmul_precision("high")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    size = SIZES["tiny" if options.tiny else "full"]
    settings = size["table"] if options.part == "table" else size
    name = options.part if options.arm is None else f"table_{options.arm:g}"
    result = Result(options.out / f"{name}.json", **facts(options, settings))
    try:
        with limit(options.minutes):
            (PARTS[options.part] if options.arm is None else arm)(result, settings, options)
    except TimeIsUp:
        print(f"{options.part}: cut after {result['seconds']:.0f} s; {result.path} has what was done", file=sys.stderr)
        return 1
    result.add(finished=True)
    print(f"{result.path}: {result['seconds']:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
