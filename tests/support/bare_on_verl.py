"""Our trainers of verl without what starts Ray: their methods, with the attributes that `__init__` and a run would leave."""

from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from support.on_verl import running
from wm_plugin import EchoConfig
from wm_plugin.verl.config import WorldModelConfig
from wm_plugin.verl.trainer import WorldModelTrainer


def bare(
    echo: EchoConfig | None = None,
    kind: type = WorldModelTrainer,
    *,
    config: Any = None,
    wm: dict[str, Any] | None = None,
    tools: Sequence[str] = (),
    **attributes: Any,
) -> Any:
    """A trainer without its `__init__`.

    Args:
        config: of the run: a mapping, or what it is.
        wm: the other fields of `WorldModelConfig`.
        tools: those that have figures of their own.
        attributes: what is not as in the defaults.
    """
    made: Any = object.__new__(kind)
    made._wm = WorldModelConfig(EchoConfig(1.0) if echo is None else echo, **(wm or {}))
    made._wm_on, made._wm_running, made._wm_warned = True, [running(made._wm.objective, tools)], set()
    made._wm_turn_budget, made._wm_strength, made._wm_episodes = made._wm.turn_budget, None, []
    made._wm_expected = made._wm_replaced = made._wm_failed = made._wm_refilled = 0
    made.global_steps, made.local_trigger_step, made.parameter_sync_step = 0, 0, 1
    made.train_dataset, made.trainer_mode, made.total_training_steps = None, made._wm_mode, 9
    made.config = OmegaConf.create(config) if isinstance(config, dict) else config
    for name, value in attributes.items():
        setattr(made, name, value)
    return made
