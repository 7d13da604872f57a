"""Real TRL trainers on tiny random models, with scripted turns instead of sampled ones: what TRL does with them is real.

A random model never calls a tool, so `Scripted` replaces the sampling of a turn (and nothing else). It draws from torch's
generator, so that a difference in random numbers between two runs shows.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
import torch.distributed as dist
import trl
from datasets import Dataset
from packaging.version import Version
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from support.tiny import byte_level, fast, qwen2
from support.tools import ToolEnvironment, call
from wm_plugin.hosting.world import tool_methods
from wm_plugin.trl import WorldModelGRPOTrainer

# an environment's own reward came with 1.8; before it get_reward was taken for a tool
NEEDS_ENVIRONMENTS = pytest.mark.skipif(
    Version(trl.__version__) < Version("1.8"), reason="environments need trl >= 1.8"
)

torch.set_num_threads(1)  # the models are tiny: threads cost more than they save


def make_tokenizer(tools: list[Any] | None = None) -> PreTrainedTokenizerFast:
    """One token a byte, and a chat template of Qwen's that TRL ships.

    The system prompt, a thousand bytes of tool descriptions, is one token: it would only make the tests slow.
    """
    wrapped = fast(byte_level(), chat_template())
    if tools:
        by_name = sorted(tools, key=lambda tool: tool.__name__)  # TRL's order: any other, and the token does not occur
        text = wrapped.apply_chat_template([{"role": "user", "content": ""}], tools=by_name, tokenize=False)
        system = text.partition("<|im_start|>user")[0]
        wrapped.add_tokens([AddedToken(system, special=False, normalized=False)])
    return wrapped


def chat_template() -> str:
    """A template of Qwen's that TRL knows how to parse."""
    if Version(trl.__version__) < Version("1.5"):  # a constant, before there was a folder of templates
        from trl.chat_template_utils import qwen3_chat_template

        return qwen3_chat_template
    return (Path(trl.__file__).parent / "chat_templates/qwen2_5.jinja").read_text()


def make_model(tokenizer: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> Qwen2ForCausalLM:
    vocabulary = len(tokenizer) + (-len(tokenizer)) % 8
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    return qwen2(vocabulary, eos, pad, seed=seed, initializer_range=0.1).to(dtype)


class Scripted:
    """Turns drawn from torch's generator: plain answers, calls, parallel calls, failing calls and unknown tools."""

    silent_rank: int | None = None  # a rank that never calls a tool

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], None]:
        turns = []
        for ids in prompt_ids:
            choice, number = torch.rand(()).item(), int(torch.randint(10**6, ()).item())
            depth = self.processing_class.decode(ids).count("<tool_response>")
            silent = self.silent_rank is not None and self.accelerator.process_index == self.silent_rank
            if silent or depth >= 3 or choice < 0.12:
                text = f"done {number}"
            elif choice < 0.4:
                text = "hm " + call("run_code", code=f"{number}+1")
            elif choice < 0.55:
                text = call("lookup_doc", name="é" * (1 + number % 7))
            elif choice < 0.75:
                text = call("run_code", code="1/0") + "\n" + call("lookup_doc", name="par")
            elif choice < 0.9:
                text = call("run_code", code="raise")
            else:
                text = call("no_such_tool", x=1)
            turns.append(self.processing_class(text + "<|im_end|>").input_ids)
        return turns, None


def reward(completions: list[Any], **_: Any) -> list[float]:
    return [0.001 * (len(str(completion)) % 7) for completion in completions]


def config(**fields: Any) -> GRPOConfig:
    defaults = {
        "output_dir": os.path.join(tempfile.gettempdir(), "wm_plugin_tests"),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "gradient_accumulation_steps": 2,
        "max_completion_length": 300,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1e9,
        "seed": 3,
        "loss_type": "grpo",
    }
    cls = fields.pop("cls", GRPOConfig)
    return cls(**{**defaults, **fields})


def dataset(rows: int = 64) -> Dataset:
    return Dataset.from_list([{"prompt": [{"role": "user", "content": f"task {i}"}]} for i in range(rows)])


class Gradients(TrainerCallback):
    """The flat gradient of each optimizer step, before clipping."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.steps.append(flat_gradient(getattr(model, "module", model)))


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.detach().flatten().clone() for p in model.parameters() if p.grad is not None])


class Batches:
    """Keeps the tensors of every micro-batch that the loss sees."""

    batches: list[dict[str, torch.Tensor]]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if not hasattr(self, "batches"):
            self.batches = []
        self.batches.append({key: value.clone() for key, value in inputs.items() if torch.is_tensor(value)})
        return super()._compute_loss(model, inputs)


class Stock(Batches, Scripted, GRPOTrainer):
    """TRL's own trainer, scripted."""


class Ours(Batches, Scripted, WorldModelGRPOTrainer):
    """Ours."""


def make(
    cls: type[GRPOTrainer],
    *,
    args: Any = None,
    environment: Any = ToolEnvironment,
    rows: Any = None,
    model: Any = None,
    dtype: torch.dtype = torch.float32,
    **kwargs: Any,
) -> GRPOTrainer:
    """A trainer of a tiny model.

    Args:
        args: its config, or fields of `config`.
        environment: a class, several by their names, or None.
        rows: a dataset or a list of rows; prompts alone by default.
        kwargs: the trainer's own.
    """
    worlds = list(environment.values()) if isinstance(environment, dict) else [environment] if environment else []
    tools = [method for world in worlds[:1] for method in tool_methods(world()).values()]
    tokenizer = kwargs.setdefault("processing_class", make_tokenizer(tools or None))
    if worlds:
        kwargs["environment_factory"] = environment
    return cls(
        model=make_model(tokenizer, dtype=dtype) if model is None else model,
        args=config(**(args or {})) if isinstance(args, dict | None) else args,
        train_dataset=Dataset.from_list(rows) if isinstance(rows, list) else dataset() if rows is None else rows,
        **{"reward_funcs": [reward], **kwargs},
    )


def run(cls: type[GRPOTrainer], seed: int | None = 11, **kwargs: Any) -> tuple[GRPOTrainer, list[torch.Tensor]]:
    """Train what `make` makes of these arguments, in float64 by default; the trainer and the gradient of each step."""
    gradients = Gradients()
    trainer = make(cls, **{"dtype": torch.float64, **kwargs}, callbacks=[gradients])
    if seed is not None:  # else that of its config
        torch.manual_seed(seed + trainer.accelerator.process_index)
    trainer.train()
    return trainer, gradients.steps


def series(trainer: GRPOTrainer, name: str) -> list[float]:
    """A figure in each row of the log that has it."""
    return [row[name] for row in trainer.state.log_history if name in row]


def write_and_leave(out: str, results: Any) -> None:
    """Of several processes the first one writes its results; then all of them end together."""
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
