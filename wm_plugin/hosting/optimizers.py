"""The optimizers of ECHO's runs that the hosts do not have: Muon, and signSGD ("True Agents Model the World").

TRL takes them by `optimizer: muon` or `sign_sgd`, verl by `optim.optimizer_impl=wm_plugin.hosting.optimizers` and
`optim.optimizer=MuonWithAdamW` or `SignSGD`. The paper says which one and its learning rate, 1e-6; the rest is ours.
"""

from collections.abc import Collection, Iterable
from typing import Any

import torch
from packaging.version import Version

from wm_plugin.errors import UserError

MUON_FROM = Version("2.9")  # of torch: the first with torch.optim.Muon
ONLY_MUON = "muon"  # a group's key


class MuonWithAdamW(torch.optim.Optimizer):
    """torch's Muon for the matrices of hidden layers, and AdamW for embeddings, output heads and all that is no matrix.

    Steps are scaled so that their size is that of AdamW's (`match_rms_adamw`): learning rates of AdamW fit, for both parts.
    Tensors of more than two dimensions, such as experts in one, are AdamW's too. Parameters that FSDP2 shards are whole matrices
    to it; what DeepSpeed or FSDP1 makes of them is not.

    Args:
        params: parameters, or groups of them, as for any optimizer of torch.
        embeddings: shapes of matrices that are AdamW's. None: that of the first matrix, which is the embedding of a language
            model, and its head has the same.

    Raises:
        UserError: torch has no Muon, or there is no matrix for it.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-6,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        momentum: float = 0.95,
        embeddings: Collection[tuple[int, ...]] | None = None,
    ) -> None:
        check_torch()
        given = list(params)
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        groups = [{"weight_decay": weight_decay, **group, "params": list(group["params"])} for group in groups]
        if embeddings is None:
            matrices = (one for group in groups for one in group["params"] if one.ndim == 2)
            embeddings = [tuple(one.shape) for one in [next(matrices, None)] if one is not None]
        parts = []
        for group in groups:
            hidden = [one for one in group["params"] if one.ndim == 2 and tuple(one.shape) not in set(embeddings)]
            others = [one for one in group["params"] if all(one is not other for other in hidden)]
            parts += [{**group, "params": own, ONLY_MUON: own is hidden} for own in (hidden, others) if own]
        if not any(part[ONLY_MUON] for part in parts):
            raise UserError(
                "Muon found no matrix beside embeddings: DeepSpeed and FSDP1 flatten parameters; take FSDP2 or DDP, or AdamW"
            )
        muon = torch.optim.Muon([torch.zeros(1, 1)], momentum=momentum, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW([torch.zeros(1)], betas=betas, eps=eps)
        shared = {"lr": lr, "weight_decay": weight_decay}
        self._parts = {True: muon, False: adamw}
        super().__init__([{**self._parts[part[ONLY_MUON]].defaults, **shared, **part} for part in parts], shared)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for is_muon, part in self._parts.items():
            # the groups and the state are ours, where hosts look for them, load them, and put sharded parameters
            part.param_groups = [group for group in self.param_groups if group[ONLY_MUON] == is_muon]
            part.state = self.state
            part.step()
        return loss


def check_torch() -> None:
    """Raise a UserError if torch has no Muon."""
    if Version(Version(torch.__version__).base_version) < MUON_FROM:
        raise UserError(f"Muon needs torch >= {MUON_FROM}, and {torch.__version__} is installed; take AdamW")


class SignSGD(torch.optim.Optimizer):
    """Each weight moves by the learning rate against the sign of its gradient. There is no state and no momentum.

    Args:
        params: parameters, or groups of them, as for any optimizer of torch.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-6, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"])
        return loss


OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"muon": MuonWithAdamW, "sign_sgd": SignSGD}
