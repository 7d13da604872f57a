"""Fictional worlds as files: for each world a SQLite database, its pages and its questions, and rows to train on.

    DIR/rows.jsonl               a row for each question, as `dataset_rows` makes them: for TRL, verl and `wm env rollout`
    DIR/worlds.json              the worlds: seed, rows, pages, questions
    DIR/world-0000123/world.sqlite, pages.jsonl, questions.jsonl

A line of pages.jsonl has `id`, `kind`, `title` and `text`; a line of questions.jsonl `level`, `question` (its number), `text`,
`columns`, `rows` (the right table), `sql` and `parameters`.
"""

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import atomic_folder, check_new_folder
from wm_plugin.errors import UserError, nearest
from wm_plugin.worlds.fictional import LEVELS, QUESTIONS, row_of
from wm_plugin.worlds.fictional.spec import column_of, load
from wm_plugin.worlds.fictional.tables import write as write_tables
from wm_plugin.worlds.fictional.world import World, world_of

MOST = 100_000  # worlds of a run
_SEEDS = 10**8  # to draw from, as `dataset_rows` does


def write(
    spec: str,
    count: int,
    out: Path,
    *,
    seed: int = 0,
    held_out: bool = False,
    levels: Iterable[str] = LEVELS,
    questions: int = QUESTIONS,
) -> list[dict[str, Any]]:
    """Write worlds of a specification into a new folder, completely or not at all. Returns the rows.

    Args:
        spec: one of `spec.SHIPPED`, or a file.
        levels, questions: so many questions of each level and world.

    Raises:
        UserError: a number is out of range, the folder is not empty, or the specification has a mistake, or no question of a
            level.
    """
    levels = list(levels)
    for level in levels:
        if level not in LEVELS:
            raise UserError(f"--levels: there is no level {level!r}{nearest(level, LEVELS)}")
    for flag, value, most in (("--count", count, MOST), ("--questions", questions, 1000)):
        if not 1 <= value <= most:
            raise UserError(f"{flag} is {value}; write a number from 1 to {most:,}")
    if not levels:
        raise UserError(f"--levels is empty; write {','.join(LEVELS)}, or some of them")
    check_new_folder(out, "--out")
    own = load(spec)
    column = column_of(own, spec)
    rng = random.Random(seed * 2 + held_out)
    rows: list[dict[str, Any]] = []
    listed = []
    with atomic_folder(out) as folder:
        for world_seed in _seeds(rng, count, held_out):
            world = world_of(column, world_seed)
            made = [row_of(world, column, level, number) for level in levels for number in range(questions)]
            _write_world(world, made, folder / f"world-{world_seed:09}")
            rows += made
            entry = {"seed": world_seed, "rows": world.tables.spec.rows, "pages": len(world.pages)}
            listed.append({**entry, "questions": len(made)})
        _write_lines(rows, folder / "rows.jsonl")
        text = json.dumps({"spec": spec, "strategy": own.strategy, "held_out": held_out, "worlds": listed}, indent=1)
        (folder / "worlds.json").write_text(text + "\n", encoding="utf-8")
    return rows


def _seeds(rng: random.Random, count: int, held_out: bool) -> Iterator[int]:
    """Seeds of so many worlds, each once: in many worlds a draw comes up again."""
    seen: set[int] = set()
    while len(seen) < count:
        seed = rng.randrange(_SEEDS) * 10 + (0 if held_out else rng.randint(1, 9))
        if seed not in seen:
            seen.add(seed)
            yield seed


def _write_world(world: World, rows: Iterable[dict[str, Any]], folder: Path) -> None:
    folder.mkdir()
    write_tables(world.tables, folder / "world.sqlite")
    pages = world.pages.values()
    _write_lines(
        ({"id": page.id, "kind": page.kind, "title": page.title, "text": page.text} for page in pages),
        folder / "pages.jsonl",
    )
    questions = []
    for row in rows:
        question, table = world.question(row["level"], row["question"])
        statement, parameters = question.sql()
        questions.append(
            {
                "level": row["level"],
                "question": row["question"],
                "text": question.text(world.tables),
                "columns": [column.title for column in table.columns],
                "rows": table.rows,
                "sql": statement,
                "parameters": parameters,
            }
        )
    _write_lines(questions, folder / "questions.jsonl")


def _write_lines(rows: Iterable[dict[str, Any]], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
