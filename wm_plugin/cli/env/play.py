"""`wm env play NAME`: a person plays in the terminal, or a file of lines does."""

import argparse
import inspect
import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from wm_plugin.cli.env.support import MOST_ROWS, NAME, add_row_arguments, find, rows
from wm_plugin.cli.terminal import read_line, replace_bad_input, say
from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads

_ERROR = "Error: "
HELP = "help shows this, expert takes the expert's next action, quit ends."


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "play",
        help="play a world yourself",
        description="Reads a line a turn: the argument, where a world has one tool with one argument (`move up; push left`), "
        f'or `tool argument` or `tool {{"name": "value"}}`. {HELP} Lines may come from a file: wm env play NAME < lines.txt',
    )
    parser.add_argument("name", metavar="NAME", help=NAME)
    parser.add_argument(
        "--row", type=int, default=0, metavar="N", help="number of the row, among those of --seed (default: 0)"
    )
    add_row_arguments(parser)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`success`, `reward`, `turns` and `metrics` of the episode, and whether it was `over`; null: the class does not say."""
    from wm_plugin.worlds.kit.protocol import is_over, report, reward_of, tool_methods

    if not 0 <= args.row < MOST_ROWS:
        raise UserError(f"--row is {args.row}; write a number >= 0, below {MOST_ROWS:,}")
    world = find(args.name)
    row = rows(world, args, args.row + 1)[args.row]
    environment, expert = world.make(), world.expert()
    tools = tool_methods(environment)
    replace_bad_input()
    say(f"{world.summary}\n{overview(tools)}\n{HELP}\n")
    prompt = "".join(message["content"] for message in row.get("prompt", ()))
    say(prompt + (environment.reset(**row) or ""))
    while not is_over(environment):
        line = read_line()
        if line is None or line == "quit":
            break
        if line == "help":
            say(explained(tools))
        elif line == "expert":
            call = expert(environment) if expert else None
            if call is None:
                say("The expert gives up." if expert else "This world has no expert.")
            else:
                say(f"(expert) {call[0]} {json.dumps(call[1], ensure_ascii=False)}")
                say(_call(tools, *call))
        else:
            try:
                name, arguments = parse(line, tools)
            except UserError as error:
                say(f"{error}. {HELP}")
                continue
            before = _invalid(environment)
            say(answer := _call(tools, name, arguments))
            refused = _invalid(environment) > before or answer.startswith(_ERROR)
            if refused and (described := _arguments(tools[name])):
                say(f"({name} takes {described})")
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


def show(result: dict[str, Any]) -> None:
    failed = "over" if result["success"] is None else "no success"
    outcome = "success" if result["success"] else failed if result["over"] else "not played to its end"
    reward = "no reward of its own" if result["reward"] is None else f"reward {result['reward']:g}"
    turns = "" if result["turns"] is None else f", {result['turns']} turns"
    counts = ", ".join(f"{value:g} {name}" for name, value in result["metrics"].items())
    print(f"{outcome}: {reward}{turns}" + (f" ({counts})" if counts else ""))


def parse(line: str, tools: Mapping[str, Callable[..., Any]]) -> tuple[str, dict[str, Any]]:
    """The tool call that a line means: a tool's name and its arguments.

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
    """The JSON value of a text if the parameter's type is not text; the text itself if it is no JSON."""
    if inspect.signature(tool).parameters[parameter].annotation in (str, "str"):
        return text
    try:
        return loads(text)
    except ValueError:
        return text


def _call(tools: Mapping[str, Callable[..., Any]], name: str, arguments: dict[str, Any]) -> str:
    try:
        return str(tools[name](**arguments))
    except (ValueError, TypeError) as error:  # as under a host
        return f"{_ERROR}{error}"


def _invalid(environment: Any) -> int:
    """How many actions the world has called invalid; 0 where it counts none."""
    count = getattr(environment, "metrics", {}).get("invalid", 0)
    return count if isinstance(count, int) else 0


def _arguments(tool: Callable[..., Any]) -> str:
    """What a tool's docstring says of its arguments, on one line; empty if it says nothing."""
    section = (inspect.getdoc(tool) or "").partition("Args:\n")[2]
    return " ".join(re.split(r"\n(?=\S)", section, maxsplit=1)[0].split())


def overview(tools: Mapping[str, Callable[..., Any]]) -> str:
    """The tools with their arguments, a line each."""
    lines = []
    for name, tool in tools.items():
        line = " ".join([name, *inspect.signature(tool).parameters])
        lines.append(f"{line}  ({described})" if (described := _arguments(tool)) else line)
    return "\n".join(filter(None, ["You can write:", *lines, _how(tools)]))


def _how(tools: Mapping[str, Callable[..., Any]]) -> str:
    """How to write arguments; empty if there are none."""
    parameters = [name for tool in tools.values() for name in inspect.signature(tool).parameters]
    if not parameters:
        return ""
    if len(tools) == len(parameters) == 1:
        return f"The {parameters[0]} alone will do."
    return 'Arguments with spaces stand in quotes; or all of them as JSON: tool {"argument": "value"}.'


def explained(tools: Mapping[str, Callable[..., Any]], first: str = HELP) -> str:
    """The tools with their arguments and what their docstrings say.

    Args:
        first: a line before them.
    """
    lines = [first]
    for name, tool in tools.items():
        lines += ["", f"{name} {' '.join(inspect.signature(tool).parameters)}".strip(), inspect.getdoc(tool) or ""]
    return "\n".join(lines)
