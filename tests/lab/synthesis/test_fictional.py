"""The closed-book baseline of fictional worlds."""

from typing import Any

import pytest

from support.openai_server import OpenAIServer
from wm_plugin.client.answers import Answers, ServerModel
from wm_plugin.client.server import Server
from wm_plugin.lab.synthesis.fictional import KNOWN, closed_book
from wm_plugin.worlds.fictional import dataset_rows
from wm_plugin.worlds.fictional.score import written
from wm_plugin.worlds.fictional.world import world_of


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    pytest.importorskip("bm25s")


def memorised(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The answer tables of rows, by question."""
    known = {}
    for row in rows:
        world = world_of(row["spec"], row["world_seed"])
        question, table = world.question(row["level"], row["question"])
        known[question.text(world.tables)] = written(table)
    return known


def test_nobody_knows_the_answers_of_other_worlds() -> None:
    """A model that has learnt training worlds by heart answers them, and nothing of held-out ones, whatever it makes up."""
    train, held_out = dataset_rows(8, seed=1, spec="bells"), dataset_rows(8, seed=1, held_out=True, spec="bells")
    memory = memorised(train)

    def reply(body: dict[str, Any]) -> str:
        question = body["messages"][-1]["content"].partition("Question: ")[2]
        if question in memory:
            return memory[question]
        titles = question.partition("The columns: ")[2].rstrip(".").split("; ")
        other = next(iter(memory.values())).split("\n")[2:]  # rows of another world
        return "\n".join([f"| {' | '.join(titles)} |", *other])

    with OpenAIServer(reply) as server:
        answers = Answers(ServerModel(Server(server.base_url, "x", temperature=0.0)))
        by_heart, guessed = closed_book(answers, train), closed_book(answers, held_out)
    assert by_heart["reward"] == 1.0
    assert by_heart["known"]
    assert guessed["answered"] == guessed["questions"] == 8
    assert guessed["reward"] <= KNOWN
    assert not guessed["known"]
