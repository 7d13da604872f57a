"""Which code each committed result was measured with, and whether that code has changed since.

A benchmark that has written results/NAME.json or .md ends with `stamp(path, settings)`: results/stamps.json then says the commit,
the date, the versions, the digest of the settings and of every file that the result measures, and NAME.md says the first three.
Files that were renamed since stand there by their present names.

    python benchmarks/stamps.py          # `make bench-check`: the results whose files have changed since, and which
"""

import datetime
import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STAMPS = Path("benchmarks/results/stamps.json")
UNKNOWN = "not recorded"
_HEAD = "Measured with commit "
_HOSTS = ("trl", "verl", "transformers", "torch")

_TERM = ("wm_plugin/objectives/*.py", "wm_plugin/tokens/*.py")
_ON_TRL = (*_TERM, "wm_plugin/trl/term.py", "wm_plugin/trl/trainer.py", "wm_plugin/trl/rollout.py")
_ON_VERL = (
    *_TERM,
    "wm_plugin/verl/loss.py",
    "wm_plugin/verl/spans.py",
    "wm_plugin/verl/trainer.py",
    "wm_plugin/verl/worker.py",
)
_TINY = ("wm_plugin/lab/tiny/policy.py", "wm_plugin/lab/tiny/warm_start.py")
_SIMULATED = (
    "wm_plugin/worlds/wrappers/simulat*.py",
    "wm_plugin/worlds/wrappers/world_model_client.py",
    "wm_plugin/client/answers.py",
)
_AHEAD = (
    "benchmarks/look_ahead.py",
    "wm_plugin/lab/agents/branches.py",
    "wm_plugin/lab/agents/imaginers.py",
    "wm_plugin/worlds/agents/controls.py",
    "wm_plugin/lab/agents/imagined_worlds.py",
    "wm_plugin/lab/agents/lookahead*.py",
    "wm_plugin/lab/evaluation/lookahead.py",
    "benchmarks/tiny_worlds.py",
    "wm_plugin/trl/demo/*.py",
    *_TINY,
    *_ON_TRL,
)
# of each result, the script or recipe that makes it, and the files that it measures
RESULTS: dict[str, tuple[str, ...]] = {
    "audit": (
        "benchmarks/audit.py",
        "wm_plugin/lab/evaluation/attacks.yaml",
        "wm_plugin/lab/evaluation/audit.py",
        "wm_plugin/lab/evaluation/blind_spots.py",
        "wm_plugin/rewards/*.py",
    ),
    "bookkeeping": ("benchmarks/bookkeeping.py", *_ON_TRL),
    "consistency_tiny": (
        "benchmarks/consistency_tiny.py",
        "recipes/pipelines/consistency_tiny.yaml",
        "wm_plugin/lab/evaluation/consistency*.py",
        *_SIMULATED,
    ),
    "demo": (
        "benchmarks/demo.py",
        "wm_plugin/lab/tiny/held_out.py",
        "wm_plugin/lab/tiny/look_ahead.py",
        "wm_plugin/runtime/arithmetic.py",
        "wm_plugin/trl/demo/*.py",
        *_TINY,
        *_ON_TRL,
    ),
    "environments": ("benchmarks/environments.py", "benchmarks/text_worlds.py", "wm_plugin/worlds/**/*.py"),
    "evaluation": (
        "benchmarks/evaluation.py",
        "wm_plugin/lab/evaluation/cases.py",
        "wm_plugin/lab/evaluation/fidelity.py",
        "wm_plugin/client/server.py",
        "wm_plugin/client/answers.py",
    ),
    "look_ahead": _AHEAD,
    "look_ahead_controls": _AHEAD,
    "memorised": ("benchmarks/memorised.py", "wm_plugin/worlds/docs/*.py", "wm_plugin/worlds/grid.py", *_ON_TRL),
    "mutants": (
        "benchmarks/mutants.py",
        "wm_plugin/objectives/*.py",
        "wm_plugin/hosting/*.py",
        "wm_plugin/rewards/extract.py",
        "wm_plugin/rewards/verdict.py",
    ),
    "openenv_server": (
        "benchmarks/openenv_server.py",
        "wm_plugin/worlds/openenv_server.py",
        "wm_plugin/worlds/served.py",
    ),
    "pretrained": ("benchmarks/pretrained.py", *_ON_TRL),
    "reproduce": (
        "benchmarks/reproduce.py",
        "benchmarks/reproduce.yaml",
        "recipes/pipelines/*",
        "wm_plugin/lab/tiny/*.py",
        *_ON_TRL,
    ),
    "rewards_cpu": ("benchmarks/rewards.py", "wm_plugin/rewards/*.py"),
    "rewards_judges": ("benchmarks/rewards_judges.py", "wm_plugin/rewards/*.py", "wm_plugin/client/server.py"),
    "rwml_tiny": ("benchmarks/rwml_tiny.py", "recipes/pipelines/rwml_tiny.yaml", "wm_plugin/rewards/*.py"),
    "scale": ("benchmarks/scale.py", *_ON_VERL, "wm_plugin/data/write.py"),
    "scienceworld_replay": ("benchmarks/scienceworld_replay.py", "wm_plugin/worlds/scienceworld.py"),
    "simulated": ("benchmarks/simulated.py", "wm_plugin/client/server.py", *_SIMULATED),
    "sql_135m": (
        "recipes/pipelines/sql_135m.yaml",
        "wm_plugin/worlds/sql/*.py",
        "wm_plugin/lab/tiny/pretrained.py",
        *_ON_TRL,
        *_ON_VERL,
    ),
    "step_time_cpu": ("benchmarks/step_time.py", "benchmarks/paired.py", *_ON_TRL),
    "trajectories": ("benchmarks/trajectories.py", "wm_plugin/data/**/*.py"),
    "verl_step_time_cpu": ("benchmarks/verl_step_time.py", "benchmarks/paired.py", *_ON_VERL),
    "verl_whole_step": ("benchmarks/verl_whole_step.py", *_ON_VERL),
    "agent_sft": ("benchmarks/agent_sft.py", "wm_plugin/hosting/dialogues.py", "wm_plugin/trl/sft*.py", *_TINY, *_TERM),
    "agent_sft_135m": (
        "benchmarks/agent_sft_135m.py",
        "recipes/trl/echo_sql_135m.yaml",
        "recipes/trl/sft_tiny.yaml",
        "wm_plugin/hosting/dialogues.py",
        "wm_plugin/trl/sft*.py",
        *_ON_TRL,
    ),
    "grid_135m": (
        "benchmarks/grid_135m.py",
        "benchmarks/agent_sft_135m.py",
        "recipes/trl/echo_sql_135m.yaml",
        "recipes/trl/sft_tiny.yaml",
        "wm_plugin/worlds/grid.py",
        *_ON_TRL,
    ),
    "rwml_135m": (
        "benchmarks/rwml_135m.py",
        "benchmarks/agent_sft_135m.py",
        "benchmarks/grid_135m.py",
        "recipes/trl/rwml_grpo_tiny.yaml",
        "recipes/trl/sft_tiny.yaml",
        "wm_plugin/worlds/sql/*.py",
        "wm_plugin/rewards/*.py",
        *_ON_TRL,
    ),
    "predictions": (
        "benchmarks/predictions.py",
        "wm_plugin/hosting/predictions.py",
        "wm_plugin/rewards/prediction.py",
        *_TINY,
        *_ON_TRL,
    ),
    "wmact": (
        "benchmarks/wmact.py",
        "benchmarks/plans.py",
        "wm_plugin/hosting/annealing.py",
        "wm_plugin/worlds/kit/counted.py",
        "wm_plugin/worlds/maze.py",
        "wm_plugin/hosting/figures.py",
        "wm_plugin/worlds/wrappers/rewarded.py",
        "wm_plugin/rewards/episode.py",
        *_TINY,
        *_ON_TRL,
    ),
}


