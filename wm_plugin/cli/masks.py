"""`wm masks`: which tokens of rollouts count, for which tool and with which weight."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from wm_plugin.cli.numbers import NotNegative
from wm_plugin.cli.output import prints, table
from wm_plugin.cli.support import search_here
from wm_plugin.cli.templates import TokenizerFlags, tokenizer_checks, training_template
from wm_plugin.data.host_dumps import warnings
from wm_plugin.data.outputs import check_apart, check_out, write_text
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.lab.evaluation import rollout_rows
from wm_plugin.lab.evaluation.rollout_rows import Row
from wm_plugin.options import option
from wm_plugin.runtime.texts import read_yaml
from wm_plugin.tokens.tokenizer import turn_ends
from wm_plugin.tokens.view import LEGEND, Token, to_text, visible

if TYPE_CHECKING:
    from wm_plugin.lab.evaluation.inspect import Inspectors

_LONGEST = 60  # characters of a span in a pipe


class CountFlags(TokenizerFlags):
    """What counts."""

    config: str | None = option("A YAML file of EchoConfig's fields, or a trainer's with echo_* keys.", default=None)

    def settings(self) -> Mapping[str, Any]:
        if self.config is None:
            return {}
        settings = read_yaml(Path(self.config), "--config")
        if not isinstance(settings, dict):
            raise UserError(f"{self.config} holds no settings; write e.g. coeff: 0.05")
        arguments = settings.get("chat_template_kwargs")
        if not isinstance(arguments, dict | None):
            raise UserError(
                f"{self.config}: chat_template_kwargs is {shown(arguments)}; write a mapping, e.g. {{enable_thinking: false}}"
            )
        return settings

    def objective(self, **changes: Any) -> Any:
        """The objective's config, with what other flags change of it."""
        from wm_plugin.objectives.echo import EchoConfig

        settings = self.settings()
        prefixed = {key.removeprefix("echo_"): value for key, value in settings.items() if str(key).startswith("echo_")}
        try:
            config = EchoConfig.read(prefixed or settings, "the objective")
        except UserError as error:
            raise UserError(f"{self.config}: {error}") from None
        return config.replace(**changes)

    def inspect(
        self, rows: list[Row], config: Any, tokenizer: Any = None
    ) -> tuple[list[tuple[str, Any]], "Inspectors"]:
        """The place and the inspection of each rollout, with the code of training; and what inspected them.

        Args:
            tokenizer: in place of the one that the flags name.
        """
        from wm_plugin.lab.evaluation.inspect import Inspector, Inspectors

        end_ids = turn_ends(self.tokenizer) if self.tokenizer else []
        tokenizer = tokenizer or self.load()
        template = training_template(tokenizer) if self.tokenizer and _are_rendered(rows) else None
        make = partial(Inspector, tokenizer, config, chat_template=template, end_ids=end_ids)
        inspectors = Inspectors(make, self.settings().get("chat_template_kwargs"))
        inspections = []
        for where, row in rows:
            try:
                inspections.append((where, rollout_rows.inspect_row(inspectors, row)))
            except UserError as error:
                raise UserError(f"{where}: {error}") from error
        return inspections, inspectors


def _are_rendered(rows: list[Row]) -> bool:
    """Whether some rollouts are messages, which a chat template renders."""
    return any("completion_ids" not in row for _, row in rows)


def show(result: dict[str, Any]) -> None:
    """Print for people: coloured text on a terminal, a line per span in a pipe."""
    console = Console(highlight=False, soft_wrap=True)
    for rollout in result["rollouts"] if not result["html"] else ():
        counted, environment = (
            sum(row[of] for row in rollout["tools"].values()) for of in ("tokens", "environment_tokens")
        )
        title = f"{rollout['source']}: {rollout['tokens']} tokens, {environment} of the environment, {counted} count"
        if console.is_terminal:
            console.print(Rule(Text(title), align="left"))
            spans = rollout["spans"]
            console.print(to_text(Token(s["text"], s["kind"], s["tool"], s["weight"]) for s in spans))
        else:
            print(title, *map(_line, rollout["spans"]), sep="\n")
    if console.is_terminal and not result["html"]:
        console.print("legend:", *(to_text([Token(text, kind, weight=1.0)]) for kind, text in LEGEND.items()))
    rows = [
        {
            "tool": tool,
            "tokens that count": row["tokens"],
            "weight": f"{row['weight']:g}",
            "of environment tokens": row["environment_tokens"],
        }
        for tool, row in result["tools"].items()
    ]
    table(rows)
    for note in result["notes"]:
        print(f"note: {note}")
    if result["html"]:
        print(result["html"])


