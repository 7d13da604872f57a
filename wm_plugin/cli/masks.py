"""`wm masks`: which tokens of rollouts count, for which tool and with which weight."""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wm_plugin.cli.rollouts import (
    Row,
    check_file,
    example,
    example_tokenizer,
    first,
    inspect_row,
    lacks_schemas,
    read_rows,
    read_text,
)
from wm_plugin.cli.templates import load_with_template, tokenizer_checks, training_template
from wm_plugin.data.host_dumps import warnings
from wm_plugin.data.outputs import check_apart, check_out, write_text
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.tokens.tokenizer import turn_ends

_LONGEST = 60  # characters of a span in a pipe
_DESCRIPTION = """Show which tokens of rollouts the world-model objective counts, with the code of training.

ROLLOUTS is JSONL, one object a line:
  {"messages": [...], "tools": [...]}             the prompt ends before the first assistant message
  {"prompt": [...], "completion": [...]}          the same, divided; TRL's completions/*.parquet has these columns
  {"completion_ids": [...], "spans": [[start, end, role, tool or null, content], ...]}
  trajectories, as wm env rollout and wm data convert write them; .parquet too
Messages are those of OpenAI and TRL; a tool message may carry "failed": true where the host made it up."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "masks",
        help="show which tokens of rollouts count, on the terminal or as HTML",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("rollouts", nargs="?", metavar="ROLLOUTS", help="a .jsonl file, or a .parquet file that TRL wrote")
    add("--example", action="store_true", help="a rollout of the demo's grid world instead; needs no file at all")
    add("--tokenizer", metavar="PATH", help="directory (or name on the Hub) of the tokenizer")
    add("--chat-template", metavar="FILE", help="instead of the tokenizer's: a file, or the name of one that TRL ships")
    add("--config", metavar="YAML", help="fields of EchoConfig, or a trainer config with echo_* keys")
    add("--tools", metavar="A,B", help='only these tools; or with multipliers: \'{"a": 0.3, "b": 1}\'')
    add("--with-scaffold", action="store_true", help="count the chat template around the content, too")
    add("--include-errors", action="store_true", help="count results that the host made up for failed calls, too")
    add("--limit", type=int, default=10, metavar="N", help="show the first N rollouts; 0: all (default: 10)")
    add("--html", metavar="OUT", help="write a self-contained HTML file instead")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Inspect rollouts. Positions count from the first token of the prompt; a token with weight 0 does not count."""
    if args.example and (args.rollouts or args.tokenizer):
        raise UserError("--example brings its own rollout and tokenizer; leave ROLLOUTS and --tokenizer out")
    if not args.example and not (args.rollouts and args.tokenizer):
        raise UserError(
            f"{'--tokenizer PATH' if args.rollouts else 'ROLLOUTS'} is missing: trl writes rollouts into "
            "OUTPUT_DIR/completions with log_completions: true; `wm masks --example` needs neither"
        )
    if args.limit < 0:
        raise UserError(f"--limit is {args.limit}; write a number of rollouts, or 0 for all")
    if args.html:
        check_out(Path(args.html))
        inputs = [args.rollouts, args.tokenizer, args.chat_template, args.config]
        check_apart(inputs, {"--html": Path(args.html)})
    if not args.example:
        check_file(Path(args.rollouts))  # before imports of seconds
    settings = _settings(args)
    config = _config(args, settings)
    rows, more = ([example()], False) if args.example else first(read_rows(Path(args.rollouts)), args.limit)
    from wm_plugin.lab.evaluation.inspect import summary, to_page

    tokenizer = example_tokenizer() if args.example else load_with_template(args.tokenizer, args.chat_template)
    rendered = not args.example and any("completion_ids" not in row for _, row in rows)
    end_ids = [] if args.example else turn_ends(args.tokenizer)
    kwargs = _template_arguments(settings, args.config)
    inspections = _inspect(rows, tokenizer, config, kwargs, end_ids, rendered)
    tools = summary(inspection for _, inspection in inspections)
    if args.html:
        write_text(Path(args.html), to_page(f"Which tokens count: {args.rollouts or 'an example'}", inspections))
    return {
        "rollouts": [
            {
                "source": where,
                "tokens": len(inspection.tokens),
                "prompt_tokens": inspection.prompt_tokens,
                "tools": inspection.tools(),
                "spans": [dataclasses.asdict(piece) for piece in inspection.pieces],
            }
            for where, inspection in inspections
        ],
        "tools": tools,
        "notes": [
            *(_refusals(tokenizer, args.tokenizer) if rendered else ()),
            *(warnings(sum(lacks_schemas(row) for _, row in rows)) if rendered and _shows_tools(tokenizer) else ()),
            *_notes(config.tool_names, tools, sum(i.guessed for _, i in inspections), more and args.limit),
        ],
        "html": args.html,
    }


def inspect_file(path: str, args: argparse.Namespace, limit: int) -> list[tuple[str, Any]]:
    """The first rollouts of a file as `run` inspects them, for `wm report`, which has the flags that say how."""
    settings = _settings(args)
    config = _config(args, settings)
    rows, _ = first(read_rows(Path(path)), limit)
    tokenizer = load_with_template(args.tokenizer, args.chat_template)
    rendered = any("completion_ids" not in row for _, row in rows)
    kwargs = _template_arguments(settings, args.config)
    return _inspect(rows, tokenizer, config, kwargs, turn_ends(args.tokenizer), rendered)


