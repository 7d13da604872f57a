"""Synthetic trajectories: an agent plays episodes in a world model, and the successful ones are kept.

Word2World (section 7.2, appendix A.2) fine-tunes agents on 1,000 successful trajectories of the real world, of the world model,
or of both. One policy plays both; it is not the one whose rollouts trained the world model. The world model predicts its own
success. The paper does not give the number of tasks or of attempts at each; those are our choice.

Readers never take these trajectories for real ones. `metadata["synthetic"]` names the world model, its prompts, the agent and
what decided the episode; each observation has `simulated` and `target: false`, so that no world model trains on it or is
evaluated with it. The class and the row in `metadata` are the real world's.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from wm_plugin.data.constructions import content_digest
from wm_plugin.data.readers.base import Reject
from wm_plugin.data.schema import Observation, Trajectory
from wm_plugin.data.write import write
from wm_plugin.errors import UserError
from wm_plugin.runtime.workers import Lost
from wm_plugin.worlds.agents.collect import episodes
from wm_plugin.worlds.agents.players import MAX_TURNS, Player, Row, Task, ThreadPlayer
from wm_plugin.worlds.agents.rollout import Host
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.simulated_world import SimulatedWorld
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.simulated_session import FIGURES
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig
from wm_plugin.worlds.wrappers.world_model_client import world_model

Keep = Literal["success", "all"]
_ADDRESS = ("model", "url", "api_key_env")  # where the model is; `origin` says which one it is
_SPEED = ("concurrency", "timeout", "patience", "cache", "evaluation", "worlds")  # do not change answers
_BY_CHANCE = ("requests", "cached", "tokens")  # depend on earlier and simultaneous questions
_FEW = 8  # fewer episodes than this may all be lost by chance


@dataclass
class Report:
    """Counts of episodes up to the one that completed the file; `played` and `figures` cover the rest of its shard too.

    `left_out` counts episodes that were not kept, by reason: `no success`, `lost` (the world model gave no usable answer),
    `repeated` (equal to an earlier one), and failures of the agent's server.
    """

    played: int = 0
    attempts: int = 0
    kept: int = 0
    successes: int = 0
    turns: int = 0  # of kept episodes
    tasks: set[str] = field(default_factory=set)  # of kept episodes
    left_out: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)  # questions to the world model

    def as_dict(self) -> dict[str, Any]:
        return {
            "played": self.played,
            "attempts": self.attempts,
            "kept": self.kept,
            "success": self.successes / self.attempts if self.attempts else None,
            "turns": self.turns / self.kept if self.kept else None,
            "tasks": len(self.tasks),
            "left_out": dict(self.left_out.most_common()),
            "world_model": {name: self.figures[name] for name in FIGURES},
        }


def synthesize(
    world: SimulatedWorld,
    rows: Sequence[Row],
    player: Player,
    out: str | Path,
    *,
    count: int,
    folder: str | Path,
    keep: Keep = "success",
    shard_size: int = 64,
    watch: Any = iter,
) -> Report:
    """Play rows in order until `count` trajectories are kept, and write these to `out` (.jsonl or .parquet).

    The file does not depend on how many episodes run at once, on `shard_size` or on interruptions, as long as the models repeat
    their answers. Episodes without a trajectory go to `X.rejects.jsonl`.

    Args:
        rows: one for each attempt. A repeated row is played anew, with other draws of the policy.
        player: the agent, in `world`.
        keep: `success`, or `all` except lost and repeated episodes.
        folder: for finished shards, as in `collect`; it may be removed afterwards.
        watch: wraps the iterator over the paths of finished shards, for a progress bar.

    Raises:
        UserError: as `collect`; or the world model answered in no episode of a shard.
    """
    report, seen = Report(), set[bytes]()
    marked = Marked(player, world)

    def asked(result: Trajectory | Reject) -> None:
        report.played += 1
        if isinstance(result, Trajectory):
            for name in FIGURES:
                report.figures[name] += int(result.metadata["figures"].get(f"simulation/{name}", 0))

    def kept(results: Iterator[Trajectory | Reject]) -> Iterator[Trajectory | Reject]:
        for result in results:
            asked(result)
            report.attempts += 1
            if isinstance(result, Reject):
                report.left_out[result.kind] += 1
                yield result
                continue
            report.successes += result.success is True
            if (reason := _left_out(result, keep, seen)) is not None:
                report.left_out[reason] += 1
                continue
            report.kept += 1
            report.turns += len(result.turns)
            report.tasks.add(result.task_id)
            yield _finished(result, world)
            if report.kept == count:
                for rest in islice(results, -report.attempts % shard_size):  # the shard has been played already
                    asked(rest)
                return

    with closing(player):
        write(kept(episodes(world, rows, marked, folder, shard_size=shard_size, watch=watch)), out)
    return report


class Marked:
    """A player that marks its trajectories as synthetic."""

    def __init__(self, player: Player, world: SimulatedWorld) -> None:
        self._player, self._about = player, provenance(world.config)
        self.settings = {**player.settings, "simulation": _settings(world.config, self._about)}

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]:
        results = self._player(tasks)
        lost = [one for one in results if isinstance(one, Trajectory) and _is_lost(one)]
        if len(lost) == len(results) >= _FEW:
            said = [seen.text for turn in lost[-1].turns[-1:] for seen in turn.observations[-1:]]
            why = f" ({said[0].splitlines()[0]})" if said and said[0] else ""
            raise UserError(
                f"simulation: all {len(lost)} episodes of a shard were lost{why}; check that the world model answers, and give "
                "the same command again, which continues after the finished shards"
            )
        return [result if isinstance(result, Lost) else self._mark(result) for result in results]

    def _mark(self, trajectory: Trajectory) -> Trajectory:
        about = {**self._about, "policy": dict(self._player.settings)}
        turns = tuple(
            turn.model_copy(update={"observations": tuple(map(_predicted, turn.observations))})
            for turn in trajectory.turns
        )
        return trajectory.model_copy(update={"turns": turns, "metadata": {**trajectory.metadata, "synthetic": about}})

    def close(self) -> None:
        self._player.close()


def wandering(
    world: World,
    *,
    seed: int = 0,
    max_turns: int = MAX_TURNS,
    host: Host = "trl",
    workers: int = 1,
    timeout: float | None = None,
) -> Player:
    """Make a player of a simulated world's wanderer, with `workers` episodes at once."""
    return ThreadPlayer(
        world,
        lambda number: scripted(world.wanderer(random.Random(f"{seed}/{number}"))),
        {"policy": "random", "seed": seed},
        max_turns=max_turns,
        host=host,
        workers=workers,
        timeout=timeout,
    )


