"""The demo: reinforcement learning forgets the world model that a policy starts with; the world-model objective keeps it.

A tiny policy learns to predict a grid world and to walk in it. From there GRPO runs twice on TRL's trainer, with coefficient 0
(the stock trainer) and .05, the advised one. Both are measured on held-out wall layouts: whether they reach the goal, what they
know of the world, and what looking ahead with that is worth. The policies and the predicted episodes stay on disk for `wm eval`.
"""

import copy
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig

from wm_plugin.data.outputs import check_derived, check_folder, write_text
from wm_plugin.data.write import check_outputs
from wm_plugin.data.write import write as write_trajectories
from wm_plugin.errors import UserError
from wm_plugin.lab.report import write
from wm_plugin.lab.tiny.folder import check_out, save
from wm_plugin.lab.tiny.held_out import HeldOut
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.lab.tiny.warm_start import (
    CLONING_STEPS,
    HEADS,
    SFT_STEPS,
    STOP_AT,
    TURN_TOKENS,
    World,
    behaviour_cloning,
    boards_of,
    world_model_sft,
)
from wm_plugin.objectives import EchoConfig
from wm_plugin.runtime.arithmetic import has_plain_kernels
from wm_plugin.runtime.page import check_extra
from wm_plugin.trl.demo.page import make_report
from wm_plugin.trl.demo.report import Arm, make_claims, tell, tell_look_ahead
from wm_plugin.trl.trainer import WorldModelGRPOTrainer
from wm_plugin.untrusted import loads
from wm_plugin.worlds.grid import MAX_TURNS, GridEnvironment

COEFFS = (0.0, 0.05)
LAYERS = 2
STEPS, GROUPS, GENERATIONS = 30, 8, 8  # of GRPO, and in each step
RATE = 1e-3
FILES = ("result.json", "report.html", "held_out.jsonl")
POLICIES, MARK = "policies", "policy.json"  # the models' folders, and a file in each
START = "start"
_TRAINING_SEED = 1_000_003  # other boards than the warm start's

Progress = Callable[[str, int, int], None]  # receives what runs, steps done, steps planned


class _Watch(TrainerCallback):
    """Shows progress, and measures on held-out boards every few steps; counts the time of measuring apart."""

    def __init__(self, arm: Arm, held_out: HeldOut, every: int, progress: Progress) -> None:
        self.arm, self.held_out, self.every, self.progress = arm, held_out, every, progress
        self.cpu_seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the host's names
        self.progress(f"GRPO, {self.arm.name}", state.global_step, state.max_steps)
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            began = time.process_time()
            self.arm.evaluations.append((state.global_step, self.held_out.measure(kwargs["model"])))
            self.cpu_seconds += time.process_time() - began


def run_demo(
    steps: int = STEPS,
    seed: int = 0,
    out: str | Path = "demo",
    progress: Progress | None = None,
    *,
    warm_steps: int | None = None,
    boards: int = 256,
) -> dict[str, Any]:
    """Run the demo on one CPU thread and write `report.html` and `result.json` into `out`.

    For `wm eval` it also writes the policies (`policies/start`, `policies/coeff_0`, `policies/coeff_0.05`), and
    the episodes on which `env_nll` and `exact` are measured (`held_out.jsonl`).

    Args:
        steps: each arm's GRPO steps, of 64 episodes each.
        seed: of the start, both arms and their boards. The evaluation's boards are always the same.
        out: a folder, which is created.
        progress: receives what runs, the steps done and the steps planned.
        warm_steps: limits each stage of the warm start; None for as many steps as it needs.
        boards: held-out boards to play; half as many are walked for the one-step evaluation, and one in four is also played
            looking ahead.

    Returns:
        The contents of `result.json`: `arms` (all measures held out; `env_nll` in nats a token), `answers` (three sentences),
        `look_ahead` (what the policies gain from their world models), `claims`, `warm_start`, `kernels` ("plain": the same digits
        on every x86 processor), `report`, `policies` (their folders), `held_out`, ...

    Raises:
        MissingExtraError: jinja2 is not installed.
        UserError: `steps` is less than 1, or `out` is a file or holds files or folders of these names from elsewhere.
    """
    check_extra("the demo", "demo")  # fail before minutes of training
    if steps < 1:
        raise UserError(f"steps is {steps}; a demo needs 1 or more")
    out = Path(out)
    check_folder(out)
    progress = progress or (lambda *_: None)
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        check_derived(out / name, lambda _: _is_ours(out), "what a demo writes", "name another folder with --out")
    check_outputs(out / "held_out.jsonl")
    policies = {name: out / POLICIES / name for name in (START, *map(_folder_of, COEFFS))}
    for folder in policies.values():
        check_folder(folder)
        check_out(folder, MARK, "a policy of the demo")
    began = time.process_time()
    with _quiet():
        tokenizer = make_tokenizer()
        model = make_model(tokenizer, seed, HEADS, layers=LAYERS)
        warm_start = _warm_start(model, tokenizer, seed, warm_steps, progress)
        held_out = HeldOut(tokenizer, boards)
        start = held_out.measure(model)
        ahead = held_out.look_ahead(model)
        arms = [Arm(coeff, start, [ahead]) for coeff in COEFFS]
        models = {START: model}
        for arm in arms:
            models[_folder_of(arm.coeff)] = trained = copy.deepcopy(model)
            _train(arm, trained, tokenizer, steps, seed, held_out, progress)
        before = held_out.predict(model)
    claims, look_ahead = make_claims(arms, held_out, steps), tell_look_ahead(arms, held_out, steps)
    result = {
        "arms": [arm.as_dict() for arm in arms],
        "answers": tell(arms, claims, look_ahead),
        "look_ahead": look_ahead,
        "claims": claims,
        "warm_start": warm_start,
        "steps": steps,
        "seed": seed,
        "boards": boards,
        "kernels": "plain" if has_plain_kernels() else "this processor's",
        "report": str(out / "report.html"),
        "policies": {name: str(folder) for name, folder in policies.items()},
        "held_out": str(out / "held_out.jsonl"),
    }
    result["cpu_seconds"] = time.process_time() - began
    page = make_report(result, arms, before, held_out)
    write_text(
        out / "result.json", json.dumps(result, indent=1) + "\n"
    )  # first, since the next demo recognises its folder by it
    write_trajectories(held_out.episodes(), out / "held_out.jsonl")
    for name, folder in policies.items():
        with _quiet():
            save(models[name], tokenizer, folder, MARK, {"policy": name, "steps": steps, "seed": seed})
    write(page, out / "report.html")
    return result


