"""`wm eval audit`: which texts earn a reward without being a prediction, and which wrong predictions it does not notice."""

import argparse
from pathlib import Path
from typing import Any

from wm_plugin.cli.steps import search_here
from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads

_WIDEST = 24  # characters of a name in the terminal: your own attacks may have long ones
_DESCRIPTION = """\
Attacks a reward on transitions of yours, and says in words what it found.

1. Attacks: praise, words for a judge, forged verdicts and tags, copies, generic descriptions, stuffing, tricks with characters.
   Each is compared with an honest wrong prediction (another output of the same tool) and with the right one.
2. Blind spots: the right prediction with one thing changed (a number, a `not`, a name, an emoji, the end of a long text, ...),
   and reworded so that it is still right. Of a reward with an embedding (embedding, rwml) it also gives the distances, and the
   threshold that separates right from wrong, or that none does.
"""
_EPILOG = """\
examples:
  wm eval audit --reward rouge --reward-args '{"step": 0.2}' --data transitions.jsonl --out audit.md
  wm eval audit --reward rwml --reward-args '{"model": "Qwen/Qwen3-Embedding-8B", "base_url": "http://localhost:8001/v1"}' \\
    --data transitions.jsonl --pairs pairs.jsonl

A line of --pairs: {"prediction": "You open drawer 2.", "observation": "Drawer 2 is open.", "right": true}
"""


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "audit",
        help="which texts earn a reward without being a right prediction",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--reward", required=True, metavar="NAME", help="exact, rwml, rules, ..., or package.module:NAME"
    )
    parser.add_argument("--reward-args", default="{}", metavar="JSON", help="its arguments, e.g. '{\"step\": 0.2}'")
    parser.add_argument("--data", required=True, metavar="FILE", help="transitions, or trajectories of any format")
    parser.add_argument(
        "--attacks", metavar="FILE", help="attacks of your own, written like ours (wm_plugin/lab/evaluation)"
    )
    parser.add_argument(
        "--pairs",
        metavar="FILE",
        help="predictions of yours that are right or wrong, as JSON lines: the threshold that separates them, for an embedding",
    )
    parser.add_argument(
        "--limit", type=int, default=100, metavar="N", help="transitions at most, at random (default: 100)"
    )
    parser.add_argument("--out", metavar="X.md", help="write verdict and tables there, as Markdown")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The audit as JSON: `verdict` in words, mean scores of the honest predictions, `attacks`, and `blind_spots`.

    `beats` has the attacks that score above an honest wrong prediction, with the share of transitions in which they do.
    """
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.data.outputs import check_apart, check_out, files_in, write_text
    from wm_plugin.data.transitions import transitions_in
    from wm_plugin.lab.evaluation import blind_spots
    from wm_plugin.lab.evaluation.audit import CELLS, audit, load_attacks, make_pairs, markdown
    from wm_plugin.rewards.make import make

    try:
        kwargs = loads(args.reward_args, strict=True)
    except ValueError as error:
        raise UserError(f"--reward-args is no JSON: {error}") from None
    out = Path(args.out) if args.out else None
    if out:
        check_out(out, (".md",))
        check_apart([args.data, args.attacks, args.pairs, *files_in(kwargs)], {"--out": out})
    attacks = load_attacks(args.attacks)
    own = blind_spots.load_pairs(args.pairs) if args.pairs else []
    pairs, left = make_pairs(transitions_in(args.data), limit=args.limit, seed=args.seed)
    quiet()
    search_here()
    reward = make({"path": args.reward, "kwargs": kwargs}, field="--reward")
    if own and blind_spots.embedding_of(reward) is None:
        raise UserError(f"--pairs: {args.reward} has no embedding, whose threshold they would give; leave it out")
    result = audit(reward, pairs, attacks, left_out=left)
    spots = blind_spots.blind_spots(reward, pairs, own=own, seed=args.seed)
    if out:
        parts = (result.verdict(), markdown({args.reward: result}), CELLS, blind_spots.markdown(spots))
        write_text(out, "\n\n".join(part.strip() for part in parts) + "\n")
    return {
        "reward": args.reward,
        **result.as_dict(),
        "blind_spots": spots.as_dict(),
        **({"out": str(out)} if out else {}),
    }


def show(result: dict[str, Any]) -> None:
    """Print the result of `run`: tables, what their cells mean, and the verdict last, where it is read."""
    from rich.console import Console
    from rich.table import Column, Table

    from wm_plugin.lab.evaluation.audit import CELLS

    console = Console(highlight=False, markup=False)
    title = f"{result['reward']} on {result['pairs']} transitions"
    names = [Column(name, no_wrap=True, overflow="ellipsis", max_width=_WIDEST) for name in ("group", "attack")]
    table = Table(*names, "above wrong", "above right", "mean score", "pays", title=title)
    for row in result["attacks"]:
        above = "–" if row["above_wrong"] is None else f"{row['above_wrong']:.0%}"
        pays = "yes" if row["name"] in result["pays"] else ""
        table.add_row(row["group"], row["name"], above, f"{row['above_right']:.0%}", f"{row['score']:.3g}", pays)
    console.print(table)
    console.print(CELLS)
    spots = result["blind_spots"]
    has_distances = any(row["distances"] for row in spots["changes"])
    columns = ("one thing changed", "is", "tried", "paid in full", *(["distance"] if has_distances else []))
    table = Table(*columns, title="blind spots")
    for row in spots["changes"]:
        cells = [row["says"], "wrong" if row["wrong"] else "right", str(row["cases"])]
        cells.append(f"{row['paid']:.0%}" if row["cases"] else "")
        if has_distances:
            low, middle, high = row["distances"] or (None, None, None)
            cells.append("" if middle is None else f"{middle:.2f} ({low:.2f} to {high:.2f})")
        table.add_row(*cells)
    console.print()
    console.print(table)
    for reason, count in result["left_out"].items():
        console.print(f"left out: {count} ({reason})")
    console.print()
    for sentence in (result["verdict"], *spots["verdict"]):
        console.print(sentence)
