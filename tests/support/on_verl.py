"""verl's real workers on tiny random models and made-up rollouts: batches as the trainer hands them over, gradients as they come.

The models are float64, so that a difference is one in the objective and not in rounding. verl's table of precisions ends at
float32, although nothing behind it does: `fp64` is added to it here.

Scripts set VERL_PLATFORM=cpu; for tests on_verl/conftest.py does.
"""

import contextlib
import functools
import os
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

from support.tiny import qwen2
from wm_plugin import EchoConfig
from wm_plugin.objectives import Objectives, RunObjective, Span, column
from wm_plugin.objectives.weigh import weigh
from wm_plugin.tokens.spans import Origin
from wm_plugin.verl.loss import world_model_loss
from wm_plugin.verl.names import COEFF, NUM_TOOLS, SUMS
from wm_plugin.verl.trainer import Row, make_columns
from wm_plugin.verl.worker import WorldModelTrainingWorker

torch.set_num_threads(1)  # the models are tiny: threads cost more than they save

VOCABULARY, PAD, EOS = 96, 0, 1
# a name with "max" and one with "min" in it: verl reduces metrics by such names
TOOLS = ("run_code", "lookup_max", "admin")
# the category of each tool's results, where turn information is asked for; the made-up tokens say nothing
CATEGORIES = {"run_code": "echo", "lookup_max": "transform", "admin": "retrieval", None: "other"}
LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

_PLAIN_FORWARD = Qwen2ForCausalLM.forward  # verl replaces it in the class for some settings


def _with_float64(known: Any) -> Any:
    return lambda precision: torch.float64 if precision in ("fp64", torch.float64) else known(precision)


PrecisionType.to_dtype = staticmethod(_with_float64(PrecisionType.to_dtype))


# -- rollouts --------------------------------------------------------------------------------------------------------------


class Rollout(NamedTuple):
    prompt: list[int]
    response: list[int]
    mask: list[int]  # 1 = sampled by the policy
    spans: list[Span]
    advantage: float = 0.0
    padding: bool = False


def row_of(rollout: Rollout, extra: Mapping[str, Any] | None = None) -> Row:
    """The rollout as the trainer reads it from a batch."""
    mask = torch.tensor(rollout.mask)
    return Row("prompt", rollout.response, mask, rollout.advantage, extra or {}, rollout.padding)


def make_rollouts(count: int, *, seed: int = 0, silent: Sequence[int] = (), padding: int = 0) -> list[Rollout]:
    """Turns with the results of one or two calls between them, and at the end the rows that verl fills a batch up with.

    `silent`: rollouts that never call a tool.
    """
    luck = random.Random(seed)
    rollouts = [_rollout(luck, blocks=0 if index in silent else luck.randint(1, 3)) for index in range(count)]
    # verl's: 127 tokens of prompt and one of response
    return rollouts + [Rollout([EOS] * 127, [EOS], [0], [], padding=True)] * padding


def _rollout(luck: random.Random, blocks: int) -> Rollout:
    def tokens(least: int, most: int) -> list[int]:
        return [luck.randrange(2, VOCABULARY) for _ in range(luck.randint(least, most))]

    prompt, response, mask, spans = tokens(3, 9), [], [], []

    def environment(found: list[int], tool: str | None, content: bool) -> None:
        role = "environment" if tool is None else "tool"
        spans.append(Span(len(response), len(response) + len(found), role, tool, content))
        response.extend(found)
        mask.extend([0] * len(found))

    for block in range(blocks + 1):
        turn = tokens(2, 6)
        response.extend(turn)
        mask.extend([1] * len(turn))
        if block == blocks:
            break
        environment(tokens(1, 1), None, False)
        for _ in range(luck.randint(1, 2)):
            tool = luck.choice(TOOLS)
            environment(tokens(2, 3), tool, False)
            environment(tokens(1, 8), tool, True)
        environment(tokens(2, 3), tool, False)
    return Rollout(prompt, response, mask, spans, luck.gauss(0, 1))


def naive_weights(
    rollout: Rollout,
    tools: Mapping[str, float] | None = None,
    *,
    content_only: bool = True,
) -> torch.Tensor:
    """(1, T) multipliers token by token, without the package."""
    weights = torch.zeros(1, len(rollout.response), dtype=torch.float64)
    for start, end, _role, tool, content in rollout.spans:
        for token in range(start, end):
            if content or not content_only:
                weights[0, token] = 1.0 if tools is None else tools.get(tool, 0.0)
    return weights


def padded(rollout: Rollout) -> dict[str, torch.Tensor]:
    """A rollout as `trl_reference.term_gradient` takes a batch."""
    prompt, completion = torch.tensor([rollout.prompt]), torch.tensor([rollout.response])
    return {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": completion,
        "completion_mask": torch.ones_like(completion),
        "tool_mask": torch.tensor([rollout.mask]),
    }


