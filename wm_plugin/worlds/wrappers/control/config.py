"""Options of the control: the block `control` on TRL and `wm.control` on verl."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting.annealing import Curriculum
from wm_plugin.options import Names, Options, Whole, option
from wm_plugin.worlds.wrappers.control.perturbations import PERTURBATIONS, AnyPerturbation

FIELD = "control"


class ControlConfig(Options):
    """The perturbations of a run's episodes, in the order in which they change a text; a call that fails has no other."""

    example = "{perturbations: [{name: error, rate: 0.1}]}"

    perturbations: tuple[Annotated[AnyPerturbation, Field(discriminator="name")], ...] = option(
        f"Entries of a name and its fields: {', '.join(PERTURBATIONS)}.",
        min_length=1,
        write="e.g. [{name: error, rate: 0.1}]",
    )
    seed: Whole = option("Seeds all draws.", default=0)
    guarded: bool = option("Take what is withheld out of a world model's texts, too, by rule.", default=True)
    evaluation: bool = option("Perturb the episodes of evaluations, too.", default=False)
    worlds: Names | None = option(
        "Which of several named environments are under control, by the names of `environment`; null: all.",
        default=None,
        write="names of the environments, or null for all",
    )
    curriculum: Curriculum | None = option(
        "A factor of all rates that changes by step or by success; see `Curriculum`.", default=None
    )

    def of(self, name: str) -> bool:
        """Whether the environment of this name is under control."""
        return self.worlds is None or name in self.worlds

    def as_mapping(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, as JSON; `read` takes them back."""
        values = self.changed()
        entries = values.pop("perturbations")
        return {**values, "perturbations": entries}

    @property
    def preserves_oracle(self) -> bool:
        """Whether a policy that solves the world solves it under this control, if it tries again what failed."""
        return all(one.preserves and (one.of_episode or one.rate != 1) for one in self.perturbations)

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
