"""What worlds declare of their tools, for dumps of hosts, which have neither schemas nor kinds of observations."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from wm_plugin.data.observers import Observed
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.hosting.world import tool_names
from wm_plugin.registry import import_object
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.worlds import load


def observed(names: Sequence[str], functions: Sequence[str] = ()) -> Observed:
    """Return what the worlds of these names declare of their tools, together.

    Args:
        functions: tools that the agent had beside the worlds', as package.module:function.

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
    alone = [_schema(import_object(path, field="--tools"), f"--tools: {path}") for path in functions]
    tools = [alone] if functions and not names else []
    with suppress(MissingExtraError):  # without transformers a world's tools have no schemas
        for name, cls in worlds:
            own = [_schema(getattr(cls, tool), f"--environment: {name}.{tool}") for tool in tool_names(cls)]
            tools.append([*alone, *own])
    return Observed(kinds, {tool: texts for tool, texts in refusals.items() if texts is not None}, tools)


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
