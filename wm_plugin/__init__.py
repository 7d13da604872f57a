"""World-model objectives, rewards, data, environments and evaluation for TRL and verl, without forking them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wm_plugin.objectives import EchoConfig

__all__ = ["EchoConfig"]


def __getattr__(name: str) -> Any:
    if name == "EchoConfig":  # imported when it is asked for: it brings torch, which `wm --help` must not wait for
        from wm_plugin.objectives import EchoConfig

        return EchoConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
