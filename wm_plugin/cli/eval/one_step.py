"""`wm eval one-step`: how well a world model writes the next observation."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wm_plugin.cli import state
from wm_plugin.cli.data.support import progress
from wm_plugin.cli.eval import model as flags
from wm_plugin.cli.eval.lines import print_rest
from wm_plugin.errors import UserError

if TYPE_CHECKING:
    from wm_plugin.data.host_dumps import Lacking
    from wm_plugin.lab.evaluation.measures import Evaluation

_DESCRIPTION = """\
A world model writes, at temperature 0, what follows each action of real episodes: exact match with the success mark, word F1,
ROUGE, the cosine of embeddings, JSON keys, the success mark alone; of a model in this process also the likelihood of the real
tokens and its calibration. Of all turns, and by turn, tool, observer, error and category; with 95% intervals over trajectories.
"""
_EPILOG = """\
examples:
  wm eval one-step held_out.jsonl --model runs/wm_sft_word2world --out evaluations/fine-tuned
  wm eval one-step held_out.jsonl --server http://localhost:8000/v1 --server-model m                              (zero-shot)
  wm eval one-step held_out.jsonl --server http://localhost:8000/v1 --server-model m --demonstrations train.jsonl  (few-shot)
  wm eval one-step demo/held_out.jsonl --model demo/policies/coeff_1 --as policy                 (a policy as its own world model)
"""
POLICY = "policy"  # of --as
_ANSWERS = "answers.jsonl"
_SHOTS = 3  # Word2World, table 1
_SHOWN = {"turn": 30}  # groups in the terminal; --json has all
_MOST = 12
_COLUMNS = ("exact", "success_flag", "word_f1", "nll")


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "one-step",
        help="how well a world model writes the next observation",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", help="trajectories in any format that convert reads, or transitions")
    flags.add_arguments(parser)
    parser.add_argument(
        "--as",
        default="word2world",
        dest="kind",
        metavar="KIND",
        help="what it was trained on, as of wm data build: word2world (default), rwml-sft, rwml, agentworld-sft, agentworld, "
        "cpt; or policy: an agent's model, which goes on with the results of its calls as in its own rollouts",
    )
    parser.add_argument(
        "--prompts", metavar="FAMILY", help="the prompts that the model was trained with (default: those of --as)"
    )
    state.add_arguments(parser, "as wm data build")
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        help="with --as policy: the chat template in the place of the tokenizer's: a file, or the name of one that TRL ships",
    )
    parser.add_argument("--demonstrations", metavar="FILE", help="few-shot: trajectories of training to draw from")
    parser.add_argument("--shots", type=int, metavar="N", help=f"how many of them are shown (default: {_SHOTS})")
    parser.add_argument("--embedding-model", metavar="PATH", help="also the cosine of embeddings by this model")
    parser.add_argument(
        "--embedding-server",
        metavar="URL",
        help="a server that has the embedding model (default: load it in this process)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N trajectories")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the prompts' variants, as in wm data build, and of draws"
    )
    parser.add_argument("--out", metavar="DIR", help="keeps answers, rows and measures; a killed run goes on there")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The evaluation as JSON (`evaluation.measures.Evaluation`), and `ok`: whether there was a turn with an answer."""
    from wm_plugin.client.server import KINDS
    from wm_plugin.data.host_dumps import Lacking
    from wm_plugin.lab.evaluation.cases import kind_of
    from wm_plugin.lab.evaluation.fidelity import NAME, Cosines
    from wm_plugin.lab.evaluation.measures import open_folder
    from wm_plugin.rewards import EmbeddingReward

    if args.kind == POLICY:
        _check_policy(args)
    else:
        kind_of(args.kind, [POLICY])
    flags.check(args)
    if args.chat_template and args.kind != POLICY:
        raise UserError(f"--chat-template is for --as {POLICY}; a world model is asked by its tokenizer's own")
    if args.shots is not None and not args.demonstrations:
        raise UserError("--shots says how many demonstrations are shown; name their file with --demonstrations")
    if args.embedding_server and not args.embedding_model:
        raise UserError("--embedding-server needs --embedding-model: the name under which it has the model")
    lacking = Lacking()
    measure = (_of_policy if args.kind == POLICY else _of_world_model)(args, lacking)
    subject = args.model or args.server_model
    folder = open_folder(args.out, NAME, subject, args.source) if args.out else None
    embedding = None
    if args.embedding_model:
        reward = EmbeddingReward(args.embedding_model, base_url=args.embedding_server)
        embedding = Cosines(reward, args.embedding_model)
    result = measure(
        embedding=embedding, limit=args.limit, seed=args.seed, subject=subject, data=args.source, folder=folder
    )
    exact = result.measure("exact")
    lost = sum(result.failures.get(kind, 0) for kind in KINDS)
    return {**result.as_dict(), "notes": [*result.notes, *lacking.notes], "ok": exact.count + exact.failed > lost}


