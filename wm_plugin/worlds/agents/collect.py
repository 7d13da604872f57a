"""Rollouts by the thousand: episodes of an environment under a policy, as trajectories in a file.

Episodes are kept in a folder, in shards that are written whole or not at all: after a kill the same call goes on, and at most
one shard is played again. An episode depends only on the settings and its row. So the file is the same, byte for byte, for any
number of processes, and whether the run was interrupted or not (with a model: as far as the model answers the same again).
"""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wm_plugin.data.predictions import same_settings
from wm_plugin.data.readers import read
from wm_plugin.data.readers.base import Reject
from wm_plugin.data.schema import Source, Trajectory
from wm_plugin.data.write import path_of_rejects, write
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import check_columns
from wm_plugin.runtime.workers import Lost
from wm_plugin.untrusted import loads
from wm_plugin.untrusted import number as finite
from wm_plugin.worlds.agents.players import Player, Row, Task, read_back
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.control.episode import KEY as CONTROL
from wm_plugin.worlds.wrappers.verified import KEY as VERIFY
from wm_plugin.worlds.wrappers.verified import VerifiedWorld

VERSION = 2  # of the folder's layout
MANIFEST = "manifest.json"  # tells our folders from others
_SUMMED = ("actions", "effective", "invalid", "lost")


@dataclass
class Summary:
    """Figures over all episodes. Shares are of all actions. Of what no episode says there is no figure."""

    episodes: int = 0  # those with a trajectory
    successes: list[bool] = field(default_factory=list)  # of the episodes that have one, as rewards
    rewards: list[float] = field(default_factory=list)
    turns: int = 0
    figures: Counter[str] = field(default_factory=Counter)  # sums of the episodes' `_SUMMED` figures
    calls: Counter[str] = field(default_factory=Counter)  # by tool
    failed: Counter[str] = field(default_factory=Counter)  # episodes without a trajectory, by reason

    def add(self, result: Trajectory | Reject) -> None:
        """Count an episode."""
        if isinstance(result, Reject):
            self.failed[result.kind] += 1
            return
        self.episodes += 1
        if result.success is not None:
            self.successes.append(result.success)
        if (reward := finite(result.reward)) is not None:
            self.rewards.append(reward)
        self.turns += len(result.turns)
        self.calls.update(call.name for turn in result.turns for call in turn.action.calls)
        for name, value in result.metadata.get("figures", {}).items():
            if name in _SUMMED or name.startswith((f"{CONTROL}/", f"{VERIFY}/")):
                self.figures[name] += int(finite(value) or 0)

    def as_dict(self) -> dict[str, Any]:
        """Return means and shares as JSON values. `lost` counts the episodes whose process died or hung: ours or the world's.

        None: no episode has it. A class may leave rewards to the trainer, and need not count its actions. `control` is there for
        worlds under control alone, `verify` where there were checks of actions.
        """
        actions = self.figures["actions"]
        shares = {
            f"{name}_share": self.figures[name] / actions if actions and name in self.figures else None
            for name in ("effective", "invalid")
        }
        return {
            "episodes": self.episodes,
            "success": _mean(self.successes),
            "reward": _mean(self.rewards),
            "turns": self.turns / max(self.episodes, 1),
            "actions": actions / self.episodes if "actions" in self.figures else None,
            **shares,
            "lost": self.figures["lost"] + self.failed["died"] + self.failed["timeout"],
            "failed": self.failed.total(),
            "failed_by_reason": dict(self.failed.most_common()),
            "calls": dict(sorted(self.calls.items())),
            **{key: counts for key in (CONTROL, VERIFY) if (counts := self._of(key))},
        }

    def _of(self, key: str) -> dict[str, int]:
        """Return the sums of figures of this prefix: of `calls` under control and of those that were perturbed, or of checks."""
        found = {name.removeprefix(f"{key}/"): n for name, n in self.figures.items() if name.startswith(f"{key}/")}
        return dict(sorted(found.items())) if key == VERIFY else found


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def collect(
    world: World,
    rows: Sequence[Row],
    player: Player,
    out: str | Path,
    *,
    folder: str | Path,
    rejects: str | Path | None = None,
    shard_size: int = 64,
    watch: Any = iter,
) -> Summary:
    """Play every row, as often as it occurs, and write the trajectories to `out` (.jsonl or .parquet), in order.

    An episode without a trajectory, because its process died or hung, or a server gave no answer, is a line of the rejects file
    with its reason. A trajectory's `source` has the number of its row and a digest of the row and the settings, so that files of
    several runs over the same tasks can go together; its `metadata` has the name of the policy.

    Args:
        folder: for the shards; it may be removed afterwards.
        rejects: default: X.rejects.jsonl beside X.
        shard_size: episodes in a shard: at most so many are lost by a kill.
        watch: wraps the iterator over the paths of finished shards, for a progress bar.

    Raises:
        UserError: the folder is not one of ours or has shards of other settings or rows, a shard is damaged, `out` cannot be
            written, or a row has not the columns that the world's `reset` takes.
    """
    summary = Summary()

    def counted(results: Iterator[Trajectory | Reject]) -> Iterator[Trajectory | Reject]:
        for result in results:
            summary.add(result)
            yield result

    with closing(player):
        write(counted(episodes(world, rows, player, folder, shard_size=shard_size, watch=watch)), out, rejects)
    return summary


