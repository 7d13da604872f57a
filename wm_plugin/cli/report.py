"""`wm report`: a page of runs, evaluations and rollouts, whoever made them."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import PREFIX, check_apart, check_out
from wm_plugin.errors import UserError

_FORMS = (".html", ".csv", ".json")
_SAMPLES = 2  # rollouts of a file that are shown
_DESCRIPTION = """\
Makes one self-contained page of what lies at PATH..., in any number and mixed:

  training runs        folders or files: TRL's trainer_state.json, TensorBoard's event files, trackio's databases
                       (~/.cache/huggingface/trackio/PROJECT.db), verl's file logger (PROJECT/EXPERIMENT.jsonl); and the
                       folder of wm demo
  evaluations          folders that wm eval STEP --out DIR wrote
  rollouts             files of wm env rollout, or of any format that wm data convert reads

Runs that differ in their seeds alone (echo_seed0, echo_seed1) are one line with a band. What two arms or more measure is
compared: means over seeds, and differences to the first arm, paired by seed.
"""
_EPILOG = """\
examples:
  wm report runs/echo_seed0 runs/echo_seed1 runs/grpo_seed0 --out report.html
  wm report --arm 'echo=runs/echo_*' --arm 'plain=runs/grpo_*' evals/ --out report.html --out report.csv
  wm report --arm 'rl=played/rl_s*' --arm 'echo=played/echo_s*' --against rl --out report.json
  wm report runs/ --metric 'reward' --metric 'echo/*' --out report.csv
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report",
        help="a page of training runs, evaluations and rollouts: curves, tables, predictions",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="runs, evaluations, rollouts; folders are searched")
    add(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=PATTERN",
        help="runs that are one line, such as 'echo=runs/echo_*': chosen among the PATHs, else read, too (repeatable)",
    )
    add("--against", default="", metavar="NAME", help="the arm that others are compared with (default: the first)")
    add("--metric", action="append", default=[], metavar="PATTERN", help="only these training metrics (repeatable)")
    add(
        "--out",
        action="append",
        default=[],
        metavar="OUT",
        help="X.html, X.csv or X.json (repeatable); or a folder, for all of them",
    )
    add("--title", default="", help="the page's heading")
    add("--tokenizer", metavar="PATH", help="show which tokens of the rollouts count, as wm masks does")
    add("--chat-template", metavar="FILE", help="as for wm masks")
    add("--config", metavar="YAML", help="fields of EchoConfig, or a trainer config with echo_* keys, for --tokenizer")
    parser.set_defaults(run=run, show=show, tools=None, with_scaffold=False, include_errors=False)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Read, and write what --out names.

    As JSON: `arms` with their last values, `evaluations`, `rollouts`, `compared`, `notes`, `out`.
    """
    outs, folder = _outs(args.out)  # before imports of many seconds
    from wm_plugin.lab.report import compared, export, overview, sources, training
    from wm_plugin.lab.report.arms import parse
    from wm_plugin.runtime.page import check_extra

    patterns = parse(args.arm)
    if not args.tokenizer and (args.config or args.chat_template):
        raise UserError("--config and --chat-template say how --tokenizer counts; add --tokenizer PATH")
    paths = [*args.paths, *sources.expand(patterns, args.paths)]
    if not paths:
        raise UserError(
            "name runs, evaluations or rollouts: wm report runs/mine --out report.html; see wm report --help"
        )
    if any(out.suffix == ".html" for out in outs):
        check_extra("the report")
    targets = {f"--out {out}": out for out in outs}
    check_apart([*paths, args.tokenizer, args.config, args.chat_template], targets)
    inputs = sources.collect(paths)
    check_apart(_files(inputs), targets)
    view = overview.overview(inputs, patterns, args.against)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    if outs:
        _write(args, outs, view)
    columns = training.columns(view.arms)
    return {
        "arms": [
            {
                "arm": arm.name,
                "runs": [run.name for run in arm.runs],
                "last_step": max(run.last_step for run in arm.runs),
                "last": {metric: _last(arm.last(metric)) for metric in columns},
            }
            for arm in view.arms
        ],
        "evaluations": [{"of": one.name, "name": one.evaluation.name, "folder": one.place} for one in view.evaluations],
        "rollouts": [{"of": name, **figures} for name, figures in overview.figures_of(view.rollouts)],
        "compared": compared.as_dict(view.compared),
        "notes": list(view.notes),
        "out": [str(out) for out in outs],
        "format": export.FORMAT,
    }


def show(result: dict[str, Any]) -> None:
    """Print the table at a glance, the arms beside each other, what was not read, and where the report is."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from wm_plugin.lab.report import compared
    from wm_plugin.lab.report.chart import value_label
    from wm_plugin.tokens.view import visible

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if result["arms"]:
        metrics = list(dict.fromkeys(metric for arm in result["arms"] for metric in arm["last"]))
        table = Table("arm", "runs", "last step", *map(visible, metrics), box=None, pad_edge=False)
        for arm in result["arms"]:
            last = [arm["last"][metric] for metric in metrics]
            cells = [value_label(one["value"], False) if one else "–" for one in last]
            table.add_row(Text(visible(arm["arm"])), str(len(arm["runs"])), f"{arm['last_step']:,}", *cells)
        console.print(table)
    for line in compared.lines(result["compared"]):
        console.print(Text(line))
    shown = {row["evaluation"] for row in result["compared"]["rows"]}
    for one in result["evaluations"]:
        if one["name"] in shown:
            continue
        console.print(Text(visible(f"{one['name']} of {one['of']}: {one['folder']}")))
    for one in result["rollouts"]:
        if one["evaluation"] in shown:
            continue
        console.print(Text(visible(f"{one['trajectories']:,} rollouts: {one['of']}")))
    for note in result["notes"]:
        console.print(Text(f"note: {visible(note)}"))
    for out in result["out"]:
        console.print(Text(out))
    if not result["out"]:
        console.print("--out report.html writes the page")


