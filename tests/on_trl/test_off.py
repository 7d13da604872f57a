"""Coefficient 0: bit for bit the host's run."""

import random

import numpy as np
import pytest
import torch

from support.on_trl import Ours, Stock, config, run
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOConfig

# the others run the same lines of ours: TRL computes its loss before the term is added
CASES = [{"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")]
# dropout draws between the generation batches of an optimizer step
DROPOUT = {"steps_per_generation": 1, "gradient_accumulation_steps": 2}
CASES += [{"importance_sampling_level": "sequence"}, {"beta": 0.1}, {"steps_per_generation": 4}, DROPOUT]
FAST = ({"loss_type": "dapo"}, {"beta": 0.1}, DROPOUT)


def trained(cls, fields, **kwargs):
    random.seed(0)
    np.random.seed(0)
    trainer, gradients = run(cls, args=config(max_steps=2, learning_rate=1e-2, **fields), **kwargs)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    parameters = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    return trainer, losses, gradients, parameters, torch.get_rng_state(), random.getstate(), np.random.get_state()[1]


@pytest.mark.parametrize(
    "fields",
    [pytest.param(case, marks=[] if case in FAST else pytest.mark.slow) for case in CASES],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_bit_identical_to_the_host(fields):
    if "beta" in fields or fields == DROPOUT:  # the reference model is loaded from the path that the config names
        pytest.importorskip("peft")
        from peft import LoraConfig

        kwargs = {"peft_config": LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.1)}
    else:
        kwargs = {}
    _, losses, gradients, parameters, torch_rng, python_rng, numpy_rng = trained(Stock, fields, **kwargs)
    ours = trained(
        Ours, fields, world_model=EchoConfig(0.0, turn_information="beta" in fields, guard="beta" in fields), **kwargs
    )
    trainer = ours[0]
    assert ours[1] == losses
    assert len(losses) == 2
    assert all(torch.equal(a, b) for a, b in zip(ours[2], gradients, strict=True))
    assert torch.equal(ours[3], parameters)
    assert torch.equal(ours[4], torch_rng)
    assert ours[5] == python_rng
    assert np.array_equal(ours[6], numpy_rng)
    assert trainer.state.log_history[0]["echo/nll"] > 0  # measured all the same


def test_without_a_configuration_nothing_is_measured():
    trainer, _ = run(Ours, args=config(max_steps=1))
    assert not [key for key in trainer.state.log_history[0] if key.startswith("echo")]


def test_what_cannot_be_measured_does_not_stop_a_run_at_0(caplog):
    trainer, _ = run(Ours, args=config(max_steps=1, temperature=0.7), world_model=EchoConfig(0.0))
    assert "temperature is 0.7" in caplog.text
    assert "echo/nll" not in trainer.state.log_history[0]


def test_config_class_defaults_to_off():
    trainer, _ = run(Ours, args=config(cls=WorldModelGRPOConfig, max_steps=1))
    row = trainer.state.log_history[0]
    assert row["echo/coeff"] == row["echo/loss"] == 0
    assert row["echo/tokens"] > 0
