"""The world-model objective on TRL. The only place that imports trl."""

from wm_plugin.errors import MissingExtraError

try:
    import trl  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "trl":
        raise
    raise MissingExtraError("wm_plugin.trl", "trl", "trl") from None

from wm_plugin.trl.config import WorldModelGRPOConfig
from wm_plugin.trl.trainer import WorldModelGRPOTrainer, WorldModelMixin

__all__ = ["WorldModelGRPOConfig", "WorldModelGRPOTrainer", "WorldModelMixin"]
