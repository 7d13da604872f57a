"""What is optimised besides the reward. Pure torch: no host is imported here."""

from typing import TYPE_CHECKING

from wm_plugin._lazy import lazy
from wm_plugin.registry import Registry

if TYPE_CHECKING:
    from wm_plugin.objectives.base import Objective
    from wm_plugin.objectives.echo import EchoConfig, echo_loss
    from wm_plugin.objectives.guard import GuardConfig
    from wm_plugin.objectives.run import Objectives, RunObjective, column
    from wm_plugin.tokens.spans import Span

OBJECTIVES = Registry("objective", echo="wm_plugin.objectives.echo:EchoConfig")

_MODULES = {  # imported when a name is asked for: they bring torch, which readers of data need not wait for
    "EchoConfig": "echo",
    "GuardConfig": "guard",
    "Objective": "base",
    "Objectives": "run",
    "RunObjective": "run",
    "Span": "base",
    "column": "run",
    "echo_loss": "echo",
}

__all__ = [
    "OBJECTIVES",
    "EchoConfig",
    "GuardConfig",
    "Objective",
    "Objectives",
    "RunObjective",
    "Span",
    "column",
    "echo_loss",
]
__getattr__ = lazy(__name__, _MODULES)
