"""What a config says of the control: the block `control` on TRL and `wm.control` on verl."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.errors import UserError, check_keys, nearest, shown
from wm_plugin.worlds.wrappers.control.base import Perturbation
from wm_plugin.worlds.wrappers.control.curriculum import Curriculum
from wm_plugin.worlds.wrappers.control.perturbations import PERTURBATIONS

FIELD = "control"


@dataclass(frozen=True)
class ControlConfig:
    """The perturbations of a run's episodes, in the order in which they change a text; a call that fails has no other.

    Raises:
        UserError: a value does not fit; the message begins with `control.`.
    """

    perturbations: tuple[Perturbation, ...] = field(
        default=(), metadata={"help": f"Entries of a name and its fields: {', '.join(PERTURBATIONS)}."}
    )
    seed: int = field(default=0, metadata={"help": "Of all draws."})
    guarded: bool = field(
        default=True, metadata={"help": "Take what is withheld out of a world model's texts, too, by rule."}
    )
    evaluation: bool = field(default=False, metadata={"help": "Perturb the episodes of evaluations, too."})
    worlds: tuple[str, ...] | None = field(
        default=None,
        metadata={
            "help": "Which of several named environments are under control, by the names of `environment`. None: all."
        },
    )
    curriculum: Curriculum | None = field(
        default=None, metadata={"help": "A factor of all rates that changes by step or by success; see `Curriculum`."}
    )

    def __post_init__(self) -> None:
        if not self.perturbations:
            raise UserError(f"{FIELD}.perturbations is empty; write e.g. [{{name: error, rate: 0.1}}]")
        if type(self.seed) is not int:
            raise UserError(f"{FIELD}.seed is {shown(self.seed)}; write a whole number")
        for name in ("guarded", "evaluation"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{FIELD}.{name} is {shown(getattr(self, name))}; write true or false")
        if self.worlds is not None and not all(isinstance(name, str) for name in self.worlds):
            raise UserError(
                f"{FIELD}.worlds is {shown(self.worlds)}; write names of the environments, or leave it out for all"
            )

    def of(self, name: str) -> bool:
        """Whether the environment of this name is under control."""
        return self.worlds is None or name in self.worlds

    @classmethod
    def from_mapping(cls, values: Any) -> "ControlConfig":
        """The control that a config describes: `{perturbations: [{name: error, rate: 0.1}], seed: 0}`.

        Raises:
            UserError: it is no mapping, has another key, or a value does not fit.
        """
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            raise UserError(f"{FIELD} is {shown(values)}; write a mapping, e.g. {{perturbations: [...]}}")
        names = [one.name for one in dataclasses.fields(cls)]
        check_keys(FIELD, values, names)
        entries = values.get("perturbations") or ()
        if not isinstance(entries, list | tuple):
            raise UserError(
                f"{FIELD}.perturbations is {shown(entries)}; write a list, e.g. [{{name: error, rate: 0.1}}]"
            )
        worlds = values.get("worlds")
        if worlds is not None and not isinstance(worlds, list | tuple):
            raise UserError(f"{FIELD}.worlds is {shown(worlds)}; write a list of names, or leave it out for all")
        made: dict[str, Any] = {
            "worlds": None if worlds is None else tuple(worlds),
            "perturbations": tuple(
                _perturbation(entry, f"{FIELD}.perturbations[{number}]") for number, entry in enumerate(entries)
            ),
        }
        if values.get("curriculum") is not None:
            made["curriculum"] = Curriculum.from_mapping(values["curriculum"], f"{FIELD}.curriculum")
        return cls(**{**values, "curriculum": None, **made})

    def as_mapping(self) -> dict[str, Any]:
        """The values that differ from the defaults, as JSON; `from_mapping` reads them back."""
        entries = [{"name": one.name, **_differing(one)} for one in self.perturbations]
        return {**_differing(self), "perturbations": entries}

    @property
    def preserves_oracle(self) -> bool:
        """Whether a policy that solves the world solves it under this control, if it tries again what failed."""
        return all(one.preserves and (one.of_episode or one.rate != 1) for one in self.perturbations)

    def check_worlds(self, known: Iterable[str]) -> None:
        """Raise a UserError if `worlds` names none of the run's environments."""
        for name in self.worlds or ():
            if name not in known:
                raise UserError(f"{FIELD}.worlds: there is no environment {shown(name)}{nearest(name, known)}")

    def check_tools(self, known: list[str], world: str) -> None:
        """Raise a UserError if a perturbation names a tool that the world does not have."""
        for number, one in enumerate(self.perturbations):
            for tool in one.tools:
                if tool not in known:
                    where = f"{FIELD}.perturbations[{number}].tools"
                    raise UserError(f"{where}: {world} has no tool {shown(tool)}{nearest(tool, known)}")

    def check_columns(self, columns: Mapping[str, Any], world: str) -> None:
        """Raise a UserError if a row lacks a column that a perturbation reads: nothing would be withheld, unseen."""
        for number, one in enumerate(self.perturbations):
            for name in ("column", "query"):
                column = getattr(one, name, None)
                if column is not None and column not in columns:
                    where = f"{FIELD}.perturbations[{number}].{name}"
                    raise UserError(
                        f"{where}: a row of {world} has no column {shown(column)}{nearest(column, columns)}"
                    )


def _perturbation(values: Any, where: str) -> Perturbation:
    if not isinstance(values, Mapping):
        raise UserError(f"{where} is {shown(values)}; write fields, e.g. {{name: error, rate: 0.1}}")
    name = values.get("name")
    if not isinstance(name, str) or name not in PERTURBATIONS:
        hint = nearest(name, PERTURBATIONS) if isinstance(name, str) else f"; write one of {', '.join(PERTURBATIONS)}"
        raise UserError(f"{where}.name is {shown(name)}{hint}")
    kind = PERTURBATIONS[name]
    names = [one.name for one in dataclasses.fields(kind)]
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key != "name"
    }
    for key, value in given.items():
        if key not in names:
            raise UserError(f"{where} ({name}) has no field {shown(key)}{nearest(key, ['name', *names])}")
        if (key in ("tools", "texts", "kinds") and isinstance(value, str)) or (key == "turns" and type(value) is int):
            given[key] = (value,)
    try:
        made: Perturbation = kind(**given)
        return made
    except UserError as error:
        raise UserError(f"{where}.{error}") from None


def _differing(one: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in dataclasses.fields(one):
        value = getattr(one, each.name)
        if value != each.default and each.name != "perturbations":
            plain = _differing(value) if dataclasses.is_dataclass(value) else value
            values[each.name] = list(plain) if isinstance(plain, tuple) else plain
    return values