def _line(span: Mapping[str, Any]) -> str:
    """`start-end kind origin weight "text"`, the text shortened."""
    origin, weight = span["tool"] or (span["role"] if span["kind"] in ("content", "scaffold") else ""), ""
    if span["kind"] in ("content", "scaffold"):
        weight = f"counts ×{span['weight']:g}" if span["weight"] else "failed call" if span["failed"] else "off"
    text = visible(span["text"]).replace("\n", "↵").replace("\t", "\\t")
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    return f"  {span['start']:>6}-{span['end']:<6} {span['kind']:<9} {visible(origin):<14} {weight:<12} {text}"


@prints(show)
def masks(
    rollouts: str | None = None,
    /,
    *,
    example: bool = False,
    count: CountFlags = CountFlags(),
    only: str | None = None,
    tools: tuple[str, ...] = (),
    with_scaffold: bool = False,
    include_errors: bool = False,
    limit: NotNegative = 10,
    html: str | None = None,
) -> dict[str, Any]:
    """Show which tokens of rollouts the objective counts, on the terminal or as HTML, with the code of training.

    ROLLOUTS is JSONL, one object a line:

    - `{"messages": [...], "tools": [...]}`: the prompt ends before the first assistant message
    - `{"prompt": [...], "completion": [...]}`: the same, divided; TRL's completions/*.parquet has these columns
    - `{"completion_ids": [...], "spans": [[start, end, role, tool or null, content], ...]}`
    - trajectories, as wm env rollout and wm data convert write them; .parquet too

    Messages are those of OpenAI and TRL; a tool message may carry `"failed": true` where the host made it up. As JSON, positions
    count from the first token of the prompt; a token with weight 0 does not count.

    Args:
        rollouts: A .jsonl file, or a .parquet file that TRL wrote.
        example: A rollout of the demo's grid world instead; needs no file at all.
        only: Only these tools, as A,B; or with multipliers: '{"a": 0.3, "b": 1}'.
        tools: The agent's tools, for rollouts without tool schemas, as in wm data convert.
        with_scaffold: Count the chat template around the content, too.
        include_errors: Count results that the host made up for failed calls, too.
        limit: Show the first N rollouts; 0 shows all.
        html: Write a self-contained HTML file instead.
    """
    if example and (rollouts or count.tokenizer):
        raise UserError("--example brings its own rollout and tokenizer; leave ROLLOUTS and --tokenizer out")
    if not example and not (rollouts and count.tokenizer):
        raise UserError(
            f"{'--tokenizer PATH' if rollouts else 'ROLLOUTS'} is missing: trl writes rollouts into "
            "OUTPUT_DIR/completions with log_completions: true; `wm masks --example` needs neither"
        )
    if html:
        check_out(Path(html))
        check_apart([rollouts, count.tokenizer, count.chat_template, count.config], {"--html": Path(html)})
    if rollouts:
        rollout_rows.check_file(Path(rollouts))  # before imports of seconds
    changes: dict[str, Any] = {} if only is None else {"tools": only}
    changes |= {"content_only": False} if with_scaffold else {}
    changes |= {"include_errors": True} if include_errors else {}
    config = count.objective(**changes)
    rows, more = [rollout_rows.example()], False
    if rollouts:
        rows, more = rollout_rows.first(rollout_rows.read_rows(Path(rollouts)), limit)
    if tools:
        from wm_plugin.worlds.observed import observed

        search_here()
        known = observed((), tools)
        for _, row in rows:
            if rollout_rows.lacks_schemas(row):
                row["tools"] = list(known.tools_for(rollout_rows.called(row)))
    from wm_plugin.lab.evaluation.inspect import summary, to_page

    tokenizer = count.load() if rollouts else rollout_rows.example_tokenizer()
    inspections, inspectors = count.inspect(rows, config, tokenizer)
    by_tool = summary(inspection for _, inspection in inspections)
    if html:
        write_text(Path(html), to_page(f"Which tokens count: {rollouts or 'an example'}", inspections))
    notes, lacking, strange = inspectors.notes, 0, Counter[str]()
    if count.tokenizer and _are_rendered(rows):
        failed = [one for one in tokenizer_checks(tokenizer, count.tokenizer) if one.state == "fail"]
        notes += [f"{one.name}: {one.detail}; {one.mend}" for one in failed]
        if "tools" in str(training_template(tokenizer) or tokenizer.chat_template):  # the template writes tools
            lacking = sum(rollout_rows.lacks_schemas(row) for _, row in rows)
        for _, row in rows:
            strange.update(rollout_rows.strange_tools(row))
        notes += warnings(lacking, strange)
    guessed = sum(inspection.guessed for _, inspection in inspections)
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
        "tools": by_tool,
        "without_schemas": lacking,
        "other_tokens": inspectors.differ,
        "notes": [*notes, *_notes(config.tool_names, by_tool, guessed, more and limit)],
        "html": html,
    }


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
