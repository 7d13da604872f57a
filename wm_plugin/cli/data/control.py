"""`wm data control`: recorded trajectories under control, for world models that are to obey simulation instructions."""

import argparse
import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from wm_plugin.cli.block import read_block
from wm_plugin.cli.data.support import progress
from wm_plugin.errors import UserError

if TYPE_CHECKING:
    pass

EXAMPLE = """\
a FILE of --config, YAML or JSON (docs/control.md lists all perturbations and their fields):
  perturbations:
    - {name: error, rate: 0.1}
    - {name: paginate, tools: [search], size: 5}
    - {name: withhold, column: answer, query: question, rate: 0.5}
"""


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "control",
        help="perturb recorded observations, with the instructions that a world model is to obey",
        description="Errors, pages, withheld answers and other conditions: observations are perturbed by rule, and each "
        "trajectory says what a world model is told. wm data build renders both.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", help="trajectories, or any format that convert reads")
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    parser.add_argument(
        "--config", required=True, metavar="FILE", help="the perturbations, as under control: in a run's config"
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the trajectories that is changed (default: all of them)"
    )
    parser.add_argument("--seed", type=int, help="seed of all draws (default: the file's, or 0)")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Counts of what was written, as from convert; `controlled` trajectories, `turns_put_in`, and figures by perturbation."""
    from wm_plugin.data.readers import read
    from wm_plugin.data.write import write
    from wm_plugin.worlds.wrappers.control import ControlConfig
    from wm_plugin.worlds.wrappers.control.recorded import Figures, control

    if not 0 <= args.share <= 1:
        raise UserError(f"--share is {args.share}; write a number between 0 and 1")
    config, figures = (
        read_block(args.config, "--config", "control", partial(ControlConfig.read, where="control")),
        Figures(),
    )
    if args.seed is not None:
        config = dataclasses.replace(config, seed=args.seed)
    trajectories = control(progress(read(args.source), "trajectories"), config, share=args.share, figures=figures)
    counts = write(trajectories, args.out, sources=[args.source, args.config])
    names = dict.fromkeys(one.name for one in config.perturbations)
    return {**counts.as_dict(), **figures.as_dict(names), "out": args.out}


def show(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['trajectories']} trajectories, {result['transitions']} transitions")
    print(
        f"{result['controlled']} trajectories have an instruction, for {result['observations']} observations; "
        f"{result['turns_put_in']} turns were put in"
    )
    for name, counts in result["perturbations"].items():
        print(f"  {name:<10} {counts['observations']:>7} observations in {counts['trajectories']} trajectories")
