"""What is optimised besides the reward. Pure torch: no host is imported here."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wm_plugin.objectives.echo import EchoConfig, count_tokens, echo_loss, within_bounds
    from wm_plugin.objectives.guard import GuardConfig
    from wm_plugin.tokens.spans import Span

__all__ = ["EchoConfig", "GuardConfig", "Span", "count_tokens", "echo_loss", "within_bounds"]


def __getattr__(name: str) -> Any:
    # imported when it is asked for: it brings torch, which readers of data need not wait for
    if name == "Span":
        from wm_plugin.tokens.spans import Span

        return Span
    if name in __all__:
        from wm_plugin.objectives import echo

        return getattr(echo, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
