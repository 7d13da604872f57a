"""An environment by name or dotted path, with what its module has beside it: rows, levels, an expert and a wanderer.

A user's own world may be one class and nothing else: rows are then seeds, and the wanderer fills in its tools' arguments by type.
"""

import importlib.util
import inspect
import random
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from wm_plugin.environments import ENVIRONMENTS
from wm_plugin.environments.kit.actions import Choose, Chosen
from wm_plugin.environments.kit.protocol import missing_columns, tool_methods, tool_schema
from wm_plugin.errors import UserError, nearest

WORDS = ("", "1", "yes", "look", "north", "the door")  # what a wanderer writes where a tool takes any text


@dataclass(frozen=True)
class Need:
    """What a world needs beside the core: modules that an extra brings, or the user, and programs of the system."""

    extra: str | None
    modules: tuple[str, ...]
    programs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """What is not installed, to be shown to people."""
        how = f"pip install 'wm-plugin[{self.extra}]'" if self.extra else "no extra brings it: see the docs"
        modules = [f"{name} ({how})" for name in self.modules if not _exists(name)]
        return modules + [f"the program {name}" for name in self.programs if shutil.which(name) is None]


NEEDS = {
    "alfworld": Need("alfworld", ("alfworld", "fast_downward")),
    "docs": Need("docs", ("bm25s",)),
    "forth": Need("forth", ("bm25s",), ("gforth", "bwrap")),
    "maze": Need("maze", ("mazelib",)),
    "scienceworld": Need("scienceworld", ("scienceworld",), ("java",)),
    "shop": Need("shop", ("bm25s",)),
    "sokoban": Need("sokoban", ("reasoning_gym",)),
    "taxi": Need("taxi", ("gymnasium",)),
    "tau2": Need(None, ("tau2.gym.gym_agent",)),
    "textworld": Need("textworld", ("textworld",)),
}


@dataclass(frozen=True)
class World:
    """An environment class, and the functions of its module."""

    name: str
    environment: type

    @property
    def module(self) -> ModuleType:
        return sys.modules[self.environment.__module__]

    @property
    def summary(self) -> str:
        """The first sentence of its description."""
        own = self.name not in ENVIRONMENTS
        text = inspect.getdoc(self.environment if own else self.module) or ""
        return re.split(r"(?<! al)\. ", " ".join(text.split("\n\n")[0].split()))[0].rstrip(".")

    @property
    def levels(self) -> tuple[str, ...]:
        """Their names, the default first; none if the module has no `LEVELS`."""
        return tuple(getattr(self.module, "LEVELS", ()))

    @property
    def irreversible(self) -> tuple[str, ...]:
        return tuple(getattr(self.environment, "irreversible", ()))

    @property
    def need(self) -> Need | None:
        return NEEDS.get(self.name)

    def missing(self) -> list[str]:
        return self.need.missing() if self.need else []

    def make(self) -> Any:
        """A new instance.

        Raises:
            UserError: the class cannot be made without arguments, as hosts make it.
        """
        try:
            return self.environment()
        except TypeError as error:
            raise UserError(f"{self.name}: hosts make an environment without arguments ({error})") from None

    def rows(self, count: int, seed: int = 0, held_out: bool = False, level: str | None = None) -> list[dict[str, Any]]:
        """Rows of a dataset: those of the module's `dataset_rows`, or seeds where it has none.

        Raises:
            UserError: there is no such level, there are fewer rows, or a class without `dataset_rows` needs other columns.
        """
        if level is not None and level not in self.levels:
            raise UserError(f"--level: {self.name} has no level {level!r}{nearest(level, self.levels)}")
        make: Callable[..., list[dict[str, Any]]] | None = getattr(self.module, "dataset_rows", None)
        if make is not None:
            return make(count, seed, held_out, **({} if level is None else {"level": level}))
        if problem := missing_columns(self.environment, ["seed"]):
            raise UserError(f"{self.name}: {problem}; write dataset_rows(count, seed, held_out) beside the class")
        rng = random.Random(seed * 2 + held_out)
        prompt = [{"role": "user", "content": getattr(self.module, "INSTRUCTION", "")}]
        # Held-out seeds are divisible by 10, and no other is.
        seeds = [rng.randrange(10**7) * 10 + (0 if held_out else rng.randint(1, 9)) for _ in range(count)]
        return [{"prompt": prompt, "seed": one} for one in seeds]

    def some_rows(self, count: int, **options: Any) -> list[dict[str, Any]]:
        """`rows`, or half of them and so on where there are not so many."""
        while True:
            try:
                return self.rows(count, **options)
            except UserError:
                if count < 2:
                    raise
                count //= 2

    def expert(self) -> Choose | None:
        """A new one, or None where the module has none."""
        make = getattr(self.module, "expert", None)
        return None if make is None else make()

    def wanderer(self, rng: random.Random) -> Choose:
        """The module's, or one that fills in arguments by their types."""
        make = getattr(self.module, "wanderer", None)
        found: Choose = wander(rng) if make is None else make(rng)
        return found


def load(name: str) -> World:
    """The world called `name`, or of the class at a dotted path such as `my_package.worlds:MyEnvironment`.

    Raises:
        UserError: there is none, or what is there is no environment.
    """
    found = ENVIRONMENTS.get(name)
    if not isinstance(found, type) or not callable(getattr(found, "reset", None)):
        raise UserError(f"environment {name!r} is no class with a method reset")
    return World(name, found)


def wander(rng: random.Random) -> Choose:
    """Calls any tool of any environment, with arguments of the right types: enumerated values, small numbers, a few words."""

    def choose(environment: Any) -> Chosen:
        tool = rng.choice(sorted(tool_methods(environment)))
        parameters = _parameters(getattr(type(environment), tool))
        return tool, {name: _value(schema, rng) for name, schema in parameters.items()}

    return choose


@lru_cache
def _parameters(tool: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = tool_schema(tool)["function"]["parameters"]["properties"]
    return found


def _value(schema: dict[str, Any], rng: random.Random) -> Any:
    kind = schema.get("type")
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if kind in ("integer", "number"):
        return rng.randint(0, 100)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return [_value(schema.get("items", {}), rng) for _ in range(rng.randint(0, 3))]
    return {} if kind == "object" else rng.choice(WORDS)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
