"""The registered worlds, one `EnvironmentSpec` each, as `worlds.yaml` describes them. Reading the table imports no world.

To register a world, add one entry to the file. A user's own class needs none: `worlds.load` takes its dotted path.
"""

import importlib
import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from wm_plugin.errors import UserError, install
from wm_plugin.registry import Registry
from wm_plugin.worlds.kit.described import described

T = TypeVar("T")


@dataclass(frozen=True)
class Needs:
    """What a world needs beside the core.

    Attributes:
        extra: the extra of this package that installs `modules`; None if no extra does.
        modules: Python modules that must be importable.
        programs: executables that must be on the PATH.
    """

    extra: str | None = None
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return what is not installed, each with how to get it."""
        how = install(self.extra) if self.extra else "no extra brings it: docs/worlds.md says how to get it"
        modules = " and ".join(name for name in self.modules if not _exists(name))
        programs = [f"the program {name}" for name in self.programs if shutil.which(name) is None]
        return [f"{modules} ({how})", *programs] if modules else programs


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@dataclass(frozen=True)
class EnvironmentSpec:
    """The description of a world. Objects are named by dotted paths (`package.module:name`).

    Attributes:
        name: the registered name, or the dotted path of a user's own class.
        path: of the class.
        levels: the default first.
        irreversible: tools whose effect nothing takes back, as the class's attribute `irreversible` says.
        splits: what `dataset_rows(split=)` takes; empty where there are only training and held-out rows.
        dataset_rows: path of `dataset_rows(count, seed, held_out[, level][, split])`; None: rows are seeds.
        expert: path of `expert()`, which makes a policy that solves episodes; None: there is none.
        wanderer: path of `wanderer(rng)`, which makes a random policy; None: one that fills in arguments by their types.
        instruction, other_instruction: how prompts begin.
    """

    name: str
    path: str
    summary: str
    levels: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    irreversible: tuple[str, ...] = ()
    needs: Needs = Needs()
    splits: tuple[str, ...] = ()
    dataset_rows: str | None = None
    expert: str | None = None
    wanderer: str | None = None
    instruction: str = ""
    other_instruction: str = ""


def _spec(name: str, of: dict[str, Any]) -> EnvironmentSpec:
    module = f"wm_plugin.worlds.{name}"
    parts: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list | dict) else value for key, value in of.items()
    }
    parts |= {key: f"{value}\n" for key, value in of.items() if "instruction" in key}
    parts |= {function: f"{module}:{function}" for function in ("dataset_rows", "expert", "wanderer")}
    needs = Needs(**{key: parts.pop(key) for key in ("extra", "modules", "programs") if key in parts})
    return EnvironmentSpec(name, f"{module}:{name.title()}Environment", needs=needs, **parts)


SPECS = {name: _spec(name, of) for name, of in described("worlds.yaml").items()}


def described_as(world: str) -> Callable[[type[T]], type[T]]:
    """Give a class what `worlds.yaml` says of its tools: docstrings, of which hosts make schemas, and which are irreversible."""

    def describe(environment: type[T]) -> type[T]:
        for name, of in described("worlds.yaml")[world]["tools"].items():
            arguments = [f"    {key}: {text}" for key, text in of.items() if key not in ("does", "returns")]
            parts = [
                of["does"],
                "\n".join(["Args:", *arguments]) if arguments else "",
                f"Returns:\n    {of['returns']}",
            ]
            getattr(environment, name).__doc__ = "\n\n".join(filter(None, parts))
        environment.irreversible = SPECS[world].irreversible  # type: ignore[attr-defined]
        return environment

    return describe


class _Environments(Registry):
    def get(self, name: str) -> Any:
        """Return the class of this name, at this dotted path, or that a module makes (see `maker`)."""
        made_by = maker(name)
        if made_by is None:
            if name.startswith(("http://", "https://", "openenv")) and name not in self._paths:
                from wm_plugin.worlds.openenv.sessions import public

                raise UserError(
                    f"environment: {public(name)!r} is no world; write openenv:http://host:port for an OpenEnv server"
                )
            if name.isidentifier() and name not in self._paths and importlib.util.find_spec(name):
                raise UserError(f"environment: {name!r} is a module; name its class, {name}:CLASS")
            return super().get(name)
        return importlib.import_module(f"wm_plugin.worlds.{made_by}").world_of(name)


def maker(name: str) -> str | None:
    """Return the module whose `world_of` makes the class of a world's name: of an OpenEnv server's or a file's; else None."""
    if name.startswith("openenv:"):
        return "openenv"
    return "from_file" if name.endswith((".yaml", ".yml", ".json")) else None


ENVIRONMENTS = _Environments("environment", **{name: spec.path for name, spec in SPECS.items()})


def load(name: str) -> type:
    """Return the class of a registered world, at a dotted path, of a file or an OpenEnv server: `load("maze")`."""
    environment: type = ENVIRONMENTS.get(name)
    return environment
