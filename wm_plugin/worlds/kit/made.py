"""Worlds whose class is made of data: its tools are functions made of JSON schemas, of which hosts make schemas again.

No text of a schema is ever run: a function is given a name, a signature and a docstring, and a closure does its work.
"""

import inspect
from collections.abc import Callable, Sequence
from keyword import iskeyword
from typing import Any

from wm_plugin.hosting.world import NOT_TOOLS

# Attributes of every environment, which no tool may take the place of.
TAKEN = (*NOT_TOOLS, "over", "success", "turns", "max_turns", "metrics", "observer")
Parameter = tuple[str, Any, bool, str]  # name, Python type, whether it is required, and one line about it


def is_tool_name(name: Any) -> bool:
    """Return whether a tool may have this name: letters, digits, underscores and hyphens."""
    return isinstance(name, str) and name.replace("-", "_").isidentifier() and name[0] != "_" and name not in TAKEN


def is_parameter_name(name: Any) -> bool:
    """Return whether a parameter of a tool may have this name in Python."""
    return isinstance(name, str) and name.isidentifier() and not iskeyword(name) and name != "self"


def make_tool(
    name: str, description: str, parameters: Sequence[Parameter], run: Callable[[Any, dict[str, Any]], str]
) -> Callable[..., str]:
    """Make a method with this name, signature and documentation, which calls `run(instance, arguments)`.

    Arguments that do not fit the signature raise a TypeError, as those of any method do.
    """
    arguments = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for one, kind, required, _ in parameters:
        default = inspect.Parameter.empty if required else None
        arguments.append(inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    signature = inspect.Signature(arguments)
    names, needed = {one for one, *_ in parameters}, {one for one, _, required, _ in parameters if required}

    def tool(self: Any, **given: Any) -> str:
        if not needed <= given.keys() <= names:
            signature.bind(self, **given)  # which raises
        return run(self, given)

    tool.__name__, tool.__signature__ = name, signature  # type: ignore[attr-defined]
    tool.__annotations__ = {one.name: one.annotation for one in arguments[1:]}
    lines = [f"    {one}: {told}" for one, _, _, told in parameters]
    tool.__doc__ = "\n".join([description, *(["", "Args:"] if lines else []), *lines])
    return tool
