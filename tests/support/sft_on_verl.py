"""Steps of verl's SFT trainer on CPUs, with the term and without, for each of some cases. Run by torchrun:

    sft_on_verl.py FOLDER '{"name": {"ours": true, "settings": ["wm.coeff=0.5"]}, ...}'

FOLDER has a policy, `policy`, and rows, `rows.parquet`; it gets NAME.pt: what was logged, gradients and parameters of each step.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from verl.trainer import sft_trainer
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

from support.verl_recipes import composed
from wm_plugin.verl.names import SEARCH_PATH
from wm_plugin.verl.sft_trainer import WorldModelSFTTrainer


def whole(value: torch.Tensor) -> torch.Tensor:
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().flatten().clone()


def run(folder: Path, ours: bool, settings: list[str]) -> dict[str, Any]:
    group = ["+wm=sft"] if ours else []
    config = composed(
        "sft_tiny",
        f"hydra.searchpath=[pkg://verl.trainer.config,{SEARCH_PATH}]",
        *group,
        f"model.path={folder / 'policy'}",
        f"data.train_files={folder / 'rows.parquet'}",
        f"trainer.default_local_dir={folder / 'out'}",
        "optim.lr_warmup_steps=0",
        "optim.clip_grad=1e9",
        "trainer.total_training_steps=2",
        *settings,
    )
    logged: list[dict[str, float]] = []

    class Log:
        def __init__(self, **_: Any) -> None:
            pass

        def log(self, data: dict[str, float], step: int) -> None:
            logged.append({key: value for key, value in data.items() if isinstance(value, int | float)})

    stock = sft_trainer.Tracking
    sft_trainer.Tracking = Log
    trainer = (WorldModelSFTTrainer if ours else sft_trainer.SFTTrainer)(config)
    gradients: list[torch.Tensor] = []
    parameters = list(trainer.engine.module.parameters())
    step = trainer.engine.optimizer_step

    def noting() -> Any:
        gradients.append(torch.cat([whole(one.grad) for one in parameters]))
        return step()

    trainer.engine.optimizer_step = noting
    trainer.ckpt_handler.save_checkpoint = lambda step: None
    if ours:
        import wm_plugin.verl.sft_trainer as module

        module.Tracking = Log
    trainer.fit()
    sft_trainer.Tracking = stock
    state = torch.get_rng_state()
    return {
        "logged": logged,
        "gradients": gradients,
        "parameters": torch.cat([whole(one) for one in parameters]),
        "random": state,
    }


def main() -> None:
    folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    initialize_global_process_group()
    for name, case in cases.items():
        torch.manual_seed(5)
        found = run(folder, case["ours"], case["settings"])
        if dist.get_rank() == 0:
            torch.save(found, folder / f"{name}.pt")
    destroy_global_process_group()


if __name__ == "__main__":
    main()
