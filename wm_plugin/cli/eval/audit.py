"""`wm eval audit`: which texts earn a reward without being a prediction."""

import argparse
import json
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "audit",
        help="which texts earn a reward without being a prediction",
        description="Attacks a reward on real transitions: praise, words for a judge, forged verdicts and tags, copies, generic "
        "descriptions, stuffing, tricks with characters. Each is compared with an honest wrong prediction (another output of "
        "the same tool) and with the right one.",
    )
    parser.add_argument(
        "--reward", required=True, metavar="NAME", help="exact, rwml, rules, ..., or package.module:NAME"
    )
    parser.add_argument("--reward-args", default="{}", metavar="JSON", help="its arguments, e.g. '{\"step\": 0.2}'")
    parser.add_argument("--data", required=True, metavar="FILE", help="transitions, or trajectories of any format")
    parser.add_argument(
        "--attacks", metavar="FILE", help="attacks of your own, written like ours (wm_plugin/evaluation)"
    )
    parser.add_argument(
        "--limit", type=int, default=100, metavar="N", help="transitions at most, at random (default: 100)"
    )
    parser.add_argument("--out", metavar="X.md", help="write the table there, as Markdown")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The audit as JSON: `pairs`, mean scores of the honest predictions, `above_wrong` and `above_right`, also per attack."""
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.evaluation.audit import audit, load_attacks, make_pairs, markdown
    from wm_plugin.rewards.make import make
    from wm_plugin.trajectories.expand import transitions_in
    from wm_plugin.trajectories.outputs import check_apart, check_out, write_text

    out = Path(args.out) if args.out else None
    if out:
        check_out(out, (".md",))
        check_apart([args.data, args.attacks], {"--out": out})
    try:
        kwargs = json.loads(args.reward_args)
    except ValueError as error:
        raise UserError(f"--reward-args is no JSON: {error}") from None
    attacks = load_attacks(args.attacks)
    pairs, left = make_pairs(transitions_in(args.data), limit=args.limit, seed=args.seed)
    quiet()
    result = audit(make({"path": args.reward, "kwargs": kwargs}, field="--reward"), pairs, attacks, left_out=left)
    if out:
        write_text(out, markdown({args.reward: result}))
    return {"reward": args.reward, **result.as_dict(), **({"out": str(out)} if out else {})}


def show(result: dict[str, Any]) -> None:
    """Print the result of `run` as a table."""
    from rich.console import Console
    from rich.table import Table

    title = f"{result['reward']} on {result['pairs']} transitions"
    table = Table("group", "attack", "above wrong", "above right", "mean score", title=title)
    for row in result["attacks"]:
        above = "" if row["above_wrong"] is None else f"{row['above_wrong']:.0%}"
        table.add_row(row["group"], row["name"], above, f"{row['above_right']:.0%}", f"{row['score']:.3g}")
    console = Console()
    console.print(table)
    console.print(
        f"An honest wrong prediction scores {result['wrong']:.3g}, the right one {result['right']:.3g}. Of all attacks, "
        f"{result['above_wrong']:.1%} score above the wrong one and {result['above_right']:.1%} above the right one."
    )
    if result["right"] <= result["wrong"]:
        console.print("The right prediction scores no more than a wrong one: is the reward set up as it should be?")
    for reason, count in result["left_out"].items():
        console.print(f"left out: {count} ({reason})")
