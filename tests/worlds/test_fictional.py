"""Fictional worlds: facts that agree, questions with one answer, and tools that tease and withhold."""

import dataclasses
import json
import random
import sqlite3
from typing import Any

import pytest

from wm_plugin.errors import UserError
from wm_plugin.worlds import fictional
from wm_plugin.worlds.fictional import FictionalEnvironment, checks, dataset_rows, pages_of
from wm_plugin.worlds.fictional import pages as pages_module
from wm_plugin.worlds.fictional import tables as tables_module
from wm_plugin.worlds.fictional.pages import holds, plain
from wm_plugin.worlds.fictional.questions import LEVELS, SIZES
from wm_plugin.worlds.fictional.score import normalised, written
from wm_plugin.worlds.fictional.spec import SHIPPED, load
from wm_plugin.worlds.fictional.world import BACKGROUND, HIGH, MODERATE, World, surface, world_of
from wm_plugin.worlds.kit.protocol import Chooser


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    pytest.importorskip("bm25s")


@pytest.fixture(scope="module")
def world() -> World:
    return world_of("bells", 11)


def environment_of(world: World, level: str = "standard", number: int = 0, **columns: Any) -> FictionalEnvironment:
    environment = FictionalEnvironment()
    environment.reset(spec="bells", world_seed=world.seed, question=number, level=level, **columns)
    return environment


def play(environment: FictionalEnvironment, choose: Chooser) -> list[tuple[str, str]]:
    """(tool, observation) of each call."""
    seen = []
    while not environment.over and (call := choose(environment)) is not None:
        seen.append((call[0], getattr(environment, call[0])(**call[1])))
    return seen


@pytest.mark.parametrize("spec", SHIPPED)
def test_a_world_is_consistent_and_of_the_papers_size(spec: str) -> None:
    made = world_of(spec, 21)
    assert 300 <= made.tables.spec.rows <= 500
    assert sum(map(len, made.tables.rows.values())) == made.tables.spec.rows
    assert list(checks.problems(made.tables, made.pages)) == []
    again = tables_module.make(load(spec), 21)
    assert again == made.tables
    assert pages_module.make(again, 21) == made.pages


def test_some_worlds_lack_attributes_that_others_have() -> None:
    columns = {
        tuple(tables_module.make(load("handsets"), seed).spec.entities["handset"].attributes) for seed in range(8)
    }
    assert len(columns) > 1


def test_the_database_is_the_tables(world: World) -> None:
    connection = sqlite3.connect(":memory:")
    tables_module.fill(world.tables, connection)
    assert list(checks.fits_database(world.tables, connection)) == []
    connection.execute("UPDATE bell SET weight = weight + 1 WHERE id = 7")
    assert list(checks.fits_database(world.tables, connection)) == ["the table bell has other rows in SQLite"]
    connection.close()


def with_line(world: World, title: str, old: str, new: str) -> dict[str, Any]:
    """The pages with one line changed."""
    page = next(page for page in world.pages.values() if page.title == title)
    lines = tuple(dataclasses.replace(line, text=line.text.replace(old, new)) for line in page.lines)
    assert lines != page.lines
    return {**world.pages, page.id: dataclasses.replace(page, lines=lines)}


def test_checks_find_contradictions_and_what_cannot_be(world: World) -> None:
    bell = world.tables.rows["bell"][0]
    title, year = str(bell["name"]), str(bell["cast"])
    changed = with_line(world, title, f"is {year}.", "is 1500.")
    assert list(checks.contradictions(world.tables, changed)) == [
        f"{title}: states '1500', and the table bell has '{year}'"
    ]
    gone = {number: page for number, page in world.pages.items() if page.title != title}
    assert any("no page states cast of row 1 of bell" in line for line in checks.contradictions(world.tables, gone))
    for column, value, problem in (
        ("cast", 2500, "2500 is not between 1640 and 1911 in steps of 1"),
        ("shape", "square", "'square' is none of its values"),
        ("weight", "heavy", "'heavy' is no whole number"),
    ):
        rows = {**world.tables.rows, "bell": [{**bell, column: value}, *world.tables.rows["bell"][1:]]}
        tables = dataclasses.replace(world.tables, rows=rows)
        assert f"bell.{column}: {problem}" in list(checks.unreal(tables))
    opened = int(world.tables.of("bell", bell, "foundry")["opened"])
    rows = {**world.tables.rows, "bell": [{**bell, "cast": max(opened - 1, 1640)}, *world.tables.rows["bell"][1:]]}
    if opened > 1640:
        found = list(checks.unreal(dataclasses.replace(world.tables, rows=rows)))
        assert any("is less than" in line for line in found)
    rows = {**world.tables.rows, "bell": [{**bell, "name": "Population"}, *world.tables.rows["bell"][1:]]}
    assert list(checks.known_names(dataclasses.replace(world.tables, rows=rows))) == [
        "Population: a word of the specification"
    ]