def provenance(config: SimulationConfig) -> dict[str, Any]:
    """Describe a synthetic trajectory's origin: the model, its prompts and sampling, and what decides success.

    Raises:
        UserError: the world model cannot be loaded, or its address is invalid.
    """
    success: dict[str, Any] = {"by": config.success}
    if config.success == "verifier":
        verifier = config.verifier
        success |= {"verifier": verifier.get("path") if isinstance(verifier, Mapping) else str(verifier)}
    elif config.success == "rule":
        success |= {"rule": config.rule}
    if config.success in ("verifier", "rule"):
        success["threshold"] = config.threshold
    return {
        "world_model": world_model(config).origin,
        "prompts": config.prompts,
        "prompts_digest": _digest_of_file(config.prompts),
        "hidden": config.hidden,
        "temperature": config.temperature,
        "seed": config.seed,
        "success": success,
    }


def _settings(config: SimulationConfig, about: Mapping[str, Any]) -> Any:
    """Return everything in a config that the episodes depend on, as JSON values, without the model's place."""
    values = config.model_dump(mode="json", exclude={*_ADDRESS, *_SPEED}, fallback=repr)
    model = {name: value for name, value in about["world_model"].items() if name != "server"}
    model = {"weights": model["weights"]} if "weights" in model else model
    files = {name: _digest_of_file(values[name]) for name in ("prompts", "context_file")}
    return json.loads(json.dumps({**values, "world_model": model, "files": files}, sort_keys=True, default=str))


def _digest_of_file(name: str | None) -> str | None:
    """Return the first digits of a file's SHA-256; None for the name of a family."""
    if name is None or not Path(name).is_file():
        return None
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()[:16]


def _left_out(trajectory: Trajectory, keep: Keep, seen: set[bytes]) -> str | None:
    """Return why a trajectory is not kept, or None."""
    if _is_lost(trajectory):
        return "lost"
    if keep == "success" and not trajectory.success:
        return "no success"
    digest = content_digest(trajectory)
    if digest in seen:
        return "repeated"
    seen.add(digest)
    return None


def _is_lost(trajectory: Trajectory) -> bool:
    return bool(trajectory.metadata.get("figures", {}).get("lost"))


def _predicted(observation: Observation) -> Observation:
    """Mark an observation as the world model's; that of a failed call is the host's."""
    marks = {"target": False} if observation.error else {"simulated": True, "target": False}
    return observation.model_copy(update={"data": {**observation.data, **marks}})


def _finished(trajectory: Trajectory, world: SimulatedWorld) -> Trajectory:
    """Give a trajectory a source that shows in all names derived from it, and only the figures that are its own."""
    assert trajectory.source is not None
    chance = {f"simulation/{name}" for name in _BY_CHANCE}
    figures = {name: value for name, value in trajectory.metadata["figures"].items() if name not in chance}
    return trajectory.model_copy(
        update={
            "source": trajectory.source.model_copy(update={"file": f"simulated {world.name}"}),
            "metadata": {**trajectory.metadata, "figures": figures},
        }
    )
