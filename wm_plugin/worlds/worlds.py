"""An environment ready to be played: its class, rows of a dataset, an expert and a wanderer, from its spec.

A user's own environment may be one class and nothing else: rows are then seeds, and the wanderer fills in arguments by type.
"""

import importlib
import inspect
import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

from wm_plugin.data.schema import Kind
from wm_plugin.errors import UserError, nearest
from wm_plugin.hosting.world import missing_columns, tool_methods, tool_names
from wm_plugin.registry import import_object
from wm_plugin.worlds.kit.choices import choices
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall, check_world, observers, refusals, tool_schema
from wm_plugin.worlds.kit.rows import world_seed
from wm_plugin.worlds.specs import ENVIRONMENTS, SPECS, EnvironmentSpec, maker
from wm_plugin.worlds.wrappers.control import ControlConfig, controlled

WORDS = ("", "1", "yes", "look", "north", "the door")  # a wanderer's arguments for parameters of type text


@dataclass(frozen=True)
class World:
    """An environment by its spec, perhaps under control. What the spec names is imported when it is first used."""

    spec: EnvironmentSpec
    control: ControlConfig | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def summary(self) -> str:
        return self.spec.summary

    @property
    def levels(self) -> tuple[str, ...]:
        return self.spec.levels

    @property
    def splits(self) -> tuple[str, ...]:
        return self.spec.splits

    @property
    def environment(self) -> type:
        """The class."""
        environment: type = self._object(self.spec.path)
        check_world(environment)
        return environment if self.control is None else controlled(environment, self.control)

    def under(self, control: ControlConfig) -> "World":
        """Return the same world with its episodes under control by rule."""
        if not control.of(self.name):
            raise UserError(f"control.worlds leaves out {self.name}; add its name, or leave control.worlds out")
        return replace(self, control=control)

    @property
    def module(self) -> ModuleType:
        """The module that defines the class."""
        return importlib.import_module(self.environment.__module__)

    @property
    def irreversible(self) -> tuple[str, ...]:
        return self.spec.irreversible

    @property
    def observers(self) -> dict[str, Kind]:
        """What is observed after a call of each tool."""
        return observers(self.environment)

    @property
    def refusals(self) -> tuple[str, ...] | None:
        """How observations of an invalid action begin."""
        return refusals(self.environment)

    def missing(self) -> list[str]:
        """Return what must be installed before it can be played."""
        return self.spec.needs.missing()

    def make(self) -> Any:
        """Make an instance, as hosts do: without arguments."""
        try:
            return self.environment()
        except TypeError as error:
            raise UserError(f"{self.name}: hosts make an environment without arguments ({error})") from None

    def rows(
        self,
        count: int,
        seed: int = 0,
        held_out: bool = False,
        level: str | None = None,
        split: str | None = None,
        max_turns: int | None = None,
    ) -> list[dict[str, Any]]:
        """Make rows of a dataset by `dataset_rows` beside the class, or of seeds if there is none.

        `max_turns` counts if it is less than the world's own; prompts name it.
        """
        if split is not None and split not in self.splits:
            hint = nearest(split, self.splits) if self.splits else "; --held-out has the rows that it does not train on"
            raise UserError(f"--split: {self.name} has no split {split!r}{hint}")
        if level is not None and level not in self.levels:
            hint = nearest(level, self.levels) if self.levels else "; leave --level out, it has no levels"
            raise UserError(f"--level: {self.name} has no level {level!r}{hint}")
        if self.spec.dataset_rows is not None:
            dataset_rows: Callable[..., Iterable[dict[str, Any]]] = self._object(self.spec.dataset_rows)
            if maker(self.spec.path):
                dataset_rows = partial(dataset_rows, path=self.spec.path)
            chosen: dict[str, Any] = {"level": level, "split": split}
            chosen = {name: it for name, it in chosen.items() if it is not None}
            signature = inspect.signature(dataset_rows)
            own = signature.parameters.get("max_turns")
            if own is not None and max_turns is not None and max_turns < (own.default or math.inf):
                chosen["max_turns"] = max_turns
            try:
                signature.bind(count, seed, held_out, **chosen)
            except TypeError as error:
                asked = f"write dataset_rows({', '.join(['count', 'seed', 'held_out', *chosen])})"
                raise UserError(f"{self.name}: dataset_rows takes other arguments ({error}); {asked}") from None
            return list(dataset_rows(count, seed, held_out, **chosen))
        if problem := missing_columns(self.environment, ["seed"]):
            raise UserError(f"{self.name}: {problem}; write dataset_rows(count, seed, held_out) beside the class")
        rng = random.Random(seed * 2 + held_out)
        prompt = [{"role": "user", "content": getattr(self.module, "INSTRUCTION", "")}]
        return [{"prompt": prompt, "seed": world_seed(rng, held_out, 10**7)} for _ in range(count)]

    def some_rows(self, count: int, **options: Any) -> list[dict[str, Any]]:
        """Return `rows`, with `count` halved until there are enough."""
        while True:
            try:
                return self.rows(count, **options)
            except UserError:
                if count < 2:
                    raise
                count //= 2

    def expert(self) -> Chooser | None:
        """Make an expert, or None if the environment has none."""
        if self.spec.expert is None:
            return None
        chooser: Chooser = self._object(self.spec.expert)()
        return chooser

    def wanderer(self, rng: random.Random) -> Chooser:
        """Make the environment's own wanderer, or `wander`."""
        if self.spec.wanderer is None:
            return wander(rng)
        chooser: Chooser = self._object(self.spec.wanderer)(rng)
        return chooser

    def _object(self, path: str) -> Any:
        return ENVIRONMENTS.get(path) if maker(path) else import_object(path, field=f"environment {self.name!r}")


