"""Hidden contexts by hand, and what of the state is shown by parts."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_plugin.data import samples
from wm_plugin.data.building import build
from wm_plugin.data.contexts import Contexts, load_contexts
from wm_plugin.data.hidden import HEADINGS, HIDDEN, PARTS, UNSEEN, as_json, parse_parts, parts
from wm_plugin.data.prompts import dialogue, load, render
from wm_plugin.data.readers import read
from wm_plugin.data.render import write_context
from wm_plugin.data.schema import Action, Context, Observation, Trajectory, Turn
from wm_plugin.data.transitions import expand, identity
from wm_plugin.data.write import write, write_transitions
from wm_plugin.errors import UserError

TEXTS = {field: f"It is {field}." for field in PARTS.values()}
FULL = Context(task="Find it.", demonstrations=("One.",), simulation_instruction="Be brief.", **TEXTS)
TURN = Turn(action=Action(text="go"), observations=(Observation(kind="environment", text="a hall"),))
PLAYED = Trajectory(turns=(TURN,), context=FULL, task_id="t1", success=True)


# What is shown


def test_headings_of_true_and_false_are_as_ever():
    old = "# Initial state\nIt is initial_state.\n\n# Hidden state at the start (the agent does not see it)\nIt is world_context."
    only = FULL.model_copy(update={"permissions": "", "availability": "", "final_state": ""})
    assert f"\n\n{old}\n\n# Demonstrations" in write_context(only, world=True)
    assert write_context(only, world=False) == write_context(FULL)
    assert UNSEEN not in write_context(FULL)


@given(st.frozensets(st.sampled_from(sorted(PARTS))))
def test_each_part_is_shown_alone(shown):
    text = write_context(FULL, world=shown)
    for name, field in PARTS.items():
        assert (f"# {HEADINGS[name]}\n{TEXTS[field]}\n" in text) is (name in shown)
    assert text.startswith("# Task description\nFind it.")
    assert text.endswith("# Simulation instruction\nBe brief.")


def test_the_parts_of_a_flag():
    assert parse_parts("all") is True
    assert parse_parts("none") == frozenset()
    assert parse_parts("initial-state") is False
    assert parse_parts(", ".join(PARTS)) is True
    assert parse_parts(["summary", "final-state"]) == parse_parts("final-state,summary,") == {"summary", "final-state"}
    assert parts(True) == set(PARTS)
    assert parts(False) == {"initial-state"}
    assert [as_json(one) for one in (True, False, frozenset({"summary"}))] == [True, False, ["summary"]]
    for wrong, message in (
        ("sumary", "--hidden: there is no part 'sumary' of the state; did you mean 'summary'?"),
        ("summary,all", "--hidden: all stands alone"),
        ("", "--hidden names no part; write none"),
        (5, "--hidden is 5; write names"),
        ([5], "write names of initial-state"),
    ):
        with pytest.raises(UserError, match=message.replace("?", r"\?")):
            parse_parts(wrong)


@pytest.mark.parametrize("shown", [True, False, frozenset(), frozenset({"summary", "final-state"})])
def test_rows_and_questions_are_equal_bytes_for_any_parts(tmp_path, shown):
    """What `samples` writes for training is what `dialogue` and `render` ask with."""
    write([PLAYED], tmp_path / "x.jsonl")
    (row,) = samples(tmp_path / "x.jsonl", "word2world", world_context=shown)
    stored = row.messages
    (real,) = read(tmp_path / "x.jsonl")
    assert stored == dialogue(real, load("word2world"), world_context=shown).messages
    (row,) = samples(tmp_path / "x.jsonl", "rwml", world_context=shown)
    (transition,) = expand([real])
    assert row.messages == render(transition, load("rwml"), world_context=shown).messages
    for name, field in PARTS.items():
        assert (TEXTS[field] in stored[0]["content"]) is (name in parts(shown))


# Contexts by hand

YAML = """
t1:
  summary: |
    Order 5 is Ana's.
    It was paid.
  permissions: {refund: managers only, cancel: no}
  availability: [the search, "the: shop"]
  final-state: Order 5 is cancelled.
"*":
  summary: Nothing is known.
  simulation_instruction: 1.0