def test_what_follows_another_attribute_rises_with_it(world: World) -> None:
    by_weight = sorted(world.tables.rows["bell"], key=lambda row: row["weight"])
    falling = [{**row, "decay": 38900 - 10 * number} for number, row in enumerate(by_weight)]
    tables = dataclasses.replace(world.tables, rows={**world.tables.rows, "bell": falling})
    assert list(checks.unreal(tables)) == ["bell.decay: does not rise with weight"]


@pytest.mark.parametrize("level", LEVELS)
def test_two_queries_agree_and_nothing_leaks(world: World, level: str) -> None:
    connection = sqlite3.connect(":memory:")
    tables_module.fill(world.tables, connection)
    least, most = SIZES[level]
    for number in range(6):
        question, table = world.question(level, number)
        assert question.answer(world.tables, connection) == table
        assert least <= len(table.rows) <= most
        assert len({row[0] for row in table.rows}) == len(table.rows)
        assert list(checks.leaks(table, world.surface, world.texts)) == []
        assert all(column.title in question.text(world.tables) for column in table.columns)
        assert question.condition is None if level == "standard" else question.condition is not None
    connection.execute("DELETE FROM bell")
    connection.execute("DELETE FROM foundry")
    with pytest.raises(UserError, match="two queries find different answers"):
        question.answer(world.tables, connection)
    connection.close()


def test_leaks_are_found(world: World) -> None:
    _, table = world.question("standard", 0)
    key, *cells = table.rows[0]
    assert list(checks.leaks(table, world.surface + plain(cells[0]), world.texts))
    page = f"{key} has {' and '.join(cells)}"
    assert list(checks.leaks(table, world.surface, {**world.texts, "x": plain(page)})) == [
        f"the page x has all of {key}"
    ]
    assert not list(checks.leaks(table, world.surface, {**world.texts, "x": plain(page.replace(cells[0], ""))}))


def withheld(environment: FictionalEnvironment) -> list[str]:
    """The cells beside the key, without units."""
    table = environment._table
    return [
        normalised(cell, column) for row in table.rows for cell, column in zip(row[1:], table.columns[1:], strict=True)
    ]


def probes(environment: FictionalEnvironment, count: int, rng: random.Random) -> list[str]:
    """Queries that ask for the answer itself: the question, keys, cells, titles, and pieces of them together."""
    world, table = environment._world, environment._table
    question = environment._question.text(world.tables)
    cells = [cell for row in table.rows for cell in row]
    whole = [question, written(table), *cells, *(" ".join(row) for row in table.rows)]
    whole += [f"{row[0]} {column.title}" for row in table.rows for column in table.columns]
    whole += [title for title, _ in pages_of(environment)]
    made = [text[:1000] for text in whole]
    while len(made) < count:
        one, other = rng.choice(whole), rng.choice(whole)
        start = rng.randrange(len(one))
        made.append(f"{one[start : start + rng.randint(1, 60)]} {rng.choice(['', other[:200]])}")
    return made[:count]


