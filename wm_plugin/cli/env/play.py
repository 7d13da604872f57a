"""`wm env play`."""

import json
from typing import Any

from wm_plugin.cli.flags import RowFlags, WorldName
from wm_plugin.cli.numbers import RowNumber
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import find
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import is_over, report, tool_methods
from wm_plugin.runtime.terminal import read_line, replace_bad_input, say
from wm_plugin.worlds.agents.typed import HELP, HELP_ALONE, arguments_of, explained, overview, parse
from wm_plugin.worlds.kit.protocol import reward_of

_ERROR = "Error: "


def show(result: dict[str, Any]) -> None:
    failed = "over" if result["success"] is None else "no success"
    outcome = "success" if result["success"] else failed if result["over"] else "not played to its end"
    reward = "no reward of its own" if result["reward"] is None else f"reward {result['reward']:g}"
    turns = "" if result["turns"] is None else f", {result['turns']} turns"
    counts = ", ".join(f"{value:g} {name}" for name, value in result["metrics"].items())
    print(f"{outcome}: {reward}{turns}" + (f" ({counts})" if counts else ""))


@prints(show)
def play(name: WorldName, /, *, row: RowNumber = 0, rows: RowFlags = RowFlags()) -> dict[str, Any]:
    """Play a world yourself.

    Reads a line a turn: the argument, where a world has one tool with one argument (`move up; push left`), or `tool argument` or
    `tool {"name": "value"}`. `help` explains the tools, `expert` takes the next action of the world's expert, if it has one,
    `quit` ends. Lines may come from a file: wm env play NAME < lines.txt

    As JSON: `success`, `reward`, `turns` and `metrics` of the episode, and whether it was `over`; null is what the world's class
    does not say.

    Args:
        row: Number of the row, among those of --seed.
    """
    world = find(name)
    columns = rows.rows(world, row + 1)[row]
    environment, expert = world.make(), world.expert()
    way_out = HELP if expert else HELP_ALONE
    tools = tool_methods(environment)
    replace_bad_input()
    say(f"{world.summary}\n{overview(tools)}\n{way_out}\n")
    prompt = "".join(message["content"] for message in columns.get("prompt", ()))
    say(prompt + (environment.reset(**columns) or ""))
    while not is_over(environment):
        line = read_line()
        if line is None or line == "quit":
            break
        if line == "help":
            say(explained(tools, way_out))
        elif line == "expert":
            call = expert(environment) if expert else None
            if call is None:
                say("The expert gives up." if expert else "This world has no expert.")
            else:
                say(f"(expert) {call[0]} {json.dumps(call[1], ensure_ascii=False)}")
                say(_call(tools, *call))
        else:
            try:
                tool, arguments = parse(line, tools)
            except UserError as error:
                say(f"{error}. {way_out}")
                continue
            before = _invalid(environment)
            say(answer := _call(tools, tool, arguments))
            refused = _invalid(environment) > before or answer.startswith(_ERROR)
            if refused and (described := arguments_of(tools[tool])):
                say(f"({tool} takes {described})")
    figures = report(environment)
    success, turns = figures.pop("success", None), figures.pop("turns", None)
    return {
        "environment": world.name,
        "over": is_over(environment),
        "success": None if success is None else bool(success),
        "reward": reward_of(environment),
        "turns": None if turns is None else int(turns),
        "metrics": figures,
    }


def _call(tools: Any, name: str, arguments: dict[str, Any]) -> str:
    try:
        return str(tools[name](**arguments))
    except (ValueError, TypeError) as error:  # as under a host
        return f"{_ERROR}{error}"


def _invalid(environment: Any) -> int:
    """How many actions the world has called invalid; 0 where it counts none."""
    count = getattr(environment, "metrics", {}).get("invalid", 0)
    return count if isinstance(count, int) else 0