"""
MEANT = {  # every scalar is a text
    "t1": {
        "summary": "Order 5 is Ana's.\nIt was paid.\n",
        "permissions": {"refund": "managers only", "cancel": "no"},
        "availability": ["the search", "the: shop"],
        "final-state": "Order 5 is cancelled.",
    },
    "*": {"summary": "Nothing is known.", "simulation_instruction": "1.0"},
}


def test_a_file_of_yaml_and_the_same_of_json(tmp_path):
    by_yaml, by_json = tmp_path / "c.yaml", tmp_path / "c.json"
    by_yaml.write_text(YAML)
    by_json.write_text(json.dumps(MEANT))
    contexts = load_contexts(by_yaml)
    assert contexts.fields == load_contexts(by_json).fields
    assert contexts.digest == load_contexts(by_json).digest
    assert contexts.fields["t1"] == {
        "world_context": "Order 5 is Ana's.\nIt was paid.",
        "permissions": "- refund: managers only\n- cancel: no",
        "availability": "- the search\n- the: shop",
        "final_state": "Order 5 is cancelled.",
    }


def test_nulls_of_yaml_are_empty_as_those_of_json(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text('t1: {summary: null, final-state: ~, permissions: , availability: "null"}')
    texts = load_contexts(file).fields["t1"]
    assert texts == {"world_context": "", "final_state": "", "permissions": "", "availability": "null"}


def test_the_example_of_the_page_is_read(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "word2world.md"
    (block,) = (
        part.split("```")[0] for part in page.read_text().split("```yaml\n") if "airline/17" in part.split("```")[0]
    )
    (tmp_path / "c.yaml").write_text(block)
    contexts = load_contexts(tmp_path / "c.yaml")
    assert set(contexts.fields["airline/17"]) == set(HIDDEN)
    assert contexts.fields["*"] == {"availability": "All services run."}


def test_fields_take_their_places_and_others_stay():
    contexts = Contexts({"t1": {"world_context": "mine", "final_state": ""}, "*": {"permissions": "all"}, "t9": {}})
    filled = contexts.fill(FULL, "t1")
    assert (filled.world_context, filled.final_state, filled.permissions) == ("mine", "", FULL.permissions)
    assert contexts.fill(FULL, "t2").permissions == "all"
    assert Contexts({"t9": {}}).fill(FULL, "t1") is FULL


def test_a_trajectorys_own_name_comes_before_its_task():
    contexts = Contexts({"t1": {"world_context": "task"}, identity(PLAYED): {"world_context": "own"}})
    assert contexts.filled(PLAYED).context.world_context == "own"
    (transition,) = expand([PLAYED])
    assert contexts.filled(transition).context.world_context == "own"
    assert contexts.filled(PLAYED.model_copy(update={"turns": ()})).context.world_context == "task"


@pytest.mark.parametrize("transitions", [False, True])
def test_build_fills_and_refuses_a_file_for_other_tasks(tmp_path, transitions):
    source, file, out = tmp_path / "x.jsonl", tmp_path / "c.json", tmp_path / "out.jsonl"
    write_transitions(expand([PLAYED]), source) if transitions else write([PLAYED], source)
    kind, flags = ("rwml", {"world_context": True}) if transitions else ("word2world", {})
    file.write_text(json.dumps({"t1": {"summary": "By hand."}}))
    build(source, kind, "trl", out, context_file=file, **flags)
    assert "By hand." in out.read_text()
    assert TEXTS["world_context"] not in out.read_text()
    before = out.read_bytes()
    file.write_text(json.dumps({"t2": {"summary": "By hand."}}))
    with pytest.raises(UserError, match="no task has one of its 1 keys"):
        build(source, kind, "trl", out, context_file=file, **flags)
    assert out.read_bytes() == before
    if not transitions:
        with pytest.raises(UserError, match="imitation has no option contexts"):
            build(source, "imitation", "trl", out, context_file=file)
    file.rename(tmp_path / "c.jsonl")
    with pytest.raises(UserError, match="ends in .yaml, .yml, .json"):
        build(source, kind, "trl", out, context_file=tmp_path / "c.jsonl", **flags)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", b"- a", r"holds \['a'\]; write a mapping from tasks to fields"),
        ("c.yaml", b"t1: text", "'t1': is 'text'; write a mapping"),
        ("c.yaml", b"t1: {sumary: x}", "there is no field 'sumary'; did you mean 'summary'"),
        ("c.yaml", b"t1: {initial_state: x}", "there is no field 'initial_state'"),
        ("c.yaml", b"t1: {final_state: x, final-state: y}", "the field final_state appears twice"),
        ("c.yaml", b"t1: {a: [}", r"not YAML \("),
        ("c.yaml", b"a: !!python/object/apply:os.system [ls]", r"'a': is \['ls'\]; write a mapping"),
        ("c.yaml", b"\xff\xfe", "not UTF-8 at byte 0"),
        ("c.json", b'{"a": {}, "a": {}}', "a key appears twice"),
        ("c.yaml", b"a: {summary: x}\na: {}", "a key appears twice"),
        ("c.yaml", b"a:\n  summary: x\n  summary: y", "a key appears twice, 'summary' in line 3"),
        ("c.txt", b"", "write a name that ends in .yaml, .yml, .json"),
        ("c.yml", None, "No such file"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(UserError, match=message) as raised:
        load_contexts(tmp_path / name)
    assert "\n" not in str(raised.value)
