"""TRL's trainer with Muon and with signSGD."""

import pytest
import torch

from support.on_trl import config, run
from wm_plugin.errors import UserError
from wm_plugin.hosting.optimizers import MuonWithAdamW, SignSGD
from wm_plugin.trl import WorldModelGRPOConfig, WorldModelGRPOTrainer


def trained(**fields):
    args = config(cls=WorldModelGRPOConfig, echo_coeff=0.3, max_steps=1, **fields)
    return run(WorldModelGRPOTrainer, args=args)


@pytest.mark.parametrize(("name", "kind"), [("muon", MuonWithAdamW), ("sign_sgd", SignSGD)])
def test_the_trainer_steps_with_it(name, kind):
    torch.manual_seed(0)
    trainer, (gradient,) = trained(optimizer=name, learning_rate=1e-3, adam_beta2=0.9)
    optimizer = trainer.optimizer.optimizer  # accelerate's is around it
    assert type(optimizer) is kind
    assert {group["lr"] for group in optimizer.param_groups} == {1e-3}
    assert gradient.norm() > 0
    if name == "muon":
        matrices = [p for group in optimizer.param_groups if group["muon"] for p in group["params"]]
        names = {id(p): name for name, p in trainer.model.named_parameters()}
        assert matrices
        assert not any("embed" in names[id(p)] or "lm_head" in names[id(p)] for p in matrices)
        assert {group["betas"] for group in optimizer.param_groups if not group["muon"]} == {(0.9, 0.9)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": "moun"}, r"optimizer is 'moun'; did you mean 'muon'\?"),
        ({"optimizer": "muon", "optim": "sgd"}, "optimizer is 'muon', and the trainer has another one"),
    ],
)
def test_it_is_refused_before_the_first_step(fields, message):
    with pytest.raises(UserError, match=message):
        trained(**fields)
