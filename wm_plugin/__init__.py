"""World-model objectives, rewards, data, environments and evaluation for TRL and verl, without forking them."""

from wm_plugin.objectives import EchoConfig

__all__ = ["EchoConfig"]
