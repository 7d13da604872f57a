"""The world-model objective on TRL. The only place that imports trl."""

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from wm_plugin.errors import no_host
from wm_plugin.trl.versions import refuse_old as _refuse_old

if sys.modules.get("trl") is None:
    if importlib.util.find_spec("trl") is None:
        no_host("trl")
    _refuse_old()

if TYPE_CHECKING:
    from wm_plugin.trl.async_trainer import WorldModelAsyncGRPOConfig, WorldModelAsyncGRPOTrainer
    from wm_plugin.trl.config import WorldModelGRPOConfig
    from wm_plugin.trl.sft_trainer import WorldModelSFTConfig, WorldModelSFTTrainer
    from wm_plugin.trl.trainer import WorldModelGRPOTrainer, WorldModelMixin

__all__ = [
    "WorldModelAsyncGRPOConfig",
    "WorldModelAsyncGRPOTrainer",
    "WorldModelGRPOConfig",
    "WorldModelGRPOTrainer",
    "WorldModelMixin",
    "WorldModelSFTConfig",
    "WorldModelSFTTrainer",
]
_SFT = ("WorldModelSFTConfig", "WorldModelSFTTrainer")
_ASYNC = ("WorldModelAsyncGRPOConfig", "WorldModelAsyncGRPOTrainer")


def __getattr__(name: str) -> Any:
    # imported when it is asked for: trl takes many seconds, for which `wm train --help` need not wait
    if name == "WorldModelGRPOConfig":
        from wm_plugin.trl.config import WorldModelGRPOConfig

        return WorldModelGRPOConfig
    if name in _ASYNC:
        from wm_plugin.trl import async_support

        async_support.require()
        from wm_plugin.trl import async_trainer

        return getattr(async_trainer, name)
    if name in _SFT:
        from wm_plugin.trl import sft_trainer

        return getattr(sft_trainer, name)
    if name in __all__:
        from wm_plugin.trl import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