def episodes(
    world: World, rows: Sequence[Row], player: Player, folder: str | Path, *, shard_size: int = 64, watch: Any = iter
) -> Iterator[Trajectory | Reject]:
    """Yield what `collect` writes. A shard is played when its first episode is asked for, unless it is in the folder.

    Raises:
        UserError: as `collect`; all but a damaged shard at once.
    """
    if shard_size < 1:
        raise UserError(f"shard_size is {shard_size}; write a number >= 1")
    for row in rows:
        check_columns(world.environment, {name: value for name, value in row.items() if name != "prompt"})
    folder = Path(folder)
    digest = hashlib.sha256(json.dumps(list(rows), sort_keys=True, default=str).encode()).hexdigest()
    settings = {"version": VERSION, "environment": world.name, "rows": digest, "shard_size": shard_size}
    about = player.settings | ({} if world.control is None else {CONTROL: world.control.as_mapping()})
    about |= {VERIFY: world.config.as_mapping()} if isinstance(world, VerifiedWorld) and world.config.budget else {}
    _check_ours(folder)
    same_settings(folder / MANIFEST, settings | about, "episodes")

    def shards() -> Iterator[Path]:
        for start in range(0, len(rows), shard_size):
            path = _shard(folder, start // shard_size)
            if not path.exists():
                tasks = list(enumerate(rows[start : start + shard_size], start))
                results = player(tasks)
                made = (_result(world, about, *pair) for pair in zip(tasks, results, strict=True))
                write(made, path)
            yield path

    def everything() -> Iterator[Trajectory | Reject]:
        for path in watch(shards()):
            shard = _read_shard(path)
            start = int(path.stem.removeprefix("episodes-")) * shard_size
            if len(shard) != len(rows[start : start + shard_size]):
                raise UserError(f"{path}: damaged; remove it, and it is played again")
            yield from shard

    return everything()


def remove_shards(folder: Path, rows: int, shard_size: int) -> None:
    """Remove what `collect` wrote into its folder for so many rows, and the folder if there is nothing else in it."""
    for number in range(-(-rows // shard_size)):
        shard = _shard(folder, number)
        shard.unlink(missing_ok=True)
        path_of_rejects(shard).unlink(missing_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _shard(folder: Path, number: int) -> Path:
    return folder / f"episodes-{number:05d}.jsonl"


def _check_ours(folder: Path) -> None:
    """Refuse a folder with files of somebody else: a shard among them would be read as one of ours, and later removed."""
    try:
        names = os.listdir(folder) if folder.is_dir() else []
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror})") from None
    if MANIFEST not in names and any(not name.startswith(".wm-") for name in names):  # these a killed run of ours left
        raise UserError(f"{folder}: there are files in it, but no {MANIFEST} of ours; name another folder with --work")


def _result(world: World, settings: dict[str, Any], task: Task, result: Trajectory | Lost) -> Trajectory | Reject:
    number, row = task
    if not isinstance(result, Lost):
        played = json.dumps([settings, dict(row)], sort_keys=True, default=str)
        source = Source(format="wm", file=world.name, row=number, id=hashlib.sha256(played.encode()).hexdigest()[:8])
        metadata = {**result.metadata, "policy": str(settings["policy"])}
        trajectory = result.model_copy(update={"source": source, "metadata": metadata})
        result = read_back(trajectory.to_bytes())  # a shard that cannot be read would stop this run and the next
        if not isinstance(result, Lost):
            return trajectory
    raw = json.dumps(dict(row), ensure_ascii=False, default=str)
    return Reject(world.name, number, result.kind, f"{result.kind}: {result.reason}", raw)


def _read_shard(path: Path) -> list[Trajectory | Reject]:
    results: list[Trajectory | Reject] = list(read(path, "own")) if path.stat().st_size else []
    beside = path.with_name(f"{path.stem}.rejects.jsonl")
    for line in beside.read_bytes().splitlines() if beside.exists() else ():
        try:
            reject = loads(line)
            kind = reject["reason"].partition(":")[0]
            results.append(Reject(reject["file"], reject["row"], kind, reject["reason"], reject["raw"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UserError(f"{beside}: damaged; remove it and {path.name}, and they are played again") from None
    return results