def _folder_of(coeff: float) -> str:
    return f"coeff_{coeff:g}"


def _is_ours(folder: Path) -> bool:
    """Return whether a demo wrote a folder, by its result."""
    try:
        return {"arms", "look_ahead", "claims", "warm_start"} <= set(loads((folder / "result.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return False


def _warm_start(model: Any, tokenizer: Any, seed: int, limit: int | None, progress: Progress) -> dict[str, Any]:
    began = time.process_time()
    learn, walk = (partial(progress, what) for what in ("learn to predict the world", "learn to walk"))
    most, steps = (SFT_STEPS, CLONING_STEPS) if limit is None else (limit, limit)
    exact = world_model_sft(model, tokenizer, seed, max_steps=most, progress=learn)
    behaviour_cloning(model, tokenizer, seed, steps=steps, progress=walk)
    return {"exact_reached": exact, "exact_wanted": STOP_AT, "cpu_seconds": time.process_time() - began}


def make_trainer(
    model: Any,
    tokenizer: Any,
    folder: str,
    *,
    steps: int,
    seed: int,
    coeff: float,
    groups: int = GROUPS,
    rate: float = RATE,
    world: World = GridEnvironment,
) -> WorldModelGRPOTrainer:
    """Make the demo's GRPO trainer, which trains `model` in place; the host writes to `folder`."""
    args = GRPOConfig(
        output_dir=folder,
        seed=seed,
        use_cpu=True,
        bf16=False,  # slower on CPUs without bfloat16 units
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        max_steps=steps,
        per_device_train_batch_size=groups * GENERATIONS,
        num_generations=GENERATIONS,
        shuffle_dataset=False,
        max_completion_length=TURN_TOKENS * MAX_TURNS + 1,
        max_tool_calling_iterations=MAX_TURNS,
        beta=0.0,
        loss_type="dapo",
        learning_rate=rate,
        lr_scheduler_type="linear",
        warmup_steps=5,
        adam_beta2=0.95,
        weight_decay=0.0,
    )
    prompt = [{"role": "user", "content": ""}]  # the first observation is all
    boards = boards_of(world, steps * groups, _TRAINING_SEED + seed)
    trainer = WorldModelGRPOTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt, "board": board} for board in boards]),
        processing_class=tokenizer,
        environment_factory=world,
        reward_funcs=[],
        world_model=EchoConfig(coeff=coeff),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _train(arm: Arm, model: Any, tokenizer: Any, steps: int, seed: int, held_out: HeldOut, progress: Progress) -> None:
    """Train `model` with GRPO; `arm` receives the measurements."""
    arm.evaluations.append((0, arm.start))
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(model, tokenizer, folder, steps=steps, seed=seed, coeff=arm.coeff)
        watch = _Watch(arm, held_out, max(1, steps // 3), progress)
        trainer.add_callback(watch)
        began = time.process_time()
        trainer.train()
        arm.cpu_seconds = time.process_time() - began - watch.cpu_seconds
    kept = ("step", "reward", "echo/nll", "echo/tokens", "echo/coeff")
    arm.training = [
        {key: log[key] for key in kept if key in log}
        | {"policy_tokens": round(log["completions/mean_length"] * GROUPS * GENERATIONS)}
        for log in trainer.state.log_history
        if "reward" in log
    ]
    arm.predictions = held_out.predict(model)
    arm.ahead.append(held_out.look_ahead(model))


@contextmanager
def _quiet() -> Any:
    """Use one thread (more are slower at this size), and silence the host's warnings and progress bars."""
    threads, verbosity = torch.get_num_threads(), transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
