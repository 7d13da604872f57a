"""Tools made of what an OpenEnv server says of its actions: JSON schemas, which are a server's text.

Names are checked, texts become one line and are cut, and depth and counts are bounded. What a type hint cannot say, such as the
bounds of a number or the fields of an object, is left out: the server checks it.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any, Literal

from wm_plugin.errors import UserError, shown
from wm_plugin.untrusted import encodable
from wm_plugin.worlds.kit.made import Parameter, is_parameter_name, is_tool_name, make_tool
from wm_plugin.worlds.kit.protocol import tool_schema

MOST_TOOLS, MOST_PARAMETERS, MOST_VALUES = 128, 64, 100  # of a server, of a tool, of an enum
LONGEST_TEXT = 1_000  # characters of a description
_LEVELS = 8  # of a type
_TYPES: dict[Any, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": None,
}
# What a docstring's reader takes for more than text.
_MARKS = ("Args:", "Returns:", "Raises:", "(choices:")

Run = Callable[[Any, str, dict[str, Any]], str]  # what calls a tool: the instance, the tool's name, arguments


def tools_of(listed: Any, run: Run, where: str) -> dict[str, Callable[..., str]]:
    """Make the tools of a list of MCP tools, each with a name, a description and an input_schema.

    Raises:
        UserError: a name or a schema is not one that hosts can show, or there are too many.
    """
    if not isinstance(listed, list) or not listed or len(listed) > MOST_TOOLS:
        raise UserError(f"{where}: its tools are {shown(listed)}; a world has from 1 to {MOST_TOOLS}")
    tools: dict[str, Callable[..., str]] = {}
    for one in listed:
        name, description, schema = (_field(one, key) for key in ("name", "description", "input_schema"))
        tool = tool_of(name, description, schema, run, where)
        if name in tools:
            raise UserError(f"{where}: there are two tools {name!r}; rename one on the server")
        tools[name] = tool
    return tools


def tool_of(name: Any, description: Any, schema: Any, run: Run, where: str) -> Callable[..., str]:
    """Make a tool of the JSON schema of its arguments; `metadata`, which every OpenEnv action has, is none of them."""
    if not is_tool_name(name) or len(name) > 64:
        raise UserError(
            f"{where}: a tool is called {shown(name)}; rename it on the server: up to 64 letters, digits and underscores, and no "
            "name that worlds use, such as over or turns"
        )
    where = f"{where}: {name}"
    properties, required = _field(schema, "properties") or {}, _field(schema, "required") or []
    if not isinstance(schema, Mapping) or not isinstance(properties, Mapping) or not isinstance(required, list):
        raise UserError(f"{where} has the schema {shown(schema)}; a tool needs one of an object with properties")
    if len(properties) > MOST_PARAMETERS:
        raise UserError(f"{where} has {len(properties)} parameters; {MOST_PARAMETERS} are the most")
    definitions = _field(schema, "$defs")
    parameters: list[Parameter] = []
    known: dict[tuple[str, int], Any] = {}
    for one, it in properties.items():
        if one == "metadata" and one not in required:
            continue
        if not is_parameter_name(one):
            raise UserError(f"{where}: a parameter is called {shown(one)}, which is no name in Python; rename it")
        told = line(_field(it, "description")) or f"The argument {one}."
        parameters.append((one, _type(it, definitions, known), one in required, told))
    tool = make_tool(
        name, line(description) or f"Call {name}.", parameters, lambda world, given: run(world, name, given)
    )
    _check(tool, [one for one, *_ in parameters], where)
    return tool


def line(text: Any) -> str:
    """Return a server's text on one line, cut; "" if it is none."""
    if not isinstance(text, str):
        return ""
    words = " ".join(encodable(text[: 4 * LONGEST_TEXT]).split())
    for mark in _MARKS:
        words = words.replace(mark, mark.rstrip(":"))
    return words if len(words) <= LONGEST_TEXT else f"{words[:LONGEST_TEXT]}..."


def _field(schema: Any, name: str) -> Any:
    return schema.get(name) if isinstance(schema, Mapping) else None


def _type(schema: Any, definitions: Any, known: dict[tuple[str, int], Any], levels: int = _LEVELS) -> Any:
    """Return the Python type of a schema, without null; Any if a type hint cannot say it.

    Args:
        known: types of references, by their levels: definitions that refer to each other many times are read once.
    """
    if not isinstance(schema, Mapping) or levels == 0:
        return Any
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if (place := (reference, levels)) not in known:
            known[place] = _type(
                _field(definitions, reference.removeprefix("#/$defs/")), definitions, known, levels - 1
            )
        return known[place]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= MOST_VALUES and all(type(one) in (str, int) for one in values):
        return Literal[tuple(encodable(values))]
    kind = schema.get("type")
    several: Any = [{**schema, "type": one} for one in kind] if isinstance(kind, list) else None
    for key in ("anyOf", "oneOf", "allOf"):
        several = several or schema.get(key)
    if isinstance(several, list):
        return _union([_type(one, definitions, known, levels - 1) for one in several[:MOST_VALUES]])
    if kind == "array":
        items: Any = _type(schema.get("items"), definitions, known, levels - 1)
        return list if items is Any else list[items]
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _union(types: list[Any]) -> Any:
    types = [one for one in types if one is not None]
    return reduce(or_, types) if types and Any not in types else Any


def _check(tool: Callable[..., str], names: list[str], where: str) -> None:
    """Refuse a tool of which hosts would make another schema."""
    try:
        made = tool_schema(tool)["function"]["parameters"]["properties"]
    except ImportError:
        return  # no host is here to read it
    except Exception as error:  # whatever transformers raises on a docstring
        raise UserError(f"{where}: hosts can make no schema of it ({' '.join(str(error).split())[:200]})") from None
    if list(made) != names:
        raise UserError(f"{where}: hosts would show the parameters {shown(list(made))}, not {shown(names)}")
