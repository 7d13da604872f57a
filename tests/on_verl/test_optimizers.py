"""verl's real worker with Muon and with signSGD, and what is refused before Ray starts."""

import pytest

pytest.importorskip("verl")

from support import on_verl
from support.on_verl import make_batch, make_rollouts, make_worker, parameters, policy_loss, with_term
from support.verl_recipes import composed
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting import optimizers
from wm_plugin.verl.support import check_config


@pytest.mark.parametrize("name", ["MuonWithAdamW", "SignSGD"])
def test_the_worker_steps_with_it(name, tmp_path):
    on_verl.save_model(tmp_path)
    own = {"optimizer": name, "optimizer_impl": optimizers.__name__, "weight_decay": 0.0}
    worker, echo = make_worker(tmp_path, lr=1e-3, optimizer=own), EchoConfig(0.3)
    before, optimizer = parameters(worker), worker.engine.optimizer
    assert type(optimizer).__name__ == name
    on_verl.update(worker, with_term(policy_loss(), echo), make_batch(make_rollouts(8), echo))
    steps = (parameters(worker) - before).abs()
    assert steps.max() > 0
    if name == "SignSGD":
        assert steps.max() == pytest.approx(1e-3)
        return
    shapes = {n: tuple(p.shape) for n, p in worker.engine.module.named_parameters()}
    matrices = [tuple(p.shape) for group in optimizer.param_groups if group["muon"] for p in group["params"]]
    assert len(matrices) == sum("proj" in n and n.endswith("weight") for n in shapes)
    assert next(shape for n, shape in shapes.items() if "embed" in n) not in matrices


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer=Muon"], "Muon, which takes matrices alone; write actor.optim.optimizer=MuonWithAdamW"),
        (
            ["optimizer=MuonWithAdamW", "strategy=fsdp"],
            "MuonWithAdamW and actor.strategy fsdp, which leaves no matrices",
        ),
    ],
)
def test_it_is_refused_before_ray_starts(overrides, message):
    actor = "actor_rollout_ref.actor"
    paths = [f"{actor}.{'' if one.startswith('strategy') else 'optim.'}{one}" for one in overrides]
    with pytest.raises(UserError, match=message):
        check_config(composed("echo_grpo", *paths))
