"""A simulated environment without a class: its tools and its first observation stand in a file, and a world model answers.

The path of a file (.yaml, .yml or .json) takes the place of an environment's name, beside `simulation`; docs/agentworld.md has an
example.

Hosts make schemas of Python functions, so functions are made of the file's schemas. A schema that hosts would make otherwise is
refused.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from wm_plugin.errors import UserError, shown
from wm_plugin.hosting.world import not_a_tool
from wm_plugin.options import Options, option
from wm_plugin.runtime.texts import read_yaml
from wm_plugin.worlds import scenarios
from wm_plugin.worlds.kit.made import TAKEN, Parameter, is_parameter_name, is_tool_name, make_tool
from wm_plugin.worlds.kit.protocol import observers, tool_schema
from wm_plugin.worlds.scenarios import Scenario

_TYPES: dict[Any, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}


class _File(Options):
    """The fields of a file; the module describes them."""

    example = "tools: [...]"

    tools: list[Any] = option("Their JSON schemas.", write="a list of JSON schemas of tools", min_length=1)
    summary: str = option("One line about it.", default="")
    instruction: str = option("The beginning of each prompt.", default="")
    initial_state: str = option("What the agent sees first.", default="")
    world_context: str = option("What only the world model is told.", default="")
    observer: Any = option("Who answers.", default="tool")
    tasks: list[Any] = option("Scenarios.", default=[], write="a list of tasks, each with a query")


@lru_cache
def world_of(path: str) -> type:
    """Return the class of a file, for `simulated`: it has no world behind it."""
    file = _read(path)

    class FromFile:
        _wm_file = path
        observer = file.observer

        def reset(self, initial_state: str = "", world_context: str = "", **_: Any) -> str:
            self._hidden = world_context or file.world_context
            return initial_state or file.initial_state

        def get_reward(self) -> float:
            return 0.0  # `simulated` decides

        @not_a_tool
        def world_context(self) -> str:
            """The hidden state, for a world model."""
            return self._hidden

    FromFile.__name__ = FromFile.__qualname__ = Path(path).stem
    FromFile.__doc__ = file.summary or None
    for number, schema in enumerate(file.tools):
        tool = _tool(schema, f"{path}: tools[{number}]")
        if hasattr(FromFile, tool.__name__):
            raise UserError(f"{path}: tools[{number}]: there are two tools {tool.__name__!r}")
        tool.__qualname__ = f"{path}.{tool.__name__}"  # schemas are kept by it
        setattr(FromFile, tool.__name__, tool)
    try:
        observers(FromFile)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return FromFile


def dataset_rows(count: int, seed: int = 0, held_out: bool = False, *, path: str) -> list[dict[str, Any]]:
    """Make rows of a file's tasks, as `scenarios.dataset_rows` does, each with the instruction; one task if it names none."""
    file = _read(path)
    state = {"initial_state": file.initial_state, "world_context": file.world_context}
    tasks = [
        scenarios.scenario_of(task, f"{path}: tasks[{number}]", f"t{number}") for number, task in enumerate(file.tasks)
    ]
    tasks = [one.replace(**{name: getattr(one, name) or text for name, text in state.items()}) for one in tasks]
    rows = scenarios.rows_of(
        tasks or [Scenario("", "t0", file.initial_state, file.world_context)], count, seed, held_out, path
    )
    instruction = file.instruction.strip()
    for row in rows:
        (message,) = row["prompt"]
        content = "\n\n".join(filter(None, [instruction, message["content"].strip()]))
        row["prompt"] = [{"role": "user", "content": f"{content}\n\n" if content else ""}]
    return rows


def _read(path: str) -> _File:
    return _File.read(read_yaml(Path(path), "environment"), path)


def _tool(schema: Any, where: str) -> Callable[..., str]:
    """Make a tool with this schema, which a world model answers."""
    schema = _field(schema, "function", schema)
    name, description = _field(schema, "name"), _field(schema, "description")
    if not is_tool_name(name):
        raise UserError(
            f"{where}: name is {shown(name)}; write letters, digits and underscores, and none of {', '.join(TAKEN)}"
        )
    where, parameters = f"{where} ({name})", _field(schema, "parameters", {})
    properties, required = _field(parameters, "properties", {}), _field(parameters, "required", [])
    if not all(isinstance(one, Mapping) for one in (parameters, properties)) or not isinstance(required, list):
        raise UserError(
            f"{where}: parameters is {shown(parameters)}; write {{type: object, properties: {{...}}, required: [...]}}"
        )
    told = {one: _field(it, "description") for one, it in properties.items()}
    for owner, value in {name: description, **told}.items():
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"{where}: description of {shown(owner)} is {shown(value)}; write a text")
    parameters_of: list[Parameter] = []
    for one, it in properties.items():
        if not is_parameter_name(one):
            raise UserError(f"{where}: a parameter is called {shown(one)}, which is no name in Python; rename it")
        parameters_of.append((one, _type(it), one in required, told[one]))

    def run(self: Any, _: dict[str, Any]) -> str:
        raise UserError(f"{name}: {type(self)._wm_file} has no world behind it; add simulation")

    tool = make_tool(name, str(description), parameters_of, run)
    _check(tool, str(description), properties, required, where)
    return tool


def _field(schema: Any, name: str, default: Any = None) -> Any:
    value = schema.get(name) if isinstance(schema, Mapping) else None
    return default if value is None else value


def _type(schema: Mapping[str, Any]) -> Any:
    """Return the Python type of a schema; text if it has none, which `_check` refuses."""
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str | int) for value in values):
        return Literal[tuple(values)]
    kind = schema.get("type")
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return list[_type(schema["items"])]  # type: ignore[misc]
    return _TYPES.get(kind, str) if isinstance(kind, str) else str


def _check(
    tool: Callable[..., str], description: str, properties: Mapping[str, Any], required: list[Any], where: str
) -> None:
    """Refuse a schema that hosts would make otherwise."""
    try:
        made = tool_schema(tool)["function"]
    except ValueError as error:  # of transformers, about a docstring
        raise UserError(f"{where}: {' '.join(str(error).split())[:200]}") from None
    parameters = made["parameters"]
    pairs: list[tuple[str, Any, Any]] = []
    for one, it in properties.items():
        as_told = parameters["properties"].get(one, {})
        pairs += [(f"{key} of parameter {one}", it.get(key), as_told.get(key)) for key in {**it, **as_told}]
    pairs.append(("required", sorted(map(str, required)), sorted(parameters.get("required", []))))
    pairs.append(("description", " ".join(description.split()), " ".join(made["description"].split())))
    for what, wanted, told in pairs:
        if wanted != told:
            raise UserError(
                f"{where}: {what} is {shown(wanted)}, and hosts would tell {shown(told)}; write a type (string, integer, number, "
                "boolean, object, or array with items of these), a description on one line, and perhaps an enum"
            )
