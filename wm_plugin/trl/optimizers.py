"""Our optimizers on TRL's trainers: `optimizer: muon` or `sign_sgd`."""

from typing import Any

import torch

from wm_plugin.errors import UserError, nearest
from wm_plugin.hosting.optimizers import OPTIMIZERS, MuonWithAdamW, check_torch
from wm_plugin.trl.settings import ObjectiveSettings


def put(trainer: Any) -> None:
    """Let a trainer make the optimizer that its config names, if it does, with the learning rate, decay and betas of the config.

    Raises:
        UserError: there is no such optimizer, the trainer has another one, or it shards in a way that leaves no matrices.
    """
    name = trainer.args.optimizer if isinstance(trainer.args, ObjectiveSettings) else None
    if name is None:
        return
    if name not in OPTIMIZERS:
        raise UserError(f"optimizer is {name!r}{nearest(name, OPTIMIZERS)}")
    args, kind = trainer.args, OPTIMIZERS[name]
    usual = type(args).__dataclass_fields__["optim"].default
    if trainer.optimizer is not None or trainer.optimizer_cls_and_kwargs is not None or args.optim not in (usual, None):
        raise UserError(
            f"optimizer is {name!r}, and the trainer has another one (optim or optimizers); leave one of them out"
        )
    settings: dict[str, Any] = {"lr": args.learning_rate}
    if kind is MuonWithAdamW:
        check_torch()
        if trainer.is_deepspeed_enabled:
            raise UserError(
                "optimizer is 'muon', and DeepSpeed flattens parameters, which leaves no matrices; take FSDP2 or DDP"
            )
        model = trainer.accelerator.unwrap_model(trainer.model)
        tables = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
        settings |= {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
        settings["embeddings"] = [tuple(table.shape) for table in tables]
    trainer.optimizer_cls_and_kwargs = kind, settings
