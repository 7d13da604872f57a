"""`wm data search-prompts`: a family of prompts that a model proposes and held-out transitions choose (Qwen-AgentWorld)."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wm_plugin.cli.data.support import progress, reward_arguments
from wm_plugin.cli.eval import model as flags
from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads

if TYPE_CHECKING:
    from wm_plugin.client.answers import Model

NAME = "search-prompts"


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        NAME,
        help="propose prompts, try them on held-out transitions, refine the best",
        description="In each style a model proposes templates for a family of prompts, a world model predicts held-out "
        "transitions with them, and the best is refined with its worst predictions. Writes the family, a variant a style, and "
        "what each scored, on transitions of other tasks too. A run that was killed goes on where it was.",
    )
    parser.add_argument(
        "source", metavar="SRC", help="held-out transitions, or trajectories of any format that convert reads"
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="the family FAMILY.yaml, result.json, rows.jsonl, and work"
    )
    parser.add_argument(
        "--prompts",
        required=True,
        metavar="FAMILY",
        help="rwml, word2world, a domain (mcp, search, ...), or your own file: its tag, fields and texts stay",
    )
    parser.add_argument(
        "--variant", help="the variant of --prompts that the search starts from (default: the first one of RL)"
    )
    parser.add_argument("--styles", metavar="FILE", help="styles of your own, as NAME: TEXT (default: twelve of ours)")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="rounds of proposals (default: 10)")
    parser.add_argument(
        "--examples", type=int, default=4, metavar="N", help="wrong predictions that are shown (default: 4)"
    )
    parser.add_argument(
        "--limit", type=int, default=100, metavar="N", help="transitions of the search, and of the test (default: 100)"
    )
    parser.add_argument(
        "--test-share",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="share of the tasks that is kept for the test (default: 0.5)",
    )
    parser.add_argument(
        "--direct", action="store_true", help="ask for predictions without reasoning, as wm data prompts --direct"
    )
    parser.add_argument(
        "--world-context",
        action=argparse.BooleanOptionalAction,
        help="show the world model the hidden state that rollouts carry (default: word2world alone does)",
    )
    reward = parser.add_argument_group("the score")
    reward.add_argument(
        "--reward", default="rouge", help="rouge (default), word_f1, rubric, rwml, ..., or package.module:NAME"
    )
    reward.add_argument(
        "--reward-args", default="{}", metavar="JSON", help="its arguments, such as the server of a judge"
    )
    reward.add_argument(
        "--embedding-model", metavar="PATH", help="the embedding model of the rewards rwml and embedding"
    )
    reward.add_argument(
        "--embedding-server",
        metavar="URL",
        help="a server that has the embedding model (default: load it in this process)",
    )
    flags.add_arguments(parser)
    proposer = parser.add_argument_group("the proposer")
    proposer.add_argument("--proposer-model", required=True, metavar="NAME", help="the name that its server has for it")
    proposer.add_argument("--proposer-server", metavar="URL", help="its server (default: --server)")
    proposer.add_argument("--proposer-temperature", type=float, default=1.0, metavar="T", help="(default: 1)")
    proposer.add_argument(
        "--proposer-max-new-tokens", type=int, default=32768, metavar="N", help="thoughts included (default: 32768)"
    )
    parser.add_argument(
        "--no-seed", action="store_true", help="send servers no seeds (vLLM crashes on them on a CPU); runs then differ"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The `Evaluation` as JSON, `prompts` (the file, or None), `chosen` by style, `asked` of each model, and `ok`."""
    from wm_plugin.cli.steps import search_here
    from wm_plugin.data.outputs import check_apart, files_in
    from wm_plugin.data.predictions import Repeatable
    from wm_plugin.data.prompts import load
    from wm_plugin.data.scores import NO_MODEL, real_valued
    from wm_plugin.data.transitions import transitions_in
    from wm_plugin.lab.evaluation import measures
    from wm_plugin.lab.evaluation.prompt_family import check_family, write_family
    from wm_plugin.lab.evaluation.prompt_search import Search, split
    from wm_plugin.lab.evaluation.proposals import load_styles

    search_here()
    flags.check(args)
    if args.proposer_max_new_tokens < 1:
        raise UserError(f"--proposer-max-new-tokens is {args.proposer_max_new_tokens}; write a number >= 1")
    if not 0 <= args.proposer_temperature < math.inf:
        raise UserError(f"--proposer-temperature is {args.proposer_temperature}; write a number >= 0")
    start, styles = load(args.prompts), load_styles(args.styles)
    arguments = reward_arguments(args.reward, args.reward_args, "--reward-args")
    out = Path(args.out)
    family = out / f"{start.name}.yaml"
    inputs = [args.source, args.model, args.prompts, args.styles, args.embedding_model, *files_in(arguments)]
    outs = {name: out / name for name in (measures.RESULT, measures.ROWS, measures.MANIFEST)}
    check_apart(inputs, {"--out": family, **outs})
    proposer, world = _proposer(args), flags.make(args)
    everything = Repeatable(lambda: transitions_in(args.source))
    held = split(everything, limit=args.limit, test_share=args.test_share, seed=args.seed)
    only_tools = all(one.observation.kind == "tool" for one in (*held.search, *held.test))
    if args.reward == "rwml" and not (args.embedding_model or only_tools):
        raise UserError(f"not all observations are tools' results: {NO_MODEL}")

    subject = args.model or args.server_model
    measures.open_folder(out, NAME, subject, args.source)
    check_family(family)
    work = out / "work"
    scored_by = {"reward": args.reward, "reward_args": loads(args.reward_args)}
    if args.embedding_model:
        scored_by["embedding_model"] = args.embedding_model
    variant = args.variant or start.names("rl")[0]
    hidden = start.name == "word2world" if args.world_context is None else args.world_context
    search = Search(
        start,
        variant,
        styles,
        held,
        world,
        proposer,
        real_valued(args.reward, args.embedding_model, args.embedding_server, _kept(arguments, work)),
        work,
        settings=scored_by,
        rounds=args.rounds,
        examples=args.examples,
        seed=args.seed,
        thinking=not args.direct,
        world_context=hidden,
    )
    outcome = search.run(lambda rounds: progress(rounds, "rounds"))
    settings = {
        **scored_by,
        "prompts": args.prompts,
        "variant": variant,
        "styles": list(styles),
        "rounds": args.rounds,
        "examples": args.examples,
        "transitions": {"search": len(held.search), "test": len(held.test)},
        "world_model": world.settings,
        "proposer": proposer.settings,
        "thinking": not args.direct,
        "world_context": hidden,
        "seed": args.seed,
        "chosen": {one.style: one.round for one in outcome.chosen},
    }
    evaluation = measures.Evaluation(
        NAME, subject, args.source, settings, outcome.measures, outcome.failures, outcome.notes
    )
    if outcome.prompts is not None:
        write_family(outcome.prompts, outcome.chosen, family)
    measures.write_rows(outcome.rows, out)
    measures.write_result(evaluation, out)
    return {
        **evaluation.as_dict(),
        "prompts": str(family) if outcome.prompts is not None else None,
        "stages": outcome.prompts.stages if outcome.prompts is not None else {},
        "asked": {"proposer": outcome.proposed, "world model": outcome.predicted},
        "ok": outcome.prompts is not None,
    }


