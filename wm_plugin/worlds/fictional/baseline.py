"""Does a model know the answers without looking? The closed-book baseline: the questions alone, no search, no pages.

Names and facts are invented, so an agent without tools can only guess: it scores about 0. More than `MOST` says that the
questions have leaked, into training data for example.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wm_plugin.client.answers import Answers
from wm_plugin.rewards.extract import extract
from wm_plugin.tokens.message import Message
from wm_plugin.worlds.fictional.score import NoTableError, Score, read, score
from wm_plugin.worlds.fictional.world import world_of

MOST = 0.05  # the mean reward from which on a model is taken to know the answers
TOLD = (
    "There are no tools for this question. Answer from what you know, with a Markdown table: a header with the columns that are "
    "asked for, and one line for each row. Guess where you do not know.\n\nQuestion: {question}"
)


def closed_book(answers: Answers, rows: Sequence[Mapping[str, Any]], *, seed: int = 0) -> dict[str, Any]:
    """What a model scores on rows of `dataset_rows` without tools.

    Returns:
        `questions`, `answered` (those with a table that could be read), `failed` (the server gave no answer), the means
        `item_f1`, `row_f1` and `reward`, and `known`: whether the mean reward is above `MOST`.
    """
    questions = []
    for row in rows:
        world = world_of(row["spec"], row["world_seed"])
        question, table = world.question(row["level"], row["question"])
        questions.append((question.text(world.tables), table))
    conversations: list[list[Message]] = [
        [{"role": "user", "content": TOLD.replace("{question}", text)}] for text, _ in questions
    ]
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
    return {"questions": len(scores), "answered": answered, "failed": failed, **means, "known": means["reward"] > MOST}
