"""`wm report`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wm_plugin.cli.masks import CountFlags
from wm_plugin.cli.output import prints, table
from wm_plugin.data.outputs import check_apart, write_text
from wm_plugin.errors import UserError

_SAMPLES = 2  # rollouts of a file that are shown


def show(result: dict[str, Any]) -> None:
    """Print the table at a glance, the arms beside each other, what was not read, and where the report is."""
    from wm_plugin.lab.report import compared  # imports torch
    from wm_plugin.lab.report.chart import value_label

    arms = []
    for arm in result["arms"]:
        last = {metric: value_label(one["value"], False) if one else "–" for metric, one in arm["last"].items()}
        arms.append({"arm": arm["arm"], "runs": len(arm["runs"]), "last step": f"{arm['last_step']:,}", **last})
    if arms:
        table(arms)
    shown = {row["evaluation"] for row in result["compared"]["rows"]}
    others = [f"{o['name']} of {o['of']}: {o['folder']}" for o in result["evaluations"] if o["name"] not in shown]
    others += [f"{o['trajectories']:,} rollouts: {o['of']}" for o in result["rollouts"] if o["evaluation"] not in shown]
    notes = [f"note: {note}" for note in result["notes"]]
    out = result["out"] or ["--out report.html writes the page"]
    print(*compared.lines(result["compared"]), *others, *notes, *out, sep="\n")


@prints(show)
def report(
    *paths: str,
    arm: list[str] | None = None,
    against: str = "",
    metric: list[str] | None = None,
    out: list[str] | None = None,
    title: str = "",
    count: CountFlags = CountFlags(),
) -> dict[str, Any]:
    """Make a page of training runs, evaluations and rollouts: curves, tables, predictions.

    One self-contained page of what lies at PATHS, in any number and mixed:

    - training runs: folders or files of TRL's trainer_state.json, TensorBoard's event files, trackio's databases
      (~/.cache/huggingface/trackio/PROJECT.db), wandb's (wandb/*run-*/run-ID.wandb), verl's file logger
      (PROJECT/EXPERIMENT.jsonl); and the folder of wm demo
    - evaluations: folders that wm eval STEP --out DIR wrote
    - rollouts: files of wm env rollout, or of any format that wm data convert reads

    Runs that differ in their seeds alone (echo_seed0, echo_seed1) are one line with a band. What two arms or more measure is
    compared: means over seeds, and differences to the first arm, paired by seed.

    ```
    wm report runs/echo_seed0 runs/echo_seed1 runs/grpo_seed0 --out report.html
    wm report --arm 'echo=runs/echo_*' --arm 'plain=runs/grpo_*' evals/ --out report.html --out report.csv
    wm report runs/ --metric 'reward' --metric 'echo/*' --out report.html
    ```

    Args:
        paths: Runs, evaluations, rollouts; folders are searched.
        arm: NAME=PATTERN: runs that are one line, chosen among the PATHS, else read, too (repeatable).
        against: The arm that others are compared with (default: the first that was trained).
        metric: Only the training metrics that fit this pattern, on the page (repeatable). CSV and JSON have all of them.
        out: X.html, X.csv or X.json (repeatable); or a folder, for all of them.
        title: The page's heading.
    """
    from wm_plugin.lab.report.outs import files_of

    outs, folder = files_of(out or ())  # before imports of many seconds
    from wm_plugin.lab.report import compared, export, overview, sources, training
    from wm_plugin.lab.report.arms import parse
    from wm_plugin.runtime.page import check_extra

    patterns = parse(arm or [])
    if not count.tokenizer and (count.config or count.chat_template):
        raise UserError("--config and --chat-template say how --tokenizer counts; add --tokenizer PATH")
    named = [*paths, *sources.expand(patterns, list(paths))]
    if not named:
        raise UserError(
            "name runs, evaluations or rollouts: wm report runs/mine --out report.html; see wm report --help"
        )
    with_page = any(path.suffix == ".html" for path in outs)
    if with_page:
        check_extra("the report")
    targets = {f"--out {path}": path for path in outs}
    check_apart([*named, count.tokenizer, count.config, count.chat_template], targets)
    inputs = sources.collect(named)
    read = [source for run in inputs.runs for source in run.sources]
    read += [one.place for one in inputs.evaluations] + [one.place for one in inputs.rollouts]
    check_apart(read, targets)
    view = overview.overview(inputs, patterns, against)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    page = ""
    if with_page:
        from wm_plugin.lab.report import render

        samples, masked = _samples(count, view.files), bool(count.tokenizer)
        page = render(overview.report(view, title=title, metrics=metric or [], samples=samples, masked=masked))
    rollouts = overview.figures_of(view.rollouts)
    for path in outs:
        if path.suffix == ".html":
            write_text(path, page)
        elif path.suffix == ".csv":
            write_text(path, export.to_csv(view.arms, view.measured, view.compared))
        else:
            write_text(path, export.to_json(export.as_dict(view.arms, view.measured, rollouts, view.compared)))
    columns = training.columns(view.arms)
    return {
        "arms": [
            {
                "arm": one.name,
                "runs": [run.name for run in one.runs],
                "last_step": one.last_step,
                "last": {column: _named(one.last(column)) for column in columns},
            }
            for one in view.arms
        ],
        "evaluations": [{"of": one.name, "name": one.evaluation.name, "folder": one.place} for one in view.evaluations],
        "rollouts": [{"of": name, **figures} for name, figures in rollouts],
        "compared": compared.as_dict(view.compared),
        "notes": list(view.notes),
        "out": [str(path) for path in outs],
        "format": export.FORMAT,
    }


def _samples(count: CountFlags, rollouts: Sequence[Any]) -> list[Any]:
    from wm_plugin.lab.evaluation.rollout_rows import first, read_rows
    from wm_plugin.lab.report import Sample, played

    rollouts = played.first(rollouts)
    if not count.tokenizer:
        return played.samples(rollouts, _SAMPLES)
    samples, config = [], count.objective()
    for one in rollouts:
        inspected, _ = count.inspect(first(read_rows(Path(one.place)), _SAMPLES)[0], config)
        samples += [Sample(f"{one.name}, rollout {n}", each.tokens) for n, (_, each) in enumerate(inspected, 1)]
    return samples


def _named(last: tuple[Any, ...] | None) -> dict[str, Any] | None:
    return dict(zip(("value", "interval", "runs"), last, strict=True)) if last else None
