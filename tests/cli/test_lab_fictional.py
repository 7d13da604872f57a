"""`wm lab fictional` and `wm lab scenarios` from flags to files."""

import json
import sqlite3

import pytest

from support.openai_server import OpenAIServer
from wm_plugin.data.schema import Context, Trajectory
from wm_plugin.data.write import write
from wm_plugin.lab.synthesis import fictional as files
from wm_plugin.worlds import scenarios
from wm_plugin.worlds.fictional import FictionalEnvironment
from wm_plugin.worlds.fictional.score import written
from wm_plugin.worlds.fictional.spec import load
from wm_plugin.worlds.kit.rows import world_seed

TOOL = {"type": "function", "function": {"name": "refund", "description": "Give it back.\nAll of it."}}

SPEC = """
strategy: long-tail
setting: kites of a village
entities:
  maker:
    singular: maker
    plural: makers
    names: person
    count: 12
    attributes:
      born: {label: birth year, type: integer, from: 1801, to: 1899}
  select:
    singular: kite
    plural: kites
    names: code
    count: 48
    relations: {maker: maker}
    attributes:
      sail: {label: sail area, type: integer, from: 205, to: 998, unit: dm}
      line: {label: line length, type: integer, from: 1005, to: 9995, step: 10, unit: cm}
      built: {label: day of the first flight, type: date, from: 1850-01-01, to: 1899-12-31, page: record}
      mass: {label: mass, type: integer, from: 10010, to: 99910, unit: mg, page: record}
      knot: {label: knot, type: category, values: [bowline, half hitch], page: record}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(SPEC)
    return tmp_path


COMMAND = ("lab", "fictional", "--spec", "./mine.yaml", "--count", 2, "--out", "worlds")
COMMAND = (*COMMAND, "--levels", "standard,hard-1", "--questions", 2)


def test_worlds_of_ones_own(wm, folder):
    """A table may be called `select`: names are quoted wherever they reach SQL."""
    assert wm.json(*COMMAND) == {"out": "worlds", "worlds": 2, "questions": 8, "ok": True}
    rows = [json.loads(line) for line in (folder / "worlds/rows.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    listed = json.loads((folder / "worlds/worlds.json").read_text())["worlds"]
    for entry in listed:
        place = folder / f"worlds/world-{entry['seed']:09}"
        connection = sqlite3.connect(place / "world.sqlite")
        assert connection.execute('SELECT count(*) FROM "select"').fetchone() == (48,)
        for line in (place / "questions.jsonl").read_text().splitlines():
            question = json.loads(line)
            found = connection.execute(question["sql"], question["parameters"]).fetchall()
            assert [row[0] for row in question["rows"]] == [row[0] for row in found]
        connection.close()
        assert len((place / "pages.jsonl").read_text().splitlines()) == entry["pages"]
    pytest.importorskip("bm25s")
    environment = FictionalEnvironment()
    environment.reset(**rows[0])  # a row needs no file
    environment.answer(written(environment._table))
    assert environment.success


def test_nothing_of_others_is_written_over(wm, folder):
    (folder / "worlds").mkdir()
    (folder / "worlds/mine.txt").write_text("mine")
    assert "worlds is not empty ('mine.txt' is there)" in wm.error(*COMMAND)
    assert [path.name for path in (folder / "worlds").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("strategy: long-tail", "strategy: longtail", "strategy: Input should be"),
        ("setting: kites", "settings: kites", "settings: there is no such setting"),
        ("  select:", '  "kite; DROP TABLE x":', "is no name; write lower-case letters"),
        ("      sail:", '      "sail\\"":', "is no name; write lower-case letters"),
        ("      sail:", "      id:", "a column's name is taken"),
        ("count: 48", "count: 20000", "less than or equal to 1000"),
        ("count: 48", "count: 20", "make 32 rows; write 50 to 1000"),
        ("label: sail area", "label: sail | area", "write one line of 1 to 60 characters"),
        ("from: 205, to: 998", "from: 998, to: 205", "from must be less than to"),
        ("from: 205, to: 998", "from: 1850-01-01, to: 998", "write from and to, each a whole number"),
        ("[bowline, half hitch]", "[bowline]", "a category needs 2 to 40 values"),
        ("relations: {maker: maker}", "relations: {makr: maker}", "makr is no entity above it; did you mean 'maker'"),
        ("strategy: long-tail", "strategy: time-shifted", "every date lies after"),
        ("strategy: long-tail", "strategy: grounded", "the document of 'birth year' does not state 1801 and 1899"),
        ("unit: mg", "unit: mg, follows: sai", "follows sai, no number or date above it; did you mean 'sail'"),
        ("entities:", "entities: {", "not YAML"),
    ],
)
def test_mistakes_in_a_specification_are_one_line(wm, folder, old, new, message):
    assert old in SPEC
    (folder / "mine.yaml").write_text(SPEC.replace(old, new, 1))
    line = wm.error(*COMMAND)
    assert message in line
    assert line.startswith(("wm: mine.yaml: ", "wm: ./mine.yaml: "))
    assert not (folder / "worlds").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--count 0", "--count is 0; write a number from 1"),
        ("--levels hard", "there is no level 'hard'"),
        ("--levels ,", "--levels is empty"),
        ("--levels hard-2", "no question of level hard-2: it needs an entity"),
        ("--spec bel", "there is no specification 'bel'"),
        ("--spec ./none.yaml", "none.yaml: cannot be read"),
        ("--closed-book http://127.0.0.1:9/v1", "go together"),
    ],
)
def test_mistakes_in_flags(wm, folder, flags, message):
    assert message in wm.error(*COMMAND, *flags.split())


def test_a_model_without_tools_is_asked(wm, folder):
    flags = ("--closed-book-model", "x", "--closed-book")
    with OpenAIServer(lambda body: "| kite |\n| Nobody |") as server:
        book = wm.json(*COMMAND, *flags, server.base_url)["closed_book"]
    assert (book["item_f1"], book["row_f1"], book["failed"], book["known"]) == (0, 0, 0, False)
    with OpenAIServer(faults=lambda number: "400") as server:
        result = wm.json(*COMMAND, *flags, server.base_url, "--out", "others", code=1)
    assert (result["closed_book"]["failed"], result["ok"]) == (8, False)


def reply(body):
    told = body["messages"][0]["content"]
    number = len(body["messages"][1]["content"])
    key = next(key for key in ("initial_state", "query", "rubric") if f'{{"{key}"' in told)
    value = ["It is done."] if key == "rubric" else f"{key} {number} {body['seed']}"
    return f"<scenario>{json.dumps({key: value})}</scenario>"


def test_scenarios_of_a_world_and_of_a_file(wm, folder):
    with OpenAIServer(reply) as server:
        flags = ("--server", server.base_url, "--server-model", "x", "--states", 1, "--queries", 1)
        command = ("lab", "scenarios", "wordle", "--count", 2, "--out", "x.jsonl", *flags)
        assert wm.json(*command) == {"seeds": 2, "scenarios": 8, "dropped": {}, "asked": 2 + 4 + 8, "out": "x.jsonl"}
        made = (folder / "x.jsonl").read_bytes()
        assert wm.json(*command)["asked"] == 0
        assert len(server.bodies) == 14  # once more asks nobody
        assert (folder / "x.jsonl").read_bytes() == made
        (folder / "seeds.jsonl").write_text('{"query": "Sort the list.", "rubric": ["It is sorted."]}\n')
        wm.text("lab", "scenarios", "seeds.jsonl", "--out", "y.jsonl", *flags)
        asked = [
            Context(initial_state=f"Refund order {n // 2}.", action_space=(TOOL,), world_context="A") for n in range(4)
        ]
        played = [Trajectory(turns=(), context=one, task_id=one.initial_state) for one in asked]
        write(played, folder / "played.jsonl")
        wm.text("lab", "scenarios", "played.jsonl", "--out", "z.jsonl", *flags)
    assert [one.seed for one in scenarios.read(folder / "y.jsonl")] == ["", "s1", "s1", "s1"]
    assert scenarios.read(folder / "y.jsonl")[0].rubric == ("It is sorted.",)
    distilled = [one for one in scenarios.read(folder / "z.jsonl") if not one.seed]
    assert [one.query for one in distilled] == ["Refund order 0.", "Refund order 1."]  # one a task
    assert {(one.tools, one.world_context) for one in distilled} == {(("refund: Give it back.",), "A")}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("wordl --out x.jsonl", "did you mean 'wordle'"),
        ("wordle --out x.json", "write a name that ends in .jsonl"),
        ("wordle --out x.jsonl --states -1", "--states is -1"),
        ("wordle --out x.jsonl --verify rules", '"rules" for --verify'),
        ("mine.jsonl --out mine.jsonl", "is the source mine.jsonl; name another file"),
        ("mine.jsonl --out x.jsonl", "no JSON"),
    ],
)
def test_mistakes_in_scenarios(wm, folder, flags, message):
    (folder / "mine.jsonl").write_text("strategy\n")
    server = ("--server", "http://127.0.0.1:9/v1", "--server-model", "x")
    assert message in wm.error("lab", "scenarios", *flags.split(), *server)
    assert (folder / "mine.jsonl").read_text() == "strategy\n"


def test_signs_of_anchors_in_texts_are_signs(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SPEC.replace("setting: kites of a village", "setting: kites & lines of a village * and more"))
    assert load(str(path)).setting == "kites & lines of a village * and more"


def test_each_world_of_a_folder_is_another_one(tmp_path, monkeypatch):
    # a draw soon comes up again
    monkeypatch.setattr(files, "world_seed", lambda rng, held_out: world_seed(rng, held_out, 3))
    files.write("bells", 3, tmp_path / "worlds", held_out=True, questions=1, levels=["standard"])
    assert len(list((tmp_path / "worlds").glob("world-*"))) == 3
