"""Run where vLLM is installed: steps of TRL's trainer in the grid, whose rollouts vLLM generates, with the term and without. The
difference of the two gradients is compared with plain transformers.

Usage: vllm_on_trl.py OUT.json '[{"fields": {...}, "peft": false}, ...]'

At a learning rate of 0 both runs have the same weights in every step, and so the same rollouts. A server samples with numbers of
its own: the run without the term gets the answers again that the one with it got.
"""

import functools
import itertools
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient

from support import reference as trl_reference
from support.on_trl import Batches, reward, run
from support.vllm_server import vllm_server
from wm_plugin import EchoConfig
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.lab.tiny.warm_start import behaviour_cloning
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.grid import GridEnvironment, dataset_rows

COEFF = 0.37
FIELDS = {
    "per_device_train_batch_size": 16,
    "num_generations": 8,
    "max_completion_length": 133,
    "max_tool_calling_iterations": 6,
    "loss_type": "dapo",
    "vllm_max_model_length": 512,
    "vllm_gpu_memory_utilization": 0.1,
}


class Stock(Batches, GRPOTrainer):
    pass


class Ours(Batches, WorldModelGRPOTrainer):
    pass


class Client(VLLMClient):
    """TRL's client, whose weights go through a folder: those of the real one go through NCCL, which needs GPUs."""

    folder: Path
    answers: ClassVar[list[tuple[Any, Any]]] = []  # prompts and what came, in order
    again: ClassVar[bool] = False  # the same questions come again, and get the same answers

    def init_communicator(self, device: Any = None) -> None:
        self.asked = iter(list(self.answers) if self.again else ())
        if not self.again:
            self.answers.clear()

    def update_named_params(self, metadata: Any, named_params: Any) -> None:
        names = [name for name, *_ in metadata]
        tensors = {name: parameter.detach().float().contiguous().clone() for name, parameter in named_params}
        assert list(tensors) == names
        save_file(tensors, self.folder / "model.safetensors")
        update = {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
        self._post(f"{self.base_url}/collective_rpc", json=update)

    def generate(self, prompts: Any, **settings: Any) -> Any:
        if self.again:
            before, answer = next(self.asked)
            assert before == prompts, "the runs differ in what they ask"
            return answer
        answer = super().generate(prompts, **settings)
        self.answers.append((prompts, answer))
        return answer


@functools.cache
def engine(**options: Any) -> Any:
    """One engine for all cases: each trainer loads its weights into it before a rollout. Compiling would take minutes."""
    from vllm import LLM

    return LLM(**options, enforce_eager=True)


def train(cls: type, policy: Path, case: dict, **options: Any) -> Any:
    """The trainer after its steps, with `gradients`, one a step."""
    if case.get("peft"):
        from peft import LoraConfig

        options["peft_config"] = LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    torch.manual_seed(5)  # of adapters
    trainer, gradients = run(
        cls,
        model=AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64),
        args={**FIELDS, **case["fields"], "output_dir": str(policy.parent / "runs")},
        rows=dataset_rows(64),
        environment=GridEnvironment,
        processing_class=make_tokenizer(),
        reward_funcs=[reward],  # by length, so that groups differ, which seldom reach the goal
        **options,
    )
    trainer.gradients = gradients
    return trainer


def content(batch: dict[str, torch.Tensor], tokenizer: Any) -> torch.Tensor:
    """(B, T) 1 on the observations: environment tokens but the header that ends them, ":", and without failures of the host."""
    mask = torch.zeros(batch["completion_ids"].shape, dtype=torch.float64)
    environment = (batch["completion_mask"] == 1) & (batch["tool_mask"] == 0)
    for row, ids in enumerate(batch["completion_ids"].tolist()):
        start = 0
        for inside, group in itertools.groupby(environment[row].tolist()):
            end = start + len(list(group))
            text = tokenizer.decode(ids[start:end])
            if inside and not text.startswith("{'error'"):
                mask[row, start : end - text.endswith(":")] = 1.0
            start = end
    return mask


def term(policy: Path, case: dict) -> dict:
    Client.again = False
    ours = train(Ours, policy, case, world_model=EchoConfig(coeff=COEFF))
    Client.again = True
    stock = train(Stock, policy, case)
    accumulation = ours.args.gradient_accumulation_steps
    result: dict[str, list] = {"errors": [], "tokens": [], "counted": [], "ratios": []}
    for step, (before, after) in enumerate(zip(stock.gradients, ours.gradients, strict=True)):
        mine = slice(step * accumulation, (step + 1) * accumulation)
        batches = ours.batches[mine]
        for one, other in zip(stock.batches[mine], batches, strict=True):
            assert torch.equal(one["completion_ids"], other["completion_ids"]), "the runs differ in their rollouts"
        masks = [content(batch, ours.processing_class) for batch in batches]
        expected, tokens = trl_reference.term_gradient(ours.model, batches, masks)
        expected = COEFF * expected
        result["errors"].append(((after.double() - before.double() - expected).norm() / expected.norm()).item())
        result["tokens"].append(tokens)
        result["counted"].append(int(batches[0]["wm_num_tokens"]))
        ratios = [batch["importance_sampling_ratio"] for batch in batches if "importance_sampling_ratio" in batch]
        result["ratios"] += [[ratio.min().item(), ratio.max().item()] for ratio in ratios]
    return result | {"reward_std": [step["reward_std"] for step in ours.state.log_history[:-1]]}


def moving(policy: Path, mode: dict) -> dict:
    """How far the weights move, and how far the probabilities of vLLM and of the trainer are then apart."""
    Client.again = False
    fields = {**mode, "max_steps": 3, "learning_rate": 0.5, "optim": "sgd"}
    ours = train(Ours, policy, {"fields": fields}, world_model=EchoConfig(coeff=COEFF))
    start = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64).state_dict()
    return {
        "moved": max((value - start[name]).abs().max().item() for name, value in ours.model.state_dict().items()),
        "apart": [step["sampling/sampling_logp_difference/max"] for step in ours.state.log_history[:-1]],
    }


def save_policy(folder: Path) -> None:
    """A policy that makes moves, which a random one seldom does. Two heads: vLLM's attention on a CPU takes no heads of 16."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0, heads=2)
    behaviour_cloning(model, tokenizer, 0, steps=30, demonstrations=400)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(out: Path, cases: list[dict]) -> None:
    vllm_generation.LLM = engine
    policy = out.parent / "policy"
    save_policy(policy)
    vllm_generation.VLLMClient = Client
    Client.folder = out.parent / "weights"
    Client.folder.mkdir()
    flags = ["--max-model-len", "512", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    with vllm_server(policy, out.parent / "server.log", *flags, VLLM_SERVER_DEV_MODE="1") as address:
        server = {"vllm_server_base_url": address}
        for case in cases:
            if case["fields"].get("vllm_mode") == "server":
                case["fields"] |= server
        result = {
            "cases": [term(policy, case) for case in cases],
            "colocated": moving(policy, {"use_vllm": True}),
            "server": moving(policy, {"use_vllm": True, "vllm_mode": "server", **server}),
        }
    out.write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
