"""Tool calls that a person types: reads a line as a call, and explains a world's tools."""

import inspect
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads

Tools = Mapping[str, Callable[..., Any]]
HELP = "help shows this, expert takes the expert's next action, quit ends."
HELP_ALONE = "help shows this, quit ends."  # of a world without an expert


def parse(line: str, tools: Tools) -> tuple[str, dict[str, Any]]:
    """Return the tool call that a line means: a tool's name and its arguments.

    Raises:
        UserError: there is no such tool, or it takes other arguments.
    """
    word, _, rest = line.partition(" ")
    name, rest = (word, rest.strip()) if word in tools else (next(iter(tools)), line)
    parameters = list(inspect.signature(tools[name]).parameters)
    if word not in tools and (len(tools) > 1 or len(parameters) != 1):
        raise UserError(f"There is no tool {word!r}; there is {', '.join(tools)}")
    if rest.startswith("{"):
        try:
            arguments = loads(rest)
        except ValueError as error:
            raise UserError(f"{name}: no JSON ({error})") from None
        if isinstance(arguments, dict):
            return name, arguments
    if len(parameters) == 1 and rest:
        return name, {parameters[0]: _value(rest, tools[name], parameters[0])}
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    if len(words) != len(parameters):
        call = " ".join([name, *map(str.upper, parameters)])
        raise UserError(f"{name} takes {', '.join(parameters) or 'nothing'}, not {rest!r}; write {call}")
    pairs = zip(parameters, words, strict=True)
    return name, {parameter: _value(word, tools[name], parameter) for parameter, word in pairs}


def _value(text: str, tool: Callable[..., Any], parameter: str) -> Any:
    """Return the JSON value of a text if the parameter's type is not text; the text itself if it is no JSON."""
    if inspect.signature(tool).parameters[parameter].annotation in (str, "str"):
        return text
    try:
        return loads(text)
    except ValueError:
        return text


def arguments_of(tool: Callable[..., Any]) -> str:
    """Return what a tool's docstring says of its arguments, on one line; empty if it says nothing."""
    section = (inspect.getdoc(tool) or "").partition("Args:\n")[2]
    return " ".join(re.split(r"\n(?=\S)", section, maxsplit=1)[0].split())


def overview(tools: Tools) -> str:
    """List the tools with their arguments, a line each."""
    lines = []
    for name, tool in tools.items():
        line = " ".join([name, *inspect.signature(tool).parameters])
        lines.append(f"{line}  ({described})" if (described := arguments_of(tool)) else line)
    return "\n".join(filter(None, ["You can write:", *lines, _how(tools)]))


def _how(tools: Tools) -> str:
    """Say how to write arguments; empty if there are none."""
    parameters = [name for tool in tools.values() for name in inspect.signature(tool).parameters]
    if not parameters:
        return ""
    if len(tools) == len(parameters) == 1:
        return f"The {parameters[0]} alone will do."
    return 'Arguments with spaces stand in quotes; or all of them as JSON: tool {"argument": "value"}.'


def explained(tools: Tools, first: str = HELP) -> str:
    """List the tools with their arguments and what their docstrings say.

    Args:
        first: a line before them.
    """
    lines = [first]
    for name, tool in tools.items():
        lines += ["", f"{name} {' '.join(inspect.signature(tool).parameters)}".strip(), inspect.getdoc(tool) or ""]
    return "\n".join(lines)
