"""`wm data prompts`: the variants of a family of prompts, rendered on data, and their lengths."""

import argparse
from collections.abc import Callable
from typing import Any

from wm_plugin.cli.data.support import progress
from wm_plugin.errors import UserError
from wm_plugin.untrusted import encodable


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "prompts",
        help="the prompts of a family, rendered, and how long they are",
        description="Lists the variants of a family. With --data, shows the first prompts and targets, and the lengths of all.",
    )
    parser.add_argument(
        "family", metavar="FAMILY", help="rwml, word2world, mcp, search, ..., or your own file: ./mine.yaml"
    )
    parser.add_argument("--data", metavar="SRC", help="trajectories, transitions, or any format that convert reads")
    parser.add_argument("--variant", help="this one (default: as the stage draws, one a trajectory)")
    parser.add_argument(
        "--stage", help="rl, sft or cpt: which variants are listed, and drawn from (default with --data: rl)"
    )
    parser.add_argument("--direct", action="store_true", help="ask for the prediction without reasoning, as SFT does")
    parser.add_argument("--count", type=int, default=1, help="prompts to show (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the variants' draw")
    parser.add_argument("--tokenizer", metavar="PATH", help="lengths in its tokens too, with its chat template")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`variants`; with data also `samples`, `transitions`, `rejected` by reason, and `lengths` by unit."""
    from wm_plugin.data.prompts import STAGES, Prompts, load, render
    from wm_plugin.data.schema import Action, Observation, Transition

    if args.count < 0:
        raise UserError(f"--count is {args.count}; write a number >= 0")
    prompts: Prompts = load(args.family)
    nothing = Transition(
        trajectory="", turn=0, history=(), action=Action(), observation=Observation(kind="environment", text="")
    )
    in_stage = prompts.names(args.stage) if args.stage else list(prompts.variants)
    variants = [
        {
            "variant": name,
            "stages": [stage for stage in STAGES if name in prompts.names(stage)],
            "characters": _characters(render(nothing, prompts, variant=name, thinking=not args.direct).messages),
        }
        for name in ([args.variant] if args.variant else in_stage)
    ]
    result: dict[str, Any] = {"prompts": prompts.name, "tag": prompts.tag, "variants": variants}
    return result if args.data is None else result | _rendered(args, prompts)


def _rendered(args: argparse.Namespace, prompts: Any) -> dict[str, Any]:
    from collections import Counter

    from wm_plugin.data.errors import RowError
    from wm_plugin.data.prompts import render, target
    from wm_plugin.data.summary import spread
    from wm_plugin.data.transitions import transitions_in

    measures: dict[str, tuple[Callable[[Any], int], Callable[[str], int]]] = {"characters": (_characters, len)}
    if args.tokenizer:
        measures["tokens"] = _tokens(args.tokenizer)
    samples: list[dict[str, Any]] = []
    lengths: dict[str, dict[str, list[int]]] = {unit: {"prompt": [], "target": []} for unit in measures}
    rejected: Counter[str] = Counter()
    stage, thinking, count = args.stage or "rl", not args.direct, 0
    for transition in progress(transitions_in(args.data), "transitions"):
        count += 1
        made = render(transition, prompts, stage=stage, seed=args.seed, thinking=thinking, variant=args.variant)
        try:
            label = target(transition.observation, prompts, thinking=thinking)
        except RowError as error:
            rejected[error.kind] += 1
            continue
        if len(samples) < args.count:
            where = f"{transition.trajectory}, turn {transition.turn}"
            samples.append({"where": where, "variant": made.variant, "messages": made.messages, "target": label})
        for unit, (of_messages, of_text) in measures.items():
            lengths[unit]["prompt"].append(of_messages(made.messages))
            lengths[unit]["target"].append(of_text(label))
    return {
        "samples": samples,
        "transitions": count,
        "rejected": dict(rejected),
        "lengths": {unit: {of: spread(values) for of, values in by_text.items()} for unit, by_text in lengths.items()},
    }


def show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from wm_plugin.tokens.view import visible

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if "lengths" not in result:
        table = Table("variant", "stages", box=None, pad_edge=False)
        table.add_column("characters", justify="right")
        for row in result["variants"]:
            table.add_row(visible(row["variant"]), " ".join(row["stages"]), f"{row['characters']:,}")
        console.print(table)
        return
    for sample in result["samples"]:
        console.print(Text(visible(f"{sample['where']}, variant {sample['variant']}"), style="bold"))
        for message in sample["messages"]:
            console.print(Text(message["role"], style="bold magenta"))
            console.print(Text(visible(message["content"])))
        console.print(Text("target", style="bold green"))
        console.print(Text(visible(sample["target"]), style="green"))
        console.print()
    table = Table("of a", "min", "median", "p95", "max", box=None, pad_edge=False)
    for unit, by_text in result["lengths"].items():
        for of, values in by_text.items():
            if values is not None:
                table.add_row(f"{of}, {unit}", *(f"{values[key]:,.0f}" for key in ("min", "median", "p95", "max")))
    console.print(table)
    rendered = result["transitions"] - sum(result["rejected"].values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in result["rejected"].items())
    console.print(f"{rendered} transitions" + (f"; left out: {reasons}" if reasons else ""))


def _characters(messages: list[dict[str, Any]]) -> int:
    return sum(len(message["content"]) for message in messages)


def _tokens(path: str) -> tuple[Callable[[Any], int], Callable[[str], int]]:
    """Functions that count the tokens of messages (in the chat template, if there is one) and of a text."""
    from wm_plugin.tokens.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path, field="--tokenizer")

    def of_text(text: str) -> int:
        return len(tokenizer(encodable(text), add_special_tokens=False).input_ids)

    def of_messages(messages: Any) -> int:
        if tokenizer.chat_template is None:
            return sum(of_text(message["content"]) for message in messages)
        return of_text(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    return of_messages, of_text
