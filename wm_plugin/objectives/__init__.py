"""What is optimised besides the reward. Pure torch: no host is imported here."""

from wm_plugin.objectives.echo import EchoConfig, count_tokens, echo_loss, within_bounds
from wm_plugin.objectives.spans import Span

__all__ = ["EchoConfig", "Span", "count_tokens", "echo_loss", "within_bounds"]