def load(name: str) -> World:
    """Return the environment of a registered name, a dotted path (`my_package.worlds:MyEnvironment`), a file (`desk.yaml`) or an
    OpenEnv server (`openenv:http://localhost:8000`).

    A registered one is not imported yet. A user's class is: the functions `dataset_rows`, `expert` and `wanderer` and the names
    `LEVELS`, `SPLITS` and `INSTRUCTION` are taken from the module that defines the class, if it has them.
    """
    return World(SPECS[name] if name in SPECS else _spec_of_class(name))


def _spec_of_class(path: str) -> EnvironmentSpec:
    environment = ENVIRONMENTS.get(path)
    if not isinstance(environment, type) or not callable(getattr(environment, "reset", None)):
        raise UserError(f"environment {path!r} is no class with a method reset")
    module = importlib.import_module(environment.__module__)

    def beside(name: str) -> str | None:
        return f"{module.__name__}:{name}" if hasattr(module, name) else None

    first_paragraph = " ".join((inspect.getdoc(environment) or "").split("\n\n")[0].split())
    return EnvironmentSpec(
        name=path,
        path=path,
        summary=re.split(r"(?<! al)\. ", first_paragraph)[0].rstrip("."),
        levels=tuple(getattr(module, "LEVELS", ())),
        splits=tuple(getattr(module, "SPLITS", ())),
        tools=tuple(tool_names(environment)),
        irreversible=tuple(getattr(environment, "irreversible", ())),
        dataset_rows=beside("dataset_rows"),
        expert=beside("expert"),
        wanderer=beside("wanderer"),
    )


def wander(rng: random.Random) -> Chooser:
    """Return a random policy for any environment: it calls any tool, with values that the schema and docstring name."""

    def choose(environment: Any) -> ToolCall:
        tool = rng.choice(sorted(tool_methods(environment)))
        parameters = _parameters(getattr(type(environment), tool))
        return tool, {name: _value(schema, rng) for name, schema in parameters.items()}

    return choose


@lru_cache
def _parameters(tool: Callable[..., Any]) -> dict[str, Any]:
    properties: dict[str, Any] = tool_schema(tool)["function"]["parameters"]["properties"]
    return properties


def _value(schema: dict[str, Any], rng: random.Random) -> Any:
    """Draw a value that a schema allows: of its `enum`, of those that its description names, or of its type."""
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    kind, description = schema.get("type"), str(schema.get("description", ""))
    if kind == "array":
        items = {"description": description, **schema.get("items", {})}
        return [_value(items, rng) for _ in range(rng.randint(0, 3))]
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "object":
        return {}
    named = choices(description)
    if kind in ("integer", "number"):
        return rng.choice((named and named.numbers) or range(101))
    return str(named.draw(rng, WORDS)) if named else rng.choice(WORDS)
