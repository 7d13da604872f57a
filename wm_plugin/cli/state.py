"""The flags that say what of the state a world model is shown, and what is known of it beside what rollouts carry."""

import argparse
from typing import TYPE_CHECKING, Any

from wm_plugin.errors import UserError

if TYPE_CHECKING:
    from wm_plugin.data.contexts import Contexts
    from wm_plugin.data.hidden import Shown

_PARTS = "initial-state, summary, permissions, availability, final-state"


def add_arguments(parser: Any, default: str) -> None:
    """Add the flags.

    Args:
        default: what is shown without a flag, as the help says it.
    """
    parser.add_argument(
        "--hidden",
        metavar="PARTS",
        help=f"what of the state the world model is shown, beside the turns: some of {_PARTS}, or all, or none (the "
        f"first is what the agent sees, too; no agent sees the others). Default: {default}",
    )
    parser.add_argument(
        "--world-context",
        action=argparse.BooleanOptionalAction,
        help="all of it: --hidden all; with --no-: --hidden initial-state",
    )
    parser.add_argument(
        "--context-file",
        metavar="FILE",
        help="hidden contexts by hand, .yaml or .json: a task's id -> summary, permissions, availability, final_state",
    )


def shown(args: argparse.Namespace) -> "Shown | None":
    """What is shown; None if no flag says it.

    Raises:
        UserError: there is no such part, or two flags say it.
    """
    from wm_plugin.data.hidden import parse_parts

    if args.hidden is None:
        said: Shown | None = args.world_context
        return said
    if args.world_context is not None:
        raise UserError("--hidden and --world-context say the same: leave one of them out")
    return parse_parts(args.hidden)


def contexts(args: argparse.Namespace) -> "Contexts | None":
    """The contexts of `--context-file`; None without it.

    Raises:
        UserError: as from `load_contexts`.
    """
    from wm_plugin.data.contexts import load_contexts

    return None if args.context_file is None else load_contexts(args.context_file)