def stamp(written: Path, settings: Mapping[str, Any], parts: Sequence[str] | None = None, *, root: Path = ROOT) -> None:
    """Say with what code and settings a result has just been measured.

    Args:
        written: its file, results/NAME.json or .md. Of one elsewhere, such as a trial, nothing is said.
        settings: all that it depends on beside the files; empty where the script has them all.
        parts: what was measured now of a result that several runs add to; the stamps of its other parts stay. None: all of it.
    """
    name = written.stem
    if written.resolve().parent != (root / STAMPS).resolve().parent:
        return
    if name not in RESULTS:
        raise SystemExit(f"{written} is written, and has no stamp: add {name} to RESULTS in benchmarks/stamps.py")
    # paths by their names: the same run elsewhere has the same digest
    text = json.dumps(settings, sort_keys=True, default=lambda value: getattr(value, "name", str(value)))
    kept = read(root)
    others = []
    for one in kept.get(name, []) if parts is not None else []:
        left = [part for part in one.get("parts", []) if part not in parts]
        others += [{**one, "parts": left}] if left else []
    new = {
        "commit": _git("rev-parse", "HEAD", root=root) or UNKNOWN,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {one: version for one in _HOSTS if (version := _version(one))}
        | {"python": platform.python_version()},
        "settings": digest(text.encode()) if settings else "the script's",
        "files": digests(name, root),
    }
    made = [] if parts == [] else [new | ({"parts": list(parts)} if parts else {})]
    write({**kept, name: others + made}, root)


