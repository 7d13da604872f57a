"""Predictions for transitions, stored on disk in shards, so that a killed run resumes where it stopped."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from wm_plugin.client.predict import Predictor, seed_of
from wm_plugin.data.outputs import atomic
from wm_plugin.data.prompts import Prompts, render
from wm_plugin.data.schema import Transition
from wm_plugin.errors import UserError
from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import loads

T = TypeVar("T")
VERSION = 1  # of the folder's layout


class Repeatable(Generic[T]):
    """Rows that can be iterated more than once without being in memory. `rows` makes a new iterator from the first row."""

    def __init__(self, rows: Callable[[], Iterator[T]]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[T]:
        return self._rows()


def predictions(
    transitions: Iterable[Transition],
    predictor: Predictor,
    prompts: Prompts,
    *,
    k: int,
    folder: str | Path,
    shard_size: int = 256,
    seed: int = 0,
    stage: str = "rl",
    thinking: bool = True,
) -> Iterator[tuple[Transition, list[str]]]:
    """Yield each transition with k raw outputs (fewer where the predictor could not get them), in order.

    They are stored in `folder`, in shards of about `shard_size` transitions that are written completely or not at all. After a
    kill the same call resumes and repeats at most one shard. A shard depends only on the settings and its number, so that the
    folder of an interrupted run is the same, byte for byte, as that of any other.

    Args:
        transitions: iterated twice; a list, or `Repeatable`.
    """
    if iter(transitions) is transitions:
        raise TypeError("transitions can be gone through only once; pass a list")
    for name, value in (("k", k), ("shard_size", shard_size)):
        if value < 1:
            raise UserError(f"{name} is {value}; write a number >= 1")

    def messages(transition: Transition) -> list[Message]:
        return list(render(transition, prompts, stage=stage, seed=seed, thinking=thinking).messages)

    folder = Path(folder)
    count, data, rendered = 0, hashlib.sha256(), hashlib.sha256()
    for transition in transitions:
        count += 1
        data.update(transition.to_bytes() + b"\n")
        rendered.update(json.dumps(messages(transition), sort_keys=True).encode() + b"\n")
    settings = {
        "version": VERSION,
        "transitions": data.hexdigest(),
        "prompts": prompts.name,
        "conversations": rendered.hexdigest(),
        "k": k,
        "seed": seed,
        "shard_size": shard_size,
        **predictor.settings,
    }
    same_settings(folder / "manifest.json", settings, "predictions")

    shards = -(-count // shard_size)
    rows = iter(transitions)
    for number in range(shards):
        # shards of about one size: in a last one of two or three transitions, a few failures would be a large share
        size = (number + 1) * count // shards - number * count // shards
        chosen = list(islice(rows, size))
        path = folder / f"predictions-{number:05d}.jsonl"
        if path.exists():
            outputs = _read_shard(path, size)
        else:
            outputs = predictor([messages(t) for t in chosen], k=k, seed=seed_of(f"{seed}/{number}"))
            with atomic(path) as unfinished:
                unfinished.write_text(json.dumps(outputs))  # ASCII: a text may hold half a surrogate pair
        yield from zip(chosen, outputs, strict=True)


def _read_shard(path: Path, size: int) -> list[list[str]]:
    try:
        outputs: list[list[str]] = loads(path.read_bytes())
    except ValueError:
        outputs = []
    if not isinstance(outputs, list) or len(outputs) != size:
        raise UserError(f"{path}: damaged; remove it, and it is made again")
    return outputs


def same_settings(path: Path, settings: dict[str, Any], what: str) -> None:
    """Store the settings that a folder's contents depend on at `path`, or compare them with those stored there."""
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{path.parent}: cannot be made ({error.strerror})") from None
        if any(path.parent.glob("predictions-*.jsonl")):
            raise UserError(
                f"{path.parent}: there are predictions in it without their {path.name}; name another folder"
            )
        with atomic(path) as unfinished:
            unfinished.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        return
    try:
        stored = loads(path.read_bytes()) if path.is_file() else None  # a pipe has no end
    except ValueError:
        stored = None
    if not isinstance(stored, dict):
        raise UserError(f"{path}: not JSON; name another folder, or remove this one")
    differing = [name for name in sorted({*settings, *stored}) if settings.get(name) != stored.get(name)]
    if differing:
        changes = ", ".join(f"{name} {_short(stored.get(name))} -> {_short(settings.get(name))}" for name in differing)
        raise UserError(f"{path.parent}: {what} of other settings ({changes}); name another folder, or remove this one")


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else f"{text[:13]}…"
