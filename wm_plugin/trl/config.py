"""`GRPOConfig` with the objective's fields, for YAML files and flags (TrlParser) as for Python."""

from dataclasses import dataclass

from trl import GRPOConfig

from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.hosting.config import RunConfig, read_field
from wm_plugin.trl.settings import ObjectiveSettings


@dataclass
class WorldModelGRPOConfig(ObjectiveSettings, GRPOConfig):
    """`GRPOConfig` and the fields of `EchoConfig`, each with the prefix `echo_`."""

    def __post_init__(self) -> None:
        self.make_turn_budget()
        read_field("look_ahead", self.look_ahead)
        RunConfig.read({"max_lost": self.max_lost})
        self.objectives()  # says what is wrong before the host's own checks, which may load a device
        super().__post_init__()

    def make_turn_budget(self) -> TurnBudget | None:
        if self.turn_budget is None:
            return None
        if self.max_tool_calling_iterations is not None:
            raise UserError("turn_budget says what max_tool_calling_iterations says; leave one of them out")
        return read_field("turn_budget", self.turn_budget)
