"""`GRPOConfig` with the objective's fields, for YAML files and flags (TrlParser) as for Python."""

import dataclasses
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from wm_plugin.environments.annealing import TurnBudget
from wm_plugin.errors import UserError
from wm_plugin.objectives import EchoConfig
from wm_plugin.untrusted import loads

PREFIX = "echo_"
_HELP = {f.name: f.metadata["help"] for f in dataclasses.fields(EchoConfig)}
_DEFAULT = {f.name: f.default for f in dataclasses.fields(EchoConfig)}


def _echo(name: str, note: str = "") -> Any:
    return field(default=_DEFAULT[name], metadata={"help": " ".join(filter(None, (_HELP[name], note)))})


@dataclass
class WorldModelGRPOConfig(GRPOConfig):
    """`GRPOConfig` and the fields of `EchoConfig`, each with the prefix `echo_`.

    Raises:
        UserError: a value is out of its range.
    """

    echo_coeff: float = _echo("coeff")
    # TrlParser reads the second member of a union as the flag's type: a string here, taken apart below.
    echo_tools: dict | str | list | None = _echo("tools", "As a flag: a,b or '{\"a\": 0.3}'.")
    echo_roles: list[str] | None = _echo("roles")
    echo_content_only: bool = _echo("content_only")
    echo_include_errors: bool = _echo("include_errors")
    echo_include_truncated: bool = _echo("include_truncated")
    echo_min_token_nll: float | None = _echo("min_token_nll")
    echo_max_token_nll: float | None = _echo("max_token_nll")
    echo_normalization: str = _echo("normalization")
    echo_schedule: str = _echo("schedule")
    echo_schedule_steps: int | None = _echo("schedule_steps")
    echo_end_coeff: float = _echo("end_coeff")
    echo_select: str | None = _echo("select", "As a dotted path, package.module:function.")
    echo_guard: str | None = _echo("guard")
    echo_zero_variance_groups: str = _echo("zero_variance_groups")
    echo_max_refills: int = _echo("max_refills")
    echo_tempered: bool = _echo("tempered")
    # and it takes no union with bool; True is an int, too
    echo_turn_information: dict | str | int | None = _echo("turn_information", "As a flag: true or '{\"echo\": 0.05}'.")
    echo_on_silence: str = _echo("on_silence")
    echo_silent_batches: int = _echo("silent_batches")

    turn_budget: dict | str | None = field(
        default=None,
        metadata={
            "help": "WMAct's annealing of the turns that an episode in an environment may take: {start: 30, every: 100}, as a "
            "flag JSON. None: max_tool_calling_iterations throughout."
        },
    )

    def __post_init__(self) -> None:
        self.make_turn_budget()
        self.echo_config()  # says what is wrong before the host's own checks, which may load a device
        super().__post_init__()

    def echo_config(self) -> EchoConfig:
        values = {name: getattr(self, PREFIX + name) for name in _DEFAULT}
        try:
            return EchoConfig.from_mapping(values)
        except UserError as error:
            raise UserError(f"{PREFIX}{error}") from None

    def make_turn_budget(self) -> TurnBudget | None:
        values = self.turn_budget
        if isinstance(values, str):
            with suppress(ValueError):  # what is none is refused next, with what to write
                values = loads(values)
        if values is None:
            return None
        if self.max_tool_calling_iterations is not None:
            raise UserError("turn_budget says what max_tool_calling_iterations says; leave one of them out")
        return TurnBudget.from_mapping(values)

    def echo_fields_set(self) -> list[str]:
        """The echo_ fields that differ from their defaults."""
        return [PREFIX + name for name, default in _DEFAULT.items() if getattr(self, PREFIX + name) != default]
