"""Fictional worlds as files, and the closed-book baseline of their questions.

    DIR/rows.jsonl               a row for each question, as `dataset_rows` makes them: for TRL, verl and `wm env rollout`
    DIR/worlds.json              the worlds: seed, rows, pages, questions
    DIR/world-0000123/world.sqlite, pages.jsonl, questions.jsonl

A line of pages.jsonl has `id`, `kind`, `title` and `text`; a line of questions.jsonl `level`, `question` (its number), `text`,
`columns`, `rows` (the right table), `sql` and `parameters`.
"""

import json
import random
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from wm_plugin.client.answers import Answers
from wm_plugin.data.outputs import atomic_folder, check_new_folder
from wm_plugin.errors import UserError, nearest
from wm_plugin.rewards.extract import extract
from wm_plugin.worlds.fictional import LEVELS, QUESTIONS, row_of, tables
from wm_plugin.worlds.fictional.score import NoTableError, Score, read, score
from wm_plugin.worlds.fictional.spec import column_of, load
from wm_plugin.worlds.fictional.world import World, world_of
from wm_plugin.worlds.kit.rows import world_seed

MOST = 100_000  # worlds of a run
KNOWN = 0.05  # the mean reward above which a model is taken to know the answers
TOLD = (
    "There are no tools for this question. Answer from what you know, with a Markdown table: a header with the columns that are "
    "asked for, and one line for each row. Guess where you do not know.\n\nQuestion: {question}"
)


def write(
    spec: str,
    count: int,
    out: Path,
    *,
    seed: int = 0,
    held_out: bool = False,
    levels: Sequence[str] = LEVELS,
    questions: int = QUESTIONS,
) -> list[dict[str, Any]]:
    """Write worlds of a specification into a new folder, completely or not at all, and return the rows.

    Args:
        spec: one of `spec.SHIPPED`, or a file.
        levels: of the questions.
        questions: of each level and world.
    """
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
    rng, seeds = random.Random(seed * 2 + held_out), dict[int, None]()
    while len(seeds) < count:  # among many worlds a draw comes up again
        seeds[world_seed(rng, held_out)] = None
    rows: list[dict[str, Any]] = []
    listed = []
    with atomic_folder(out) as folder:
        for number in seeds:
            world = world_of(column, number)
            made = [row_of(world, column, level, question) for level in levels for question in range(questions)]
            _write_world(world, made, folder / f"world-{number:09}")
            rows += made
            entry = {"seed": number, "rows": world.tables.spec.rows, "pages": len(world.pages)}
            listed.append({**entry, "questions": len(made)})
        _write_lines(rows, folder / "rows.jsonl")
        text = json.dumps({"spec": spec, "strategy": own.strategy, "held_out": held_out, "worlds": listed}, indent=1)
        (folder / "worlds.json").write_text(text + "\n", encoding="utf-8")
    return rows


def _write_world(world: World, rows: Iterable[dict[str, Any]], folder: Path) -> None:
    folder.mkdir()
    with closing(sqlite3.connect(folder / "world.sqlite")) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        tables.fill(world.tables, connection)
    pages = world.pages.values()
    lines = ({"id": page.id, "kind": page.kind, "title": page.title, "text": page.text} for page in pages)
    _write_lines(lines, folder / "pages.jsonl")
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


def closed_book(answers: Answers, rows: Sequence[Mapping[str, Any]], *, seed: int = 0) -> dict[str, Any]:
    """Score a model on rows of `dataset_rows` without tools, as who knows none of the names can only guess.

    Returns:
        `questions`, `answered` (with a table that could be read), `failed` (the server gave no answer), the means `item_f1`,
        `row_f1` and `reward`, and `known`: whether the mean reward is above `KNOWN`, as when the questions were trained on.
    """
    questions = []
    for row in rows:
        world = world_of(row["spec"], row["world_seed"])
        question, table = world.question(row["level"], row["question"])
        questions.append((question.text(world.tables), table))
    conversations = [[{"role": "user", "content": TOLD.replace("{question}", text)}] for text, _ in questions]
    scores, answered, failed = [], 0, 0
    for answer, (_, table) in zip(answers(conversations, seed=seed), questions, strict=True):
        failed += bool(answer.failure)
        try:
            scores.append(score(read(extract(answer.text, "").prediction or "", table.columns), table))
            answered += 1
        except NoTableError:
            scores.append(Score(0.0, 0.0))
    count = max(len(scores), 1)
    means = {name: sum(getattr(one, name) for one in scores) / count for name in ("item_f1", "row_f1", "reward")}
    return {"questions": len(scores), "answered": answered, "failed": failed, **means, "known": means["reward"] > KNOWN}