def _of_world_model(args: argparse.Namespace, lacking: "Lacking") -> Callable[..., "Evaluation"]:
    """`fidelity` of the flags; what is left are its arguments from `embedding` on."""
    from wm_plugin.client.answers import Answers
    from wm_plugin.data.prompts import load
    from wm_plugin.data.readers import read
    from wm_plugin.lab.evaluation.cases import Demonstrations, items_in, kind_of
    from wm_plugin.lab.evaluation.fidelity import fidelity

    family = args.prompts or kind_of(args.kind).family
    if family is None:
        raise UserError(f"--as {args.kind} needs --prompts: name a domain (mcp, search, ...) or a path")
    prompts = load(family)
    hidden, contexts = state.shown(args), state.contexts(args)
    items = items_in(args.source, args.kind)
    shown = None
    if args.demonstrations:
        shots = _SHOTS if args.shots is None else args.shots
        drawn_from = progress(read(args.demonstrations), "trajectories to draw from")
        shown = Demonstrations(drawn_from, shots, seed=args.seed, source=args.demonstrations)

    def measure(folder: Path | None, **more: Any) -> "Evaluation":
        return fidelity(
            progress(lacking(items), "episodes"),
            Answers(flags.make(args), folder and folder / _ANSWERS),
            prompts,
            kind=args.kind,
            world_context=hidden,
            contexts=contexts,
            demonstrations=shown,
            folder=folder,
            **more,
        )

    return measure


def _check_policy(args: argparse.Namespace) -> None:
    """Refuse what a policy is not asked with.

    Raises:
        UserError: a server, or a flag of world models.
    """
    from wm_plugin.lab.evaluation.policy_fidelity import NO_SERVER

    if args.server or args.server_model:
        raise UserError(f"--server: not with --as {POLICY}: {NO_SERVER}")
    others = {
        "--prompts": args.prompts,
        "--hidden": args.hidden,
        "--world-context": args.world_context,
        "--context-file": args.context_file,
        "--demonstrations": args.demonstrations,
    }
    for flag, value in others.items():
        if value is not None:
            raise UserError(f"{flag}: not with --as {POLICY}, whose prompt is the agent's own; leave it out")


def _of_policy(args: argparse.Namespace, lacking: "Lacking") -> Callable[..., "Evaluation"]:
    """`policy_fidelity` of the flags; what is left are its arguments from `embedding` on."""
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.cli.templates import load_with_template, training_template
    from wm_plugin.client.answers import Answers
    from wm_plugin.client.predict import LocalPredictor
    from wm_plugin.data.readers import read
    from wm_plugin.data.transitions import holds_transitions
    from wm_plugin.lab.evaluation.policy_fidelity import PolicyModel, policy_fidelity

    if holds_transitions(args.source):
        raise UserError(f"{args.source}: holds transitions, and --as {POLICY} is asked about whole trajectories")
    quiet()
    tokenizer = load_with_template(args.model, args.chat_template, field="--model")
    predictor = LocalPredictor(args.model, tokenizer, temperature=0)
    template = training_template(predictor.tokenizer)

    def measure(folder: Path | None, **more: Any) -> "Evaluation":
        answers = Answers(PolicyModel(predictor), folder and folder / _ANSWERS)
        items = progress(lacking(read(args.source)), "episodes")
        return policy_fidelity(items, answers, chat_template=template, folder=folder, **more)

    return measure


def show(result: dict[str, Any]) -> None:
    """Print the result of `run`: a table of all turns, and one of each kind of group."""
    from rich.console import Console
    from rich.table import Table

    from wm_plugin.tokens.view import visible

    console = Console(highlight=False, markup=False)
    measures: Sequence[dict[str, Any]] = result["measures"]
    if not measures[0]["count"] + measures[0]["failed"]:
        console.print(f"{result['data']}: no turn with an observation")
        return
    table = Table("measure", "mean", "95% interval", "of", "no answer", "counted as 0", title=visible(_title(result)))
    for one in measures:
        if not one["by"]:
            limits = "" if one["low"] is None else f"{one['low']:.3f} to {one['high']:.3f}"
            failed = str(one["failed"] or "")
            lowest = _number(one["with_failed"]) if one["failed"] else ""
            table.add_row(one["name"], _number(one["value"]), limits, f"{one['count']:,}", failed, lowest)
    console.print(table)
    for by in dict.fromkeys(one["by"] for one in measures if one["by"]):
        _show_groups(console, by, [one for one in measures if one["by"] == by])
    print_rest(result)


def _title(result: dict[str, Any]) -> str:
    shots = result["settings"]["shots"]
    return f"{Path(result['subject']).name} on {Path(result['data']).name}" + (f", {shots} shots" if shots else "")


def _show_groups(console: Any, by: str, measures: Sequence[dict[str, Any]]) -> None:
    from rich.table import Column, Table

    from wm_plugin.tokens.view import visible

    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for one in measures:
        groups.setdefault(one["group"], {})[one["name"]] = one
    if len(groups) < 2:
        return
    names = [name for name in (*_COLUMNS, "token_accuracy") if any(name in group for group in groups.values())]
    group_column = Column(by, no_wrap=True, overflow="ellipsis", max_width=30)
    table = Table(group_column, *names, "of")
    most = _SHOWN.get(by, _MOST)
    for group, scores in list(groups.items())[:most]:
        cells = [_number(scores[name]["value"]) if name in scores else "" for name in names]
        table.add_row(visible(group), *cells, f"{max(one['count'] + one['failed'] for one in scores.values()):,}")
    console.print(table)
    if len(groups) > most:
        console.print(f"and {len(groups) - most} more; --json has all")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