# -- batches ---------------------------------------------------------------------------------------------------------------


def make_batch(
    rollouts: Sequence[Rollout],
    echo: EchoConfig | Mapping[str, EchoConfig] | None = None,
    *,
    spans: list[list[tuple[Span, float]]] | None = None,
    tools: list[str] | None = None,
    mini: int | None = None,
    ranks: int = 1,
    dtype: torch.dtype = torch.float64,
    **settings: Any,
) -> TensorDict:
    """What the trainer sends to one worker; with `echo`, our columns too.

    Args:
        rollouts: this worker's rows.
        spans: of each row, with their multipliers, where an agent loop has told them.
        tools: names that have figures of their own; those of the made-up rollouts by default.
        mini: rows of a mini-batch over all ranks; all by default.
        settings: further values that travel with the batch, over the defaults.
    """
    rows = []
    for rollout in rollouts:
        luck = torch.Generator().manual_seed(sum(rollout.response))  # the rollout's own, whatever batch it is in
        ids = torch.tensor([*rollout.prompt, *rollout.response])
        mask = torch.tensor(rollout.mask)
        noise = torch.randn(2, len(mask), generator=luck, dtype=torch.float64).to(dtype)
        rows.append(
            {
                "input_ids": ids,
                "position_ids": torch.arange(len(ids)),
                "prompts": torch.tensor(rollout.prompt),
                "responses": torch.tensor(rollout.response),
                "response_mask": mask,
                "loss_mask": mask,
                "advantages": (rollout.advantage * mask).to(dtype),
                # near those of a model that knows nothing: some ratios are clipped, others are not
                "old_log_probs": -4.6 + noise[0] / 2,
                "ref_log_prob": -4.6 + noise[1] / 2,
            }
        )
    batch = TensorDict(
        {name: torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged) for name in rows[0]}
        | {"row": torch.arange(len(rows)).unsqueeze(1)},  # so that a test can tell which rows an update had
        batch_size=len(rows),
    )
    for name, one in named(echo).items():
        names = tool_names(one) if tools is None else tools
        weighed = spans or [
            weigh((Origin(span, category=CATEGORIES[span.tool]) for span in rollout.spans), one) for rollout in rollouts
        ]
        batch.update(make_columns(running(one, names, name=name), weighed, [row_of(rollout) for rollout in rollouts]))
        settings = {column(COEFF, name): one.coeff, column(NUM_TOOLS, name): len(names), **settings}
    mini = len(rollouts) * ranks if mini is None else mini
    tu.assign_non_tensor(
        batch,
        **{
            "temperature": 1.0,
            "calculate_entropy": False,
            "global_batch_size": mini,
            "mini_batch_size": mini,
            "epochs": 1,
            "seed": 1,
            "dataloader_kwargs": {"shuffle": False},
            "micro_batch_size_per_gpu": 4,
            **settings,
        },
    )
    return batch


def named(echo: EchoConfig | Mapping[str, EchoConfig] | None) -> Mapping[str, EchoConfig]:
    """A run's objectives by name; a run's only one has none."""
    return {} if echo is None else echo if isinstance(echo, Mapping) else {"": echo}


def running(echo: EchoConfig, tools: Sequence[str] = (), *, name: str = "", **settings: Any) -> RunObjective:
    """An objective of a run, as the trainer has it."""
    one = RunObjective(name, echo, limit="data.max_response_length", **settings)
    one.tools = list(tools)
    return one


def tool_names(echo: EchoConfig) -> list[str]:
    """The tools in the order of their numbers, as the trainer keeps them."""
    return sorted(TOOLS if echo.tool_names is None else echo.tool_names)


def policy_loss(*, loss_mode: str = "vanilla", **fields: Any) -> Any:
    """verl's own loss of an actor, as its workers make it."""
    config = FSDPActorConfig(
        strategy="fsdp2",
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode),
        **fields,
    )
    return functools.partial(ppo_loss, config=config)


def with_term(base: Any, echo: EchoConfig | Mapping[str, EchoConfig]) -> Any:
    """The same with the term on top, as `wm_configure` makes it."""
    return functools.partial(world_model_loss, base=base, objectives=Objectives(named(echo)))


# -- workers ---------------------------------------------------------------------------------------------------------------


class Update(NamedTuple):
    """What `train_mini_batch` did, one entry an optimizer step where it is a list."""

    gradients: list[torch.Tensor]  # flat, in the order of the parameters, before clipping
    rows: list[list[int]]
    losses: list[float]
    micro_batches: int
    metrics: dict[str, Any]  # as the trainer reduces them

    @property
    def sums(self) -> list[float]:
        """The sums of `objectives.metrics.token_sums`: means over the updates, as the trainer gets them."""
        numbers = sorted(
            int(name.removeprefix(f"{SUMS}/")) for name in self.metrics if name[-1].isdigit() and SUMS in name
        )
        return [float(self.metrics[f"{SUMS}/{number}"]) for number in numbers]


