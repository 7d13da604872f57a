"""TRL's real asynchronous trainer without vLLM: its own rollout loop in a thread of this process, and its attention on a CPU.

Replaced are the request of a turn, which a function answers, the transfer of weights, the kernel of tree attention and a
question for a GPU's name. A worker makes what a run needs before the run's first step, so that no test depends on which thread
is faster.
"""

import json
import queue
import tempfile
import threading
import time
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

from support.on_trl import Gradients, ToolEnvironment, call, dataset, make_model, make_tokenizer, reward
from support.reference import selected
from wm_plugin.trl.async_rollout import WorldModelRolloutMixin
from wm_plugin.trl.async_trainer import WorldModelAsyncGRPOTrainer


def flash_attn_varlen_func(
    query, key, value, cu_q, cu_k, max_q, max_k, softmax_scale=None, causal=True, window_size=(-1, -1)
):
    """The kernel's arithmetic in plain torch, a segment after the other: the last query sees all keys of its path."""
    assert causal
    assert window_size == (-1, -1)
    repeat = query.size(1) // key.size(1)
    pieces = []
    for (start, end), (first, last) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        q = query[start:end].transpose(0, 1)
        k, v = (x[first:last].repeat_interleave(repeat, 1).transpose(0, 1) for x in (key, value))
        scores = q @ k.transpose(1, 2) * softmax_scale
        hidden = torch.ones(q.size(1), k.size(1), dtype=torch.bool).triu(k.size(1) - q.size(1) + 1)
        pieces.append((scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(pieces)


def on_a_cpu(monkeypatch: Any) -> None:
    kernel = SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)
    monkeypatch.setattr(packing, "_flash_attn", lambda: kernel)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)  # asks for a GPU's name


class LocalWorker:
    """A rollout worker as `RolloutWorkerProtocol` has it, with TRL's loop in a thread.

    Args:
        loop_cls: the class of the loop.
        ready: samples that are made before `start` returns, after which the loop ends; None: it goes on until `stop`.
        settings: the loop's.
    """

    def __init__(self, loop_cls: type, ready: int | None = None, **settings: Any) -> None:
        self.rollout_buffer: queue.Queue = queue.Queue()
        self.metrics_queue: queue.Queue = queue.Queue()
        self.samples: list[Any] = []  # those that were ready
        self._version, self._failed, self._errors = SimpleNamespace(value=0), threading.Event(), queue.Queue()
        self._ready = ready
        self.loop = loop_cls(
            rollout_buffer=self.rollout_buffer,
            model_version_value=self._version,
            heartbeat_value=SimpleNamespace(value=0.0),
            failed_event=self._failed,
            exception_info_queue=self._errors,
            metrics_queue=self.metrics_queue,
            model_name="local",
            max_inflight_tasks=1,  # one conversation after the other: always in the same order
            **settings,
        )

    def start(self) -> None:
        self._thread = threading.Thread(target=self.loop.run, daemon=True)
        self._thread.start()
        if self._ready is not None:
            while self.rollout_buffer.qsize() < self._ready and self._thread.is_alive():
                time.sleep(0.002)
            self.stop()
            self.samples = list(self.rollout_buffer.queue)

    def stop(self) -> None:
        with suppress(RuntimeError):  # it has ended
            self.loop._loop.call_soon_threadsafe(self.loop._stop_event.set)
        self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        self._version.value = model_version

    def check_health(self, stale_after_s: float) -> None:
        if self._failed.is_set() or not self._thread.is_alive():
            raise RuntimeError("the loop has ended" if self._errors.empty() else self._errors.get()[2])


class NoTransfer:
    """A transfer of weights that moves none."""

    def init_weight_transfer(self) -> None: ...

    def pause(self) -> None: ...

    def send_weights(self, iterator: Any) -> None: ...

    def resume(self) -> None: ...

    def destroy(self) -> None: ...


class LocalPolicy(NoTransfer):
    """Turns of one token, sampled by transformers from a copy of the policy among some tokens; it takes the policy's weights as
    the host sends them."""

    def __init__(self, model: Any, allowed: list[int]) -> None:
        self.model, self._allowed = model, allowed
        self.synced, self._turns, self._lock = 0, 0, threading.Lock()

    def send_weights(self, iterator: Any) -> None:
        with self._lock, torch.no_grad():
            for name, weights in iterator:
                self.model.get_parameter(name).copy_(weights)
            self.synced += 1

    def __call__(self, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
        self._turns += 1
        with self._lock, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._turns)
            output = self.model.generate(
                torch.tensor([prompt_ids]),
                do_sample=True,
                max_new_tokens=1,
                prefix_allowed_tokens_fn=lambda *_: self._allowed,
                return_dict_in_generate=True,
                output_logits=True,
            )
        token = int(output.sequences[0, -1])
        return [token], [float(output.logits[0][0].log_softmax(-1)[token])]


