"""What `alternatives` and `reflect` share: who proposes other actions in the states of an expert's trajectories."""

import argparse
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wm_plugin.cli.data.support import work_folder
from wm_plugin.cli.env.support import NAME, find
from wm_plugin.errors import UserError

if TYPE_CHECKING:
    from wm_plugin.lab.agents.proposing import Proposer
    from wm_plugin.worlds.worlds import World


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags: of the source, the world, and a group of those of who proposes."""
    parser.add_argument("source", metavar="TRAJ", help="an expert's trajectories, as wm env rollout writes them")
    parser.add_argument("--world", required=True, metavar="NAME", help=f"the world of these trajectories: {NAME}")
    parser.add_argument(
        "--alternatives", type=int, default=3, metavar="N", help="other actions in each state, at most (default: 3)"
    )
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work",
        metavar="DIR",
        help="folder that keeps answers, from which a killed run continues (default: X.work beside X); remove it afterwards",
    )
    group = parser.add_argument_group("who proposes them")
    group.add_argument(
        "--propose",
        required=True,
        metavar="WHO",
        help="random, a folder with a model, or the URL of an OpenAI-compatible server: the model that is to be trained",
    )
    group.add_argument("--propose-model", metavar="NAME", help="the name under which the server has it")
    group.add_argument(
        "--draws", type=int, metavar="N", help="answers of a model in each state (default: twice --alternatives)"
    )
    group.add_argument("--propose-temperature", type=float, default=1.0, metavar="T", help="(default: 1)")
    group.add_argument(
        "--propose-max-new-tokens",
        type=int,
        default=1024,
        metavar="N",
        help="longest proposal, in tokens (default: 1024)",
    )
    group.add_argument(
        "--propose-concurrency", type=int, default=32, metavar="N", help="requests at once, to a server (default: 32)"
    )
    group.add_argument(
        "--propose-batch-size", type=int, default=64, metavar="N", help="answers at once, without a server"
    )
    group.add_argument(
        "--propose-no-seed", action="store_true", help="send a server no seeds (vLLM crashes on them on a CPU)"
    )


def check(args: argparse.Namespace) -> "tuple[World, Path]":
    """The world, and the folder for answers.

    Raises:
        UserError: a flag does not fit.
    """
    for flag, value in (
        ("--alternatives", args.alternatives),
        ("--draws", 1 if args.draws is None else args.draws),
        ("--propose-max-new-tokens", args.propose_max_new_tokens),
    ):
        if value < 1:
            raise UserError(f"{flag} is {value}; write a number >= 1")
    if args.propose == "expert":
        raise UserError("--propose expert: its actions are those of the trajectories; name a model, or random")
    return find(args.world), work_folder(Path(args.out), args.work)


def make(args: argparse.Namespace, world: "World", folder: Path, counts: "Counter[str]", held: ExitStack) -> "Proposer":
    """Who proposes, by the flags.

    Args:
        folder: for answers.
        counts: receives the numbers of proposals that are none.
        held: what is open until the end.
    """
    from wm_plugin.client.answers import Answers, Model
    from wm_plugin.lab.agents.proposing import ModelProposals, RandomProposals
    from wm_plugin.worlds.agents.acting import LocalActor, ServerActor

    if args.propose == "random":
        return RandomProposals(world, args.seed)
    model: Model
    if args.propose.startswith(("http://", "https://")):
        from wm_plugin.client.server import Server

        if args.propose_model is None:
            raise UserError("--propose is a server; name its model with --propose-model")
        model = ServerActor(
            Server(
                args.propose,
                args.propose_model,
                concurrency=args.propose_concurrency,
                timeout=600.0,
                temperature=args.propose_temperature,
                max_tokens=args.propose_max_new_tokens,
                seed=None if args.propose_no_seed else "auto",
            )
        )
    else:
        model = LocalActor(_local(args))
    answers = held.enter_context(Answers(model, folder / "proposals.jsonl"))
    draws = 2 * args.alternatives if args.draws is None else args.draws
    return ModelProposals(answers, draws=draws, seed=args.seed, counts=counts)


def _local(args: argparse.Namespace) -> Any:
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.client.predict import LocalPredictor
    from wm_plugin.tokens.tokenizer import is_missing_folder

    if is_missing_folder(args.propose) or ("/" not in args.propose and not Path(args.propose).exists()):
        raise UserError(f"--propose {args.propose!r} is no folder with a model, no URL, and not random")
    quiet()
    return LocalPredictor(
        args.propose,
        temperature=args.propose_temperature,
        max_new_tokens=args.propose_max_new_tokens,
        batch_size=args.propose_batch_size,
    )