def save_model(folder: Path, dtype: torch.dtype = torch.float64, **fields: Any) -> None:
    model = qwen2(VOCABULARY, EOS, PAD, **{"initializer_range": 0.1, **fields})
    model.to(dtype).save_pretrained(folder)


@contextlib.contextmanager
def rank_environment() -> Iterator[None]:
    """What verl's workers read when they start: one rank, unless torchrun says otherwise."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # the engines are registered for CUDA
    added = {name: value for name, value in (values | {"VERL_ENGINE_DEVICE": "cuda"}).items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def make_worker(
    folder: Path,
    cls: type[TrainingWorker] = WorldModelTrainingWorker,
    *,
    precision: str = "fp64",
    lr: float = 0.0,
    optimizer: Mapping[str, Any] | None = None,
    mixed: Mapping[str, str] | None = None,
    engine: Mapping[str, Any] | None = None,
    **model: Any,
) -> TrainingWorker:
    """A worker of verl's with FSDP2 on gloo.

    Args:
        mixed: the precisions of "param", "reduce" and "buffer" where they are others.
        engine: further settings of its engine.
        model: of its model.
    """
    mixed = mixed or dict.fromkeys(("param", "reduce", "buffer"), precision)
    model_config = HFModelConfig(
        path=str(folder),
        **{
            "load_tokenizer": False,
            "use_remove_padding": False,
            "override_config": {"attn_implementation": "eager"},
            "enable_gradient_checkpointing": False,
            **model,
        },
    )
    engine_config = FSDPEngineConfig(
        strategy="fsdp2",
        use_dynamic_bsz=False,
        use_torch_compile=False,
        model_dtype=precision,
        mixed_precision={f"{name}_dtype": value for name, value in mixed.items()},
        **(engine or {}),
    )
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=model_config,
        engine_config=engine_config,
        optimizer_config=FSDPOptimizerConfig(lr=lr, clip_grad=1e9, total_training_steps=10, **(optimizer or {})),
        checkpoint_config=CheckpointConfig(),
    )
    with rank_environment():
        worker = cls(config)
        worker.reset()
    if precision == "fp64":
        worker.engine._autocast_dtype = torch.float32  # no autocast: there is none to float64
    return worker


def update(worker: TrainingWorker, loss: Any, batch: TensorDict) -> Update:
    """One call of `train_mini_batch`, as the trainer makes it."""
    worker.set_loss_fn(loss)
    gradients: list[torch.Tensor] = []
    rows: list[list[int]] = []
    with _observed(worker, gradients, rows) as micro_batches:
        output = worker.train_mini_batch(batch.clone())
    metrics = dict(tu.get(output, "metrics"))
    losses = list(metrics["loss"])
    return Update(gradients, rows, losses, len(micro_batches), reduce_metrics(metrics))


@contextlib.contextmanager
def _observed(worker: TrainingWorker, gradients: list[torch.Tensor], rows: list[list[int]]) -> Iterator[list[Any]]:
    engine, micro_batches = worker.engine, []
    step, train, forward = engine.optimizer_step, engine.train_batch, engine.forward_step

    def optimizer_step() -> Any:
        gradients.append(flat([p.grad for p in engine.module.parameters() if p.requires_grad]))
        return step()

    def train_batch(data: Any, *args: Any, **kwargs: Any) -> Any:
        rows.append(data["row"][:, 0].tolist())
        return train(data, *args, **kwargs)

    def forward_step(data: Any, *args: Any, **kwargs: Any) -> Any:
        micro_batches.append(len(data))
        return forward(data, *args, **kwargs)

    engine.optimizer_step, engine.train_batch, engine.forward_step = optimizer_step, train_batch, forward_step
    try:
        yield micro_batches
    finally:
        del engine.optimizer_step, engine.train_batch, engine.forward_step


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    whole = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors]
    return torch.cat([t.detach().flatten().clone() for t in whole])


def parameters(worker: TrainingWorker) -> torch.Tensor:
    return flat(list(worker.engine.module.parameters()))


def plain_model(worker: TrainingWorker) -> torch.nn.Module:
    """The worker's model as plain transformers has it, in float64, with the worker's weights."""
    config = worker.model_config
    model = AutoModelForCausalLM.from_pretrained(config.local_path, dtype=torch.float64, attn_implementation="eager")
    if config.lora_rank:
        model = get_peft_model(
            model, LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=config.target_modules)
        )
    base = model.get_base_model() if config.lora_rank else model
    base.forward = MethodType(_PLAIN_FORWARD, base)
    mine = dict(worker.engine.module.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(mine[name].full_tensor())
    return model