def _inspect(
    rows: list[Row], tokenizer: Any, config: Any, kwargs: Mapping[str, Any] | None, end_ids: Any, rendered: bool
) -> list[tuple[str, Any]]:
    from wm_plugin.lab.evaluation.inspect import Inspector

    template = training_template(tokenizer) if rendered else None
    inspector = Inspector(tokenizer, config, chat_template=template, chat_template_kwargs=kwargs, end_ids=end_ids)
    inspections = []
    for where, row in rows:
        try:
            inspections.append((where, inspect_row(inspector, row)))
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
    return inspections


def show(result: dict[str, Any]) -> None:
    """Print for people: coloured text on a terminal, a line per span in a pipe."""
    from rich.console import Console
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    from wm_plugin.tokens.view import LEGEND, Token, to_text, visible

    console = Console(highlight=False, soft_wrap=True)
    for rollout in result["rollouts"] if not result["html"] else ():
        counted = sum(row["tokens"] for row in rollout["tools"].values())
        environment = sum(row["environment_tokens"] for row in rollout["tools"].values())
        title = f"{visible(rollout['source'])}: {rollout['tokens']} tokens, {environment} of the environment, {counted} count"
        if console.is_terminal:
            console.print(Rule(Text(title), align="left"))
            spans = rollout["spans"]
            console.print(to_text(Token(s["text"], s["kind"], s["tool"], s["weight"]) for s in spans))
        else:
            console.print(Text(title))
            for span in rollout["spans"]:
                console.print(Text(_line(span)))
    if console.is_terminal and not result["html"]:
        console.print("legend:", *(to_text([Token(text, kind, weight=1.0)]) for kind, text in LEGEND.items()))
    table = Table("tool", box=None, pad_edge=False)
    for column in ("tokens that count", "weight", "of environment tokens"):
        table.add_column(column, justify="right")
    for tool, row in result["tools"].items():
        table.add_row(Text(visible(tool)), str(row["tokens"]), f"{row['weight']:g}", str(row["environment_tokens"]))
    console.print(table)
    for note in result["notes"]:
        console.print(Text(f"note: {visible(note)}"))
    if result["html"]:
        console.print(Text(result["html"]))


def _line(span: Mapping[str, Any]) -> str:
    """`start-end kind origin weight "text"`, the text shortened."""
    from wm_plugin.tokens.view import visible

    origin, weight = span["tool"] or (span["role"] if span["kind"] in ("content", "scaffold") else ""), ""
    if span["kind"] in ("content", "scaffold"):
        weight = f"counts ×{span['weight']:g}" if span["weight"] else "failed call" if span["failed"] else "off"
    text = visible(span["text"]).replace("\n", "↵").replace("\t", "\\t")
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    return f"  {span['start']:>6}-{span['end']:<6} {span['kind']:<9} {visible(origin):<14} {weight:<12} {text}"


def _shows_tools(tokenizer: Any) -> bool:
    """Whether the chat template writes tools at all."""
    return "tools" in str(training_template(tokenizer) or tokenizer.chat_template)


def _settings(args: argparse.Namespace) -> Mapping[str, Any]:
    if args.config is None:
        return {}
    import yaml

    try:
        settings = yaml.safe_load(read_text(Path(args.config), "--config"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of a date or a number
        raise UserError(f"{args.config} is not YAML: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{args.config} holds no settings; write e.g. coeff: 0.05")
    return settings


def _config(args: argparse.Namespace, settings: Mapping[str, Any]) -> Any:
    from wm_plugin.objectives.echo import EchoConfig

    prefixed = {key.removeprefix("echo_"): value for key, value in settings.items() if str(key).startswith("echo_")}
    fields = prefixed or dict(settings)
    try:
        config = EchoConfig.read(fields, "the objective")
    except UserError as error:
        raise UserError(f"{args.config}: {error}") from None
    changes: dict[str, Any] = {}
    if args.tools is not None:
        changes["tools"] = args.tools
    if args.with_scaffold:
        changes["content_only"] = False
    if args.include_errors:
        changes["include_errors"] = True
    return config.replace(**changes)


def _template_arguments(settings: Mapping[str, Any], path: str | None) -> Mapping[str, Any] | None:
    arguments = settings.get("chat_template_kwargs")
    if not isinstance(arguments, dict | None):
        raise UserError(
            f"{path}: chat_template_kwargs is {shown(arguments)}; write a mapping, e.g. {{enable_thinking: false}}"
        )
    return arguments


def _notes(tool_names: Any, tools: Mapping[str, Any], guessed: int, limit: int) -> Iterator[str]:
    for name in tool_names or ():
        if name not in tools:
            yield f"no result of {name!r} in these rollouts{nearest(name, tools)}"
    if tools and not any(row["tokens"] for row in tools.values()):
        yield "no token counts: the objective would add nothing here"
    if guessed:
        yield (
            f"{guessed} results look like failures that the host made up; training asks the call itself, "
            "a file can say so with 'failed'"
        )
    if limit:
        yield f"the first {limit} rollouts; --limit 0 takes all"


def _refusals(tokenizer: Any, name: str) -> Iterator[str]:
    for check in tokenizer_checks(tokenizer, name):
        if check.state == "fail":
            yield f"{check.name}: {check.detail}; {check.mend}"
