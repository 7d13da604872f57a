"""`wm data reflect TRAJ`: a strong model's reasons for an expert's actions, as rows to fine-tune on (RWML's baseline SR)."""

import argparse
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wm_plugin.cli.data import proposals
from wm_plugin.cli.data.support import progress
from wm_plugin.cli.eval import model as flags
from wm_plugin.errors import UserError, nearest


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "reflect",
        help="reasons for an expert's actions, which compare them with others, to fine-tune on",
        description="Tries other actions in each state of an expert's trajectories, as wm data alternatives, and lets a strong "
        "model, which is told what each of them brings about, write the thought that leads to the expert's. A row is the "
        "history, that thought and the action, which alone count. A run that was killed asks nothing twice.",
    )
    proposals.add_arguments(parser)
    parser.add_argument("--host", default="trl", help="trl (default: prompt and completion) or verl (with --tokenizer)")
    parser.add_argument("--tokenizer", metavar="PATH", help="write tokens and a mask, the same for both hosts")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="leave longer rows out, and count them")
    parser.add_argument(
        "--inline",
        action="store_true",
        help="put the thought before the content as <think>...</think>: templates of models without a thinking mode leave "
        "reasoning out",
    )
    group = flags.add_arguments(parser, "who writes the reasons", max_new_tokens=2048)
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="(default: 1)")
    group.add_argument("--no-seed", action="store_true", help="send a server no seeds (vLLM crashes on them on a CPU)")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`samples` with a reason, `rows` written, and `left_out` by reason; `asked` of the model in this run."""
    from wm_plugin.client.answers import Answers
    from wm_plugin.data import rows
    from wm_plugin.data.building import last_message_rows
    from wm_plugin.data.outputs import check_apart
    from wm_plugin.data.readers import read
    from wm_plugin.data.tokenize import Tokeniser
    from wm_plugin.lab.agents.proposing import prepared
    from wm_plugin.lab.agents.reflection import reflection
    from wm_plugin.tokens.tokenizer import load_tokenizer
    from wm_plugin.worlds.agents.rollout import path_of

    out = Path(args.out)
    flags.check(args)
    if args.host not in rows.HOSTS:
        raise UserError(f"--host: there is no host {args.host!r}{nearest(args.host, rows.HOSTS)}")
    rows.check_rows_out(out, args.host, "sft")
    if args.host == "verl" and args.tokenizer is None:
        raise UserError("verl counts every message of the assistant: give a --tokenizer, and the rows are tokens")
    if args.max_tokens is not None and (args.max_tokens < 1 or args.tokenizer is None):
        raise UserError(f"--max-tokens is {args.max_tokens}; write a number >= 1, beside a --tokenizer to count with")
    world, folder = proposals.check(args)
    kept = {"--work": folder / "proposals.jsonl", "the answers": folder / "reflections.jsonl"}
    check_apart([args.source, args.propose, args.model, args.tokenizer], {"--out": out, **kept})
    counts: Counter[str] = Counter()
    tokeniser = Tokeniser(load_tokenizer(args.tokenizer, field="--tokenizer")) if args.tokenizer else None
    with ExitStack() as held:
        propose = proposals.make(args, world, folder, counts, held)
        answers = held.enter_context(Answers(flags.make(args), folder / "reflections.jsonl"))

        def ask(conversations: list[Any]) -> list[str | None]:
            said = answers(conversations, seed=args.seed)
            return [None if one.failure or one.cut else one.text for one in said]

        environment = world.make()
        experts = prepared(progress(read(args.source), "trajectories"), propose, path_of(environment))
        made = reflection(
            experts, environment, propose, ask, alternatives=args.alternatives, inline=args.inline, counts=counts
        )
        written = rows.write_rows(last_message_rows(made, args.host, tokeniser, args.max_tokens, counts), out)
    samples = counts.pop("samples", 0)
    left_out = dict(counts.most_common())
    return {"samples": samples, "rows": written, "left_out": left_out, "asked": answers.asked, "out": str(out)}


def show(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['rows']} rows, each an expert's action with a reason")
    for reason, count in result["left_out"].items():
        print(f"  {count} left out: {reason}")
