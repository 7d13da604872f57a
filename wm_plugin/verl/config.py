"""The block `wm` of a run's config: the fields of `EchoConfig` and `RunConfig`, and what verl alone needs."""

from collections.abc import Mapping
from typing import Any, Self

from omegaconf import OmegaConf
from pydantic import model_validator

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting.config import WRAPPERS, RunConfig
from wm_plugin.objectives.echo import PRESET_FIELDS
from wm_plugin.objectives.run import objective_class
from wm_plugin.options import Whole, option
from wm_plugin.verl.names import SEARCH_PATH

COEFF = 0.05  # if the group +wm=echo names neither a coefficient nor a preset
SFT_COEFF = 1.0  # likewise of +wm=sft, as the lambda of ActObs (arXiv 2609.20715)
REWARD_KEYS = ("reward", "reward_batch", "reward_wait_ms")  # read by wm_plugin.verl.rewards


class WorldModelConfig(RunConfig):
    """What `wm.*` says, beside the rewards."""

    max_turns: Whole | None = option(
        "Turns of the policy in a trajectory. Null: verl's max_assistant_turns.", default=None, ge=1
    )
    max_turn_tokens: Whole | None = option(
        "Tokens that the policy may sample in a turn. Null: as many as the response has left.", default=None, ge=1
    )
    validation_nll: bool = option(
        "Measure the environment tokens of validation rollouts too, by a pass of the actor in each validation. wm.guard turns "
        "it on.",
        default=False,
    )

    @model_validator(mode="after")
    def _check_turns(self) -> Self:
        if self.turn_budget is not None and self.max_turns is not None:
            raise UserError("turn_budget says what max_turns says; leave one of them out")
        return self

    @property
    def measures_validation(self) -> bool:
        """Whether validations measure environment tokens."""
        return self.validation_nll or any(one.guard is not None for one in self.objectives.values())

    @property
    def first_turns(self) -> int | None:
        """Turns of the policy where nothing has been annealed; None: verl's own limit."""
        return self.max_turns if self.turn_budget is None else self.turn_budget.start + 1


def with_coeff(block: Mapping[str, Any], coeff: float = COEFF) -> dict[str, Any]:
    """Return the block `wm` without the group's nulls that stand for a preset's value or the default, and with the
    coefficient that one of them stands for, unless something else sets it."""
    absent = {*PRESET_FIELDS, "preset"}  # another objective need not have presets
    values = {name: value for name, value in block.items() if value is not None or name not in absent}
    elsewhere = any(block.get(name) is not None for name in ("alpha", "preset", "world_model"))
    if "coeff" in block and "coeff" not in values and not elsewhere:
        values["coeff"] = coeff
    return values


def read_config(config: Any, coeff: float = COEFF) -> WorldModelConfig:
    """Return the block `wm` of a trainer's config.

    Args:
        coeff: if the block names neither a coefficient nor a preset.

    Raises:
        UserError: the block is missing, a key does not exist (with the nearest one), or a value does not fit.
    """
    block = config.get("wm")
    if block is None:
        raise UserError(f"the config has no block wm; add 'hydra.searchpath=[{SEARCH_PATH}]' +wm=echo")
    values = OmegaConf.to_container(block, resolve=True) if OmegaConf.is_config(block) else block
    if isinstance(values, str | list):  # +wm=echo, and Hydra looked for no group of that name where ours are
        raise UserError(
            f"wm is {shown(values)}, a plain value: Hydra does not find our groups without 'hydra.searchpath=[{SEARCH_PATH}]'; "
            "add that to the command"
        )
    if not isinstance(values, Mapping):
        raise UserError(f"wm is {shown(values)}; write fields, e.g. wm.coeff=0.05")
    values = with_coeff(values, coeff)
    kind = objective_class(values.pop("objective", "echo"), "wm")
    objective: dict[Any, Any] = {}
    run: dict[Any, Any] = {}
    for key, value in values.items():
        if key in kind.model_fields or key in kind.aliases:
            objective[key] = value
        elif key in WorldModelConfig.model_fields:
            run[key] = value
        elif key not in REWARD_KEYS:
            known = {*kind.model_fields, *kind.aliases, *WorldModelConfig.model_fields, *REWARD_KEYS}
            raise UserError(f"wm has no field {key!r}{nearest(key, known)}")
    made = WorldModelConfig.read({**run, "objective": kind.read(objective, "wm")}, "wm")
    if all(getattr(made, name) == WorldModelConfig.model_fields[name].default for name in WRAPPERS):
        return made
    try:
        made.classes()  # which says what does not fit an environment
    except UserError as error:
        words = str(error).replace(".", " ").replace(":", " ").split()
        raise UserError(f"wm.{error}" if words[0] in run else str(error)) from None
    return made