def _proposer(args: argparse.Namespace) -> "Model":
    from wm_plugin.client.answers import ServerModel
    from wm_plugin.client.server import Server

    address = args.proposer_server or args.server
    if not address:
        raise UserError("--proposer-server URL is missing: with --model, the proposer has a server of its own")
    return ServerModel(
        Server(
            address,
            args.proposer_model,
            concurrency=args.concurrency,
            timeout=1800.0,  # a specification is long, and so are the thoughts before it
            temperature=args.proposer_temperature,
            max_tokens=args.proposer_max_new_tokens,
            seed=None if args.no_seed else "auto",
        )
    )


def _kept(arguments: dict[str, Any], work: Path) -> dict[str, Any]:
    """The arguments of a reward. A judge's replies are kept, so that a killed run does not pay for them twice, and its server may
    fail as seldom as the world model's: what failed counts nothing in the choice."""
    judged = "no_verdict" in arguments
    own = {"cache": str(work / "judge.sqlite"), "max_failure_share": 0.05}
    return {**own, **arguments} if judged else arguments


def show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, soft_wrap=True)
    by_style = {(one["name"], one["group"]): one for one in result["measures"] if one["by"] == "style"}
    stages = {style: stage for stage, styles in result["stages"].items() for style in styles}
    table = Table("style", "stage", box=None, pad_edge=False, padding=(0, 1, 0, 0))  # within 80 columns
    for name in ("round", "search", "test", "gain", "95%", "failed", "refused"):
        table.add_column(name, justify="right")
    for style, number in {"start": "", **result["settings"]["chosen"]}.items():
        test, gain = by_style[("test", style)], by_style.get(("gain", style))
        refused = by_style.get(("refused", style))
        table.add_row(
            style,
            stages.get(style, ""),
            str(number),
            f"{by_style[('search', style)]['with_failed']:.3f}",
            f"{test['with_failed']:.3f}",
            f"{gain['value']:+.3f}" if gain else "",
            f"{gain['low']:+.3f} to {gain['high']:+.3f}" if gain and gain["low"] is not None else "",
            str(test["failed"]),
            str(refused["value"]) if refused else "",
        )
    console.print(table)
    console.print("failed: rows of the test without a score, which count 0; refused: answers that were no templates")
    for note in result["notes"]:
        console.print(note)
    if result["prompts"]:
        console.print(f"{result['prompts']}: read it, and try it with wm data prompts {result['prompts']} --data SRC")