def write(stamps: Mapping[str, Any], root: Path = ROOT) -> None:
    """All stamps, and what they say at the head of each .md."""
    (root / STAMPS).write_text(json.dumps(dict(sorted(stamps.items())), indent=1) + "\n")
    for name, own in stamps.items():
        page = (root / STAMPS).with_name(f"{name}.md")
        if page.exists():
            page.write_text(headed(page.read_text(), own))


def headed(text: str, stamps: Sequence[Mapping[str, Any]]) -> str:
    """A page with what its stamps say, below its title if it has one, in the place of what they said before."""
    lines = text.split("\n")
    place = 2 if text.startswith("# ") else 0
    while lines[place].startswith(_HEAD):
        del lines[place : place + 1 + (not lines[place + 1])]
    return "\n".join([*lines[:place], *heads(stamps), "", *lines[place:]])


def heads(stamps: Sequence[Mapping[str, Any]]) -> list[str]:
    """The stamps in lines, one for each set of versions."""
    commits: dict[str, dict[str, None]] = {}
    for one in stamps:
        known = isinstance(one["versions"], Mapping)
        versions = ", ".join(f"{name} {number}" for name, number in one["versions"].items()) if known else UNKNOWN
        commits.setdefault(versions, {})[_commit(one)] = None
    return [f"{_HEAD}{', '.join(of)}; versions: {versions}.  " for versions, of in commits.items()]


def _commit(one: Mapping[str, Any]) -> str:
    """A stamp's commit and date. Of results that are older than stamps, the commit that last changed them is known alone."""
    if one["commit"] == UNKNOWN and "history" in one:
        return f"{UNKNOWN} ({one['history'][:12]} of {one['date']} last changed this)"
    return f"{one['commit'][:12]} ({one['date']})"


def changed(name: str, root: Path = ROOT) -> list[str]:
    """The files that are not as they were when a result was measured, or were not there, or whose state then is not recorded."""
    now, found = digests(name, root), set()
    for one in read(root).get(name, [{"files": {}}]):
        found |= {path for path in {*now, *one["files"]} if now.get(path) != one["files"].get(path)}
    return sorted(found)


def digests(name: str, root: Path = ROOT) -> dict[str, str]:
    """The digests of the files that a result measures."""
    paths = {path for pattern in RESULTS[name] for path in root.glob(pattern) if path.is_file()}
    return {str(path.relative_to(root)): digest(path.read_bytes()) for path in sorted(paths)}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def read(root: Path = ROOT) -> dict[str, list[dict[str, Any]]]:
    """The stamps of each result: one, or one for each time that it was added to."""
    path = root / STAMPS
    stamps: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}
    return stamps


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str, root: Path) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> None:
    stamps = read()
    stale = {name: files for name in stamps if (files := changed(name))}
    for name, files in stale.items():
        one = stamps[name][-1]
        more = f" and {len(files) - 4} more" if len(files) > 4 else ""
        print(f"{name}, commit {_commit(one)}: changed since: {', '.join(files[:4])}{more}")
    print(f"{len(stale)} of {len(stamps)} results are of other code than this")


if __name__ == "__main__":
    main()
