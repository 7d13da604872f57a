"""The optimizers of ECHO's runs against torch's own, part by part."""

import copy
import io
from pathlib import Path

import pytest
import torch

from wm_plugin.errors import UserError
from wm_plugin.hosting import optimizers
from wm_plugin.hosting.optimizers import MuonWithAdamW, SignSGD

SETTINGS = {"lr": 1e-2, "weight_decay": 0.1}


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(50, 8), torch.nn.Linear(8, 17), torch.nn.Linear(17, 8), torch.nn.Linear(8, 50)
    )


def trained(module: torch.nn.Module, *parts: torch.optim.Optimizer, steps: int = 3) -> list[torch.Tensor]:
    """The parameters after some steps."""
    for step in range(steps):
        module.zero_grad()
        module(torch.arange(40) + step).logsumexp(-1).sum().backward()  # gradients of full rank
        for part in parts:
            part.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


def test_hidden_matrices_are_muons_and_the_rest_is_adamws() -> None:
    """Also the head, which has the embedding's shape; step by step what the two do apart."""
    one, other = model(), model()
    hidden = [other[1].weight, other[2].weight]
    rest = [p for p in other.parameters() if all(p is not matrix for matrix in hidden)]
    apart = (
        torch.optim.Muon(hidden, **SETTINGS, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, **SETTINGS, betas=(0.8, 0.9)),
    )
    together = MuonWithAdamW(one.parameters(), **SETTINGS, betas=(0.8, 0.9))
    assert all(map(torch.equal, trained(one, together), trained(other, *apart)))


def test_groups_and_shapes_that_are_given_are_kept() -> None:
    module = model()
    groups = [{"params": [module[0].weight, module[1].weight], "weight_decay": 0.3}, {"params": [module[1].bias]}]
    optimizer = MuonWithAdamW(groups, **SETTINGS, embeddings=[(17, 8)])
    found = [(g["muon"], g["weight_decay"], [tuple(p.shape) for p in g["params"]]) for g in optimizer.param_groups]
    assert found == [(True, 0.3, [(50, 8)]), (False, 0.3, [(17, 8)]), (False, 0.1, [(17,)])]


def test_the_papers_learning_rate_and_no_weight_decay_are_the_defaults() -> None:
    for kind in (MuonWithAdamW, SignSGD):
        optimizer = kind([{"params": list(model().parameters())}])  # a single group
        assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {(1e-6, 0.0)}


def test_a_step_returns_the_loss_of_its_closure() -> None:
    for kind in (MuonWithAdamW, SignSGD):
        module = model()
        loss = module(torch.arange(9)).sum()
        optimizer = kind(module.parameters())
        assert optimizer.step(lambda loss=loss: loss) is loss
        assert optimizer.step() is None


def test_it_goes_on_from_a_checkpoint_at_the_schedulers_rate() -> None:
    whole, cut = model(), model()
    optimizer = MuonWithAdamW(whole.parameters(), **SETTINGS)
    trained(cut, first := MuonWithAdamW(cut.parameters(), **SETTINGS), steps=2)
    trained(whole, optimizer, steps=2)
    for group in (*optimizer.param_groups, *first.param_groups):
        group["lr"] = 3e-2
    torch.save(first.state_dict(), file := io.BytesIO())
    file.seek(0)
    again = copy.deepcopy(cut)
    resumed = MuonWithAdamW(again.parameters(), **SETTINGS)
    resumed.load_state_dict(torch.load(file))
    results = trained(whole, optimizer), trained(again, resumed)
    assert all(map(torch.equal, *results))
    assert not all(map(torch.equal, results[0], trained(model(), MuonWithAdamW(model().parameters(), **SETTINGS))))


def test_sign_sgd_moves_every_weight_by_the_learning_rate() -> None:
    module = model()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    after = trained(module, SignSGD(module.parameters(), lr=1e-2), steps=1)
    for old, new, parameter in zip(before, after, module.parameters(), strict=True):
        assert torch.equal(new, old - 1e-2 * parameter.grad.sign())


def test_it_is_refused_where_there_is_no_matrix_and_where_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = [torch.nn.Parameter(torch.zeros(9)), torch.nn.Parameter(torch.zeros(3))]
    with pytest.raises(UserError, match="found no matrix beside embeddings: DeepSpeed and FSDP1 flatten parameters"):
        MuonWithAdamW(flat)
    monkeypatch.setattr(optimizers.torch, "__version__", "2.9.0+cu128")
    optimizers.check_torch()
    monkeypatch.setattr(optimizers.torch, "__version__", "2.8.0+cu128")
    with pytest.raises(UserError, match=r"Muon needs torch >= 2.9, and 2.8.0\+cu128 is installed; take AdamW"):
        MuonWithAdamW(model().parameters())


def _on_a_rank(rank: int, rendezvous: str, out: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    from torch.distributed.fsdp import fully_shard

    module = model()
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    for part in (*module, module):
        fully_shard(part, mesh=mesh)
    after = [value.full_tensor() for value in trained(module, MuonWithAdamW(module.parameters(), **SETTINGS), steps=1)]
    if rank == 0:
        torch.save(after, out)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_sharded_matrices_are_whole_to_it(tmp_path: Path) -> None:
    """On FSDP2, to the rounding of torch's Muon, which multiplies in bfloat16: its own distance from float64 is as large."""
    out = tmp_path / "after.pt"
    torch.multiprocessing.spawn(_on_a_rank, (str(tmp_path / "rendezvous"), str(out)), nprocs=2)
    module = model()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    whole = trained(module, MuonWithAdamW(module.parameters(), **SETTINGS), steps=1)
    for old, one, sharded in zip(before, whole, torch.load(out), strict=True):
        assert (one - sharded).norm() <= 0.04 * (one - old).norm()