def test_a_thousand_probes_find_no_withheld_answer(world: World) -> None:
    asked = found = 0
    for level in LEVELS:
        for number in (0, 1):
            environment = environment_of(world, level, number, max_turns=10_000)
            cells = withheld(environment)
            for query in probes(environment, 170, random.Random(number)):
                text = environment.search(query)
                words = plain(text)
                assert not [cell for cell in cells if holds(words, cell)], query
                asked, found = asked + 1, found + text.startswith("[")
    assert asked >= 1000
    assert found > 900  # they do find pages


def test_a_probe_sees_what_a_teaser_gives_away(world: World) -> None:
    environment = environment_of(world)
    _, number = pages_of(environment)[0]
    page = world.pages[number]
    loose = tuple(dataclasses.replace(line, teaser=line.text) for line in page.lines if line.fact)
    assert any(holds(plain(line.teaser), cell) for line in loose for cell in withheld(environment))
    leaking = {**world.pages, number: dataclasses.replace(page, lines=loose)}
    assert list(checks.leaks(environment._table, surface(leaking), world.texts))


def test_results_mix_relevance_and_tease(world: World) -> None:
    foundry = world.tables.rows["foundry"][0]
    query = f"bells of {foundry['name']}"
    found = world.search.find(query)
    grades = [grade for grade, _ in found]
    assert [grades.count(grade) for grade in ("high", "moderate", "background")] == [HIGH, MODERATE, BACKGROUND]
    assert grades != sorted(grades)  # in no order
    assert f"bells of {foundry['name']}" in [page.title for grade, page in found if grade == "high"]
    assert found == World(load("bells"), world.seed).search.find(query)
    text = world.search.text(query, found)
    assert text.count("\n    ") == len(found)
    assert any(line.endswith(" ...") for line in text.split("\n"))
    assert world.search.find("qqqqq") == []


@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_reads_every_cell_and_needs_two_pages_a_row(world: World, level: str) -> None:
    for number in range(3):
        environment = environment_of(world, level, number)
        seen = play(environment, fictional.expert())
        assert environment.success
        assert environment.get_reward() == 1.0
        assert environment.metrics["item_f1"] == environment.metrics["row_f1"] == 1.0
        assert environment.metrics["effective"] == environment.turns
        opened = [plain(text) for tool, text in seen if tool == "open_page"]
        for row in environment._table.rows:
            about = [text for text in opened if plain(row[0]) in text]
            assert len(about) >= 2
        read = " ".join(opened)
        assert all(holds(read, cell) for cell in withheld(environment))


def test_an_episode(world: World) -> None:
    environment = environment_of(world, max_turns=9)
    title, number = pages_of(environment)[0]
    results = environment.search(title)
    assert f"[{number}] {title}\n" in results
    assert environment.open_page(f"[{number.upper()}]") == world.pages[number].text
    assert environment.search(title) == results
    assert environment.open_page("12345678").startswith("Invalid: there is no page")
    assert environment.answer("I do not know").startswith("Invalid: write a table")
    assert environment.metrics == {"actions": 5, "effective": 2, "invalid": 2, "item_f1": 0.0, "row_f1": 0.0}
    half = written(environment._table).split("\n")[:-1]
    said = environment.answer("\n".join(half))
    assert said.startswith("The answer is not right: item F1 0.")
    assert 0 < environment.get_reward() < 1
    assert environment.over
    assert not environment.success
    with pytest.raises(ValueError, match="over"):
        environment.search("x")


def test_the_hidden_state_has_what_a_world_model_needs(world: World) -> None:
    environment = environment_of(world)
    text = environment.world_context()
    assert written(environment._table) in text
    for rows in world.tables.rows.values():
        assert "|".join(str(value) for value in rows[-1].values()) in text
    assert FictionalEnvironment().world_context() == ""


def test_rows(world: World) -> None:
    rows = dataset_rows(20, seed=3)
    assert rows == dataset_rows(20, seed=3)
    assert {row["world_seed"] % 10 == 0 for row in rows} == {False}
    held_out = dataset_rows(9, seed=3, held_out=True, level="hard-1")
    assert {row["world_seed"] % 10 for row in held_out} == {0}
    assert len({json.dumps(row) for row in [*rows, *held_out]}) == 29
    assert "{" not in rows[0]["prompt"][0]["content"]
