"""Runs of main_ppo that keep what each update was made of, to compare the term with plain transformers."""

import os
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from support.run_on_verl import Run, run_recipe
from wm_plugin.lab.tiny.policy import HEADER, make_model, make_tokenizer
from wm_plugin.lab.tiny.warm_start import behaviour_cloning

# Loaded by verl's `external_lib` into the worker: what each update is made of, and the weights before it.
RECORDER = """
import functools
import os
import uuid

import torch
from wm_plugin.verl.worker import WorldModelTrainingWorker as Worker

COLUMNS = ("input_ids", "responses", "response_mask", "wm_weights", "wm_counts")
train_batch = Worker.train_batch


@functools.wraps(train_batch)
def recorded(self, data):
    record = {name: [row.clone() for row in data[name].unbind()] for name in COLUMNS}
    record["weights"] = {name: p.full_tensor().detach().clone() for name, p in self.engine.module.named_parameters()}
    path = os.path.join(os.environ["WM_TEST_RECORDS"], f"{len(os.listdir(os.environ['WM_TEST_RECORDS'])):03}.pt")
    step = self.engine.optimizer_step

    def recorded_step():  # before gradients are clipped
        parameters = self.engine.module.named_parameters()
        record["gradient"] = {name: p.grad.full_tensor().detach().clone() for name, p in parameters}
        return step()

    self.engine.optimizer_step = recorded_step
    output = train_batch(self, data)
    self.engine.optimizer_step = step
    record["tokens"], record["coeff"] = data["wm_num_tokens"], data["wm_coeff"]
    torch.save(record, path)
    return output


if Worker.train_batch is not recorded:
    Worker.train_batch = recorded
"""


def environment_tokens(row: dict[str, torch.Tensor], tokenizer: Any) -> torch.Tensor:
    """(T,) 1 where the world wrote content, without the package: a run of its tokens ends with the header of the next turn."""
    mask, response = row["response_mask"].tolist(), row["responses"].tolist()
    content = [0.0] * len(mask)
    for sampled, run in groupby(range(len(mask)), key=lambda position: mask[position]):
        positions = list(run)
        text = tokenizer.decode([response[position] for position in positions])  # a token a character
        if not sampled and not text.startswith("Error executing tool"):
            for position in positions[: len(text.removesuffix(HEADER))]:
                content[position] = 1.0
    return torch.tensor(content)


def check_updates(run: Run, records: Path, policy: Path, updates: int, *, term_alone: bool = False) -> None:
    """The figures that a run logged against those of plain transformers, from the rows and the weights of each update.

    Args:
        updates: in a step.
        term_alone: no episode has a reward, so that each gradient is the term's: it is compared, too.
    """
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(policy), dtype=torch.float64)
    paths = sorted(records.iterdir())
    assert len(paths) == len(run.steps) * updates
    for number, metrics in enumerate(run.steps):
        nlls, losses, tokens = [], [], []
        for path in paths[number * updates : (number + 1) * updates]:
            record = torch.load(path)
            model.load_state_dict(record["weights"])
            model.zero_grad()
            columns = {name: values for name, values in record.items() if isinstance(values, list)}
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            masks = [environment_tokens(row, tokenizer) for row in rows]
            for row, naive in zip(rows, masks, strict=True):
                assert torch.equal(row["wm_weights"], naive)
                assert row["wm_counts"].sum() == naive.sum()
            total, count = 0.0, sum(int(naive.sum()) for naive in masks)
            for row, naive in zip(rows, masks, strict=True):
                if naive.any():
                    nll = (response_nll(model, row) * naive).sum()
                    (nll / count).backward()
                    total += nll.item()
            assert record["tokens"] == count
            assert record["coeff"] == metrics["echo/coeff"] == 1.0
            if term_alone:
                check_gradient(record["gradient"], model)
            nlls += [total / count] if count else []
            losses.append(total / max(count, 1))
            tokens.append(count)
        # verl takes the mean over the updates of a step that have the figure
        assert metrics["echo/tokens"] == pytest.approx(sum(tokens) / updates, rel=1e-9)
        assert metrics["echo/nll"] == pytest.approx(sum(nlls) / len(nlls), rel=1e-5)
        assert metrics["echo/loss"] == pytest.approx(sum(losses) / updates, rel=1e-5)


def check_gradient(gradient: dict[str, torch.Tensor], model: Any) -> None:
    """To 1e-5: the run computes in float32."""
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    difference = torch.cat([gradient[name].double().flatten() for name, _ in model.named_parameters()]) - expected
    assert difference.norm() <= 1e-5 * expected.norm()


def response_nll(model: Any, row: dict[str, torch.Tensor]) -> torch.Tensor:
    """(T,) of the tokens of a row's response."""
    ids = row["input_ids"][None]
    logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return -logps.gather(-1, ids[0, 1:, None])[-len(row["responses"]) :, 0]


def recorded(folder: Path, *overrides: str, environment: dict[str, str] | None = None) -> tuple[Run, Path, Path]:
    """A run of a policy that walks, but has learnt nothing of the world, where its records are, and the policy."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=0)
    behaviour_cloning(model, tokenizer, 0, steps=40, demonstrations=300, environment_weight=0.0)
    policy = folder / "runs" / "tiny_random"
    model.save_pretrained(policy)
    tokenizer.save_pretrained(policy)
    (folder / "recorder.py").write_text(RECORDER)
    records = folder / "records"
    records.mkdir()
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "WM_TEST_RECORDS": str(records), **(environment or {})}
    overrides = (*overrides, "actor_rollout_ref.model.external_lib=recorder")
    run = run_recipe("echo_grpo_tiny", folder, *overrides, environment=environment)
    assert run.code == 0, run.output[-5000:]
    return run, records, policy