def _write(args: argparse.Namespace, outs: Sequence[Path], view: Any) -> None:
    from wm_plugin.data.outputs import write_text
    from wm_plugin.lab.report import export, overview, render

    page = ""
    if any(out.suffix == ".html" for out in outs):
        samples = _samples(args, view.files)
        contents = overview.report(
            view, title=args.title, metrics=args.metric, samples=samples, masked=bool(args.tokenizer)
        )
        page = render(contents)
    for out in outs:
        if out.suffix == ".html":
            write_text(out, page)
        elif out.suffix == ".csv":
            write_text(out, export.to_csv(view.arms, view.measured, view.compared))
        else:
            rollouts = overview.figures_of(view.rollouts)
            values = export.as_dict(view.arms, view.measured, rollouts, view.compared)
            write_text(out, export.to_json(values))


def _samples(args: argparse.Namespace, rollouts: Sequence[Any]) -> list[Any]:
    from wm_plugin.lab.report import Sample, played

    rollouts = played.first(rollouts)
    if not args.tokenizer:
        return played.samples(rollouts, _SAMPLES)
    from wm_plugin.cli.masks import inspect_file

    return [
        Sample(f"{one.name}, rollout {number}", inspection.tokens)
        for one in rollouts
        for number, (_, inspection) in enumerate(inspect_file(one.place, args, _SAMPLES), 1)
    ]


def _outs(names: Sequence[str]) -> tuple[list[Path], Path | None]:
    """The files to write, and the folder that is to be made for them.

    Raises:
        UserError: one cannot be written, or a folder holds something else than a report.
    """
    outs: list[Path] = []
    folder = None
    for name in names:
        path = Path(name)
        if path.suffix in _FORMS:
            check_out(path)
            outs.append(path)
        elif path.suffix or folder:
            raise UserError(
                f"--out {name}: write a name that ends in {', '.join(_FORMS)}, or one folder without an ending"
            )
        else:
            folder = path
            outs += _in_folder(path)
    if len(set(outs)) < len(outs):
        raise UserError("--out names a file twice")
    return outs, folder


def _in_folder(folder: Path) -> list[Path]:
    """The files of a report in a folder that is new, empty, or holds an earlier one."""
    files = [folder / f"report{form}" for form in _FORMS]
    try:
        is_there = folder.is_dir()
        there = [path for path in folder.iterdir() if not path.name.startswith(PREFIX)] if is_there else []
    except (OSError, ValueError) as error:
        raise UserError(f"--out {folder}: cannot be used ({getattr(error, 'strerror', None) or error})") from None
    for path in files if is_there else [folder]:
        check_out(path)
    if there and (any(path not in files for path in there) or not _is_ours(folder / "report.json")):
        raise UserError(f"--out {folder}: holds something else than a report; name another folder, or a file")
    return files


def _is_ours(path: Path) -> bool:
    from wm_plugin.lab.report.export import FORMAT

    try:
        with path.open("rb") as file:
            value = file.read(200)
    except OSError:
        return False
    return f'"format": "{FORMAT}"'.encode() in value


def _files(inputs: Any) -> list[str]:
    """What was read."""
    return [
        *(source for run in inputs.runs for source in run.sources),
        *(one.place for one in inputs.evaluations),
        *(one.place for one in inputs.rollouts),
    ]


def _last(last: tuple[float, tuple[float, float] | None, int] | None) -> dict[str, Any] | None:
    if last is None:
        return None
    value, interval, count = last
    return {"value": value, "interval": interval, "runs": count}