def loop_of(turn: Any, *, ours: bool) -> type:
    """TRL's loop whose turns are `turn(prompt_ids) -> (ids, log-probabilities)`, with our mixin or without it."""

    class Local(_AsyncRolloutLoop):
        async def _generate_one_turn(self, prompt_ids):
            return turn(prompt_ids)

    class Noting(WorldModelRolloutMixin, Local):
        pass

    return Noting if ours else Local


class Script:
    """Turns drawn from a generator of its own: answers, calls as the template writes them and otherwise, and turns that end
    without an end token."""

    def __init__(self, tokenizer: Any, seed: int = 0) -> None:
        self.tokenizer, self.generator = tokenizer, torch.Generator().manual_seed(seed)

    def text(self, depth: int) -> str:
        choice = torch.rand((), generator=self.generator).item()
        number = int(torch.randint(10**6, (), generator=self.generator))
        end = "<|im_end|>"
        if depth >= 3 or choice < 0.1:
            return f"done {number}{end}"
        if choice < 0.3:
            return "hm " + call("run_code", code=f"{number}+1") + end  # the template writes no space before a call
        if choice < 0.4:
            return call("lookup_doc", name="é" * (1 + number % 7)) + end
        if choice < 0.55:
            return call("run_code", code="1/0") + "\n" + call("lookup_doc", name="par") + end
        if choice < 0.65:
            return call("run_code", code="raise") + end
        if choice < 0.75:
            return call("no_such_tool", x=1) + end
        if choice < 0.9:  # JSON of another spacing: the template writes it anew
            body = json.dumps(
                {"name": "run_code", "arguments": {"code": f"{number}"}}, separators=(",", ":") if number % 2 else None
            )
            return f"<tool_call>\n{body}\n</tool_call>" + (end if number % 3 else "")
        return f"cut {number}"

    def __call__(self, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
        text = self.text(self.tokenizer.decode(prompt_ids).count("<tool_response>"))
        ids = self.tokenizer(text).input_ids
        return ids, [-2.0] * len(ids)


def config(**fields: Any) -> AsyncGRPOConfig:
    defaults = {
        "output_dir": tempfile.gettempdir() + "/wm_plugin_tests",
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "learning_rate": 0.0,
        "max_grad_norm": 1e9,
        "token_budget": -1,
        "max_staleness": 100,
        "seed": 3,
    }
    cls = fields.pop("cls", AsyncGRPOConfig)
    return cls(**{**defaults, **fields})


def tokenizer_of_tools() -> Any:
    environment = ToolEnvironment()
    return make_tokenizer([environment.run_code, environment.lookup_doc])


def worker(
    tokenizer: Any,
    *,
    ours: bool,
    ready: int = 28,
    turn: Any = None,
    environment: Any = ToolEnvironment,
    **settings: Any,
) -> LocalWorker:
    return LocalWorker(
        loop_of(turn or Script(tokenizer), ours=ours),
        ready,
        dataset=settings.pop("train_dataset", dataset()),
        reward_funcs=settings.pop("reward_funcs", [reward]),
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        environment_factory=environment,
        num_generations=4,
        **settings,
    )


def run(
    cls: type[AsyncGRPOTrainer],
    folder: Any,
    *,
    args: Any = None,
    environment: Any = ToolEnvironment,
    rollouts: dict[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[AsyncGRPOTrainer, list[torch.Tensor], list[Any]]:
    """Train; the trainer, the gradient of each step, and the samples in the order in which it takes them."""
    tokenizer = tokenizer_of_tools()
    make_model(tokenizer).save_pretrained(folder)  # which one rank does
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    ours = issubclass(cls, WorldModelAsyncGRPOTrainer)
    local = worker(tokenizer, ours=ours, environment=environment, **(rollouts or {}))
    gradients = Gradients()
    trainer = cls(
        model=str(folder),
        args=args if args is not None else config(),
        train_dataset=dataset(),
        processing_class=tokenizer,
        callbacks=[gradients],
        environment_factory=environment,
        rollout_worker=local,
        weight_transfer=NoTransfer(),
        **kwargs,
    )
    trainer.train()
    return trainer, gradients.steps, local.samples


def naive_term(
    samples: list[Any], tokenizer: Any, *, tools: Any = None, per_trajectory: bool = False
) -> tuple[torch.Tensor, int]:
    """Gradient of Σ weight·NLL / N over samples, or of the mean of their means, by plain transformers, and the tokens."""
    model = make_model(tokenizer, dtype=torch.float64)
    total, tokens = 0.0, 0
    for sample in samples:
        ids, sampled = sample.input_ids.tolist(), sample.completion_mask.tolist()
        completion = [int(index >= sampled.index(1)) for index in range(len(ids))]
        found = list(selected(ids, completion, sampled, tokenizer, content_only=True, errors=False))
        logps = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, :-1], -1)
        for index, tool in found:
            weight = 1.0 if tools is None else tools.get(tool, 0.0)
            share = len(found) if per_trajectory else 1
            total = total - weight * logps[index - 1, ids[index]] / share
            tokens += weight != 0
    (total / (len(samples) if per_trajectory else tokens)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]), tokens
