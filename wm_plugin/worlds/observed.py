"""What worlds declare of their tools, for dumps of hosts, which have neither schemas nor kinds of observations."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from wm_plugin.data.observers import Observed
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.hosting.world import tool_names
from wm_plugin.registry import import_object
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.specs import load as environment_class
from wm_plugin.worlds.worlds import load


def observed(names: Sequence[str], tools: Sequence[str] = ()) -> Observed:
    """Return what the worlds of these names declare of their tools, together.

    Args:
        tools: what the agent had beside the worlds', each name one of `schemas_of` or several with commas between them.

    Raises:
        UserError: a name does not exist, a tool has no schema, or two worlds declare a tool's answers differently.
    """
    kinds: dict[str, Any] = {}
    refusals: dict[str, tuple[str, ...] | None] = {}
    worlds = []
    for name in names:
        world = load(name)
        worlds.append((name, world.environment))
        for tool, kind in world.observers.items():
            if kinds.setdefault(tool, kind) != kind:
                raise UserError(
                    f"--environment: what {tool} answers is observed as {kinds[tool]} in one world and as {kind} in {name}: "
                    "convert their rollouts one by one"
                )
            before = refusals.get(tool, ())
            refusals[tool] = None if before is None or world.refusals is None else before + world.refusals
    alone, sets = [], []  # of functions, which are shown with each class; and of classes
    for path in filter(None, (one.strip() for text in tools for one in text.split(","))):
        cls, schemas = _named(path)
        if cls is None:
            alone += schemas
        else:
            sets.append(schemas)
    with suppress(MissingExtraError):  # without transformers a world's tools have no schemas
        sets += [_schemas(cls, f"--environment: {name}") for name, cls in worlds]
    shown = [[*alone, *own] for own in sets] or ([alone] if alone else [])
    return Observed(kinds, {tool: texts for tool, texts in refusals.items() if texts is not None}, shown)


def _named(path: str) -> tuple[type | None, list[dict[str, Any]]]:
    """Return the class of this name, if it is one, and the schemas of its tools, or of the function.

    Args:
        path: package.module:name of a function or a class, a world's name, or a world's file.
    """
    found = import_object(path, field="--tools") if ":" in path else None
    if found is None:
        try:
            found = environment_class(path)
        except UserError as error:
            problem = str(error).removeprefix("environment: ")
            raise UserError(f"--tools: {problem}; or write package.module:function") from None
    if isinstance(found, type):
        if schemas := _schemas(found, f"--tools: {path}"):
            return found, schemas
        raise UserError(f"--tools: {path} has no public methods, and so no tools")
    if not callable(found):
        raise UserError(f"--tools: {path} is of type {type(found).__name__}; name a function, a class or a world")
    return None, [_schema(found, f"--tools: {path}")]


def _schemas(cls: type, where: str) -> list[dict[str, Any]]:
    return [_schema(getattr(cls, tool), f"{where}.{tool}") for tool in tool_names(cls)]


def _schema(function: Any, where: str) -> dict[str, Any]:
    try:
        return tool_schema(function)
    except UserError:
        raise
    except Exception as error:  # transformers raises errors of its own kinds
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{where} has no schema ({reason}); write annotations, and a docstring that describes its arguments"
        ) from None
