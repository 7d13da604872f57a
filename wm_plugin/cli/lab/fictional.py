"""`wm lab fictional`."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from wm_plugin.cli.flags import Requests
from wm_plugin.client.answers import Answers, ServerModel
from wm_plugin.errors import UserError
from wm_plugin.lab.synthesis.fictional import closed_book, write
from wm_plugin.options import Number, default, names, option


@Parameter(name="*", group=Group("The closed-book baseline", sort_key=1))
class ClosedBook(Requests):
    closed_book: str | None = option(
        "Ask this server the questions, without tools; it should know nothing.", default=None
    )
    closed_book_model: str | None = option("The name under which the server has the model.", default=None)
    temperature: Annotated[Number, Parameter(show=False)] = default(Requests, "temperature", 0.0)


def fictional(
    *,
    spec: str,
    out: Path,
    count: int = 1,
    levels: str = "standard,hard-1,hard-2",
    questions: int = 8,
    held_out: bool = False,
    seed: int = 0,
    baseline: ClosedBook = ClosedBook(max_new_tokens=2048),
) -> dict[str, Any]:
    """Invent worlds that no model knows, as databases, pages, questions and rows to train on.

    A world is a SQLite database, pages that state its facts, questions with the tables that answer them, and the rows that train
    and evaluate agents on them in the world `fictional`.

    As JSON: `worlds`, `questions`, `out`; with a server `closed_book`, its scores, and `ok` says that it knows nothing.

    Args:
        spec: bells, handsets, observatories, workshops, or your own: ./mine.yaml.
        out: A new folder.
        count: Worlds.
        levels: Levels of the questions, separated by commas.
        questions: Questions for each level and world.
        held_out: Make worlds that no training row comes from.
        seed: Seed of the worlds.
    """
    if (baseline.closed_book is None) is not (baseline.closed_book_model is None):
        raise UserError("--closed-book URL and --closed-book-model NAME go together: give both or none")
    rows = write(spec, count, out, seed=seed, held_out=held_out, levels=names(levels), questions=questions)
    result: dict[str, Any] = {"out": str(out), "worlds": count, "questions": len(rows), "ok": True}
    if baseline.closed_book and baseline.closed_book_model:
        answers = Answers(ServerModel(baseline.client(baseline.closed_book, baseline.closed_book_model)))
        known = closed_book(answers, rows, seed=seed)
        result |= {"closed_book": known, "ok": not known["known"] and not known["failed"]}
        if known["known"]:
            result["notes"] = ["the model knows the answers: it was trained on questions or worlds of this kind"]
    return result
