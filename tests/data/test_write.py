"""Trajectories come back from files as they were, and files are written whole or not at all."""

import gc
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wm_plugin.data import Trajectory, Turn, expand, read
from wm_plugin.data.readers.base import Reject
from wm_plugin.data.schema import Action, Call, Context, Observation, Source
from wm_plugin.data.write import SUFFIXES, write, write_transitions
from wm_plugin.errors import UserError

REJECT = Reject(file="a.jsonl", row=3, kind="not JSON", reason="not JSON: it ends", raw='{"é": "\u2028')


def trajectory(text: str = "x", value: Any = None, **more: Any) -> Trajectory:
    observations = (
        Observation(kind="tool", text=text, tool="f", call=0, error=True, data={"value": value}),
        Observation(kind="user", text=""),
    )
    action = Action(text=text, calls=(Call(name="f", arguments=value, id="a"),), thought=text)
    turns = (Turn(action=action, observations=observations), Turn(action=Action(text=text), actor="user"))
    context = Context(task=text, action_space=({"name": text},), demonstrations=(text,))
    source = Source(format="openai", file=text, row=0)
    return Trajectory(turns=turns, context=context, task_id=text, source=source, metadata={"value": value}, **more)


@pytest.fixture(params=SUFFIXES)
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == ".parquet":
        pytest.importorskip("pyarrow")
    return tmp_path / f"out{request.param}"


@pytest.mark.parametrize(
    "text",
    ["", "é 漢 🎉", "\ud800", "a\ud83d\\ud83d", "\u2028\u2029\x85\x0b\x0c", "\r\n\t", "\x00\x1f\x7f", '"\\', "\ufeff"],
)
def test_texts_come_back_as_they_were(out, text):
    kept = trajectory(text, {text: [text]})
    write([kept, kept], out)
    assert list(read(out)) == [kept, kept]


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, [math.inf], 10**30, 0.1, 1e-300, True, None, "Infinity", {}]
)
def test_values_come_back_as_they_were(out, value):
    """What JSON has no number for is a string from the beginning."""
    kept = trajectory(value=value)
    write([kept], out)
    assert list(read(out)) == [kept]
    if isinstance(value, float) and not math.isfinite(value):
        assert isinstance(kept.metadata["value"], str)
    if out.suffix == ".jsonl":
        json.loads(out.read_bytes(), parse_constant=lambda constant: pytest.fail(constant))


def test_tools_that_equal_the_last_ones_stay_what_they_are():
    """Whether they are plain JSON is remembered of a row's tools, and not they themselves: True equals 1."""
    for value in (True, 1, 1.0, math.inf, math.inf, [math.inf], [math.inf], True):
        context = Context(action_space=({"default": value, "name": "f"},))
        kept = json.loads(context.to_bytes())["action_space"][0]["default"]
        expected = {"inf": "Infinity", "[inf]": ["Infinity"]}.get(repr(value), value)
        assert repr(kept) == repr(expected)


@pytest.mark.parametrize("value", [object(), int])
def test_what_is_no_json_is_not_written(value):
    with pytest.raises((TypeError, ValueError)):
        trajectory(value=value).to_bytes()


def test_writing_leaves_the_collection_of_garbage_as_it_was(tmp_path):
    before, seen = gc.get_threshold(), []

    def rows() -> Iterator[Trajectory]:
        seen.append(gc.get_threshold())
        yield trajectory()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(rows(), tmp_path / "x.jsonl")
    assert seen[0] != before
    assert gc.get_threshold() == before


@pytest.mark.parametrize("reward", [None, 0.25, math.inf, -math.inf])
@pytest.mark.parametrize("success", [None, True, False])
def test_outcomes_come_back_as_they_were(out, reward, success):
    kept = [trajectory(text, reward=reward, success=success) for text in ("x", "\ud800")]
    write(kept, out)
    assert list(read(out)) == kept


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=()), max_size=10), JSON), min_size=1, max_size=3))
def test_anything_comes_back_as_it_was(out, values):
    kept = [trajectory(text, value) for text, value in values]
    write(kept, out)
    assert list(read(out)) == kept


def test_values_that_no_file_could_hold_are_refused():
    deep: Any = 1
    for _ in range(201):
        deep = [deep]
    with pytest.raises(ValueError, match="200 levels"):
        trajectory(value=deep)
    kept = deep[0][0]  # metadata is a level itself
    assert json.loads(trajectory(value=kept).to_bytes())["metadata"]["value"] == kept


def test_many_row_groups(tmp_path):
    pytest.importorskip("pyarrow")
    kept = [trajectory(str(n)) for n in range(2001)]
    write(kept, tmp_path / "x.parquet")
    assert list(read(tmp_path / "x.parquet")) == kept


def test_parquet_has_columns_for_queries(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write([trajectory("t", reward=0.5, success=True), trajectory("\ud800")], tmp_path / "x.parquet")
    columns = parquet.read_table(tmp_path / "x.parquet").drop(["trajectory"]).to_pylist()
    assert columns == [
        {"task_id": "t", "success": True, "reward": 0.5, "turns": 2},
        {"task_id": "\\ud800", "success": None, "reward": None, "turns": 2},
    ]


def test_parquet_of_others_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"prompt": ["x"]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="of no known format"):
        list(read(tmp_path / "x.parquet"))


def test_rows_of_parquet_that_do_not_fit_are_rejected(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [trajectory().to_bytes().decode(), None, "{", "5"]
    parquet.write_table(pyarrow.table({"trajectory": texts}), tmp_path / "x.parquet")
    rejected: list[Reject] = []
    assert len(list(read(tmp_path / "x.parquet", on_reject=rejected.append))) == 1
    assert [reject.row for reject in rejected] == [1, 2, 3]


def failing(rows: list[Any]) -> Iterator[Any]:
    yield from rows
    raise RuntimeError("in the middle")


def test_a_failure_in_the_middle_leaves_the_files_that_were_there(out):
    with pytest.raises(RuntimeError):
        write(failing([trajectory(), REJECT]), out)
    assert list(out.parent.iterdir()) == []
    write([trajectory("old"), REJECT], out)
    before = {path: path.read_bytes() for path in (out, out.with_name("out.rejects.jsonl"))}
    with pytest.raises(RuntimeError, match="in the middle"):
        write(failing([trajectory("new"), REJECT, REJECT]), out)
    assert {path: path.read_bytes() for path in out.parent.iterdir()} == before


def test_rejected_rows_are_written_with_their_reasons(out):
    surrogate = Reject(file="b", row=0, kind="malformed", reason="\ud800", raw="\ud800")
    counts = write([REJECT, trajectory(), surrogate, REJECT], out)
    lines = out.with_name("out.rejects.jsonl").read_bytes().splitlines()
    assert [json.loads(line) for line in lines][::2] == [
        {"file": "a.jsonl", "row": 3, "reason": "not JSON: it ends", "raw": '{"é": "\u2028'}
    ] * 2
    assert json.loads(lines[1])["raw"] == "\ud800"
    assert counts.as_dict() == {
        "trajectories": 1,
        "turns": 1,
        "transitions": 2,
        "observations": {"tool": 1, "user": 1, "environment": 0},
        "rejected": 3,
        "rejected_by_reason": {"not JSON": 2, "malformed": 1},
        "without_schemas": 0,
    }


def test_rejected_rows_go_where_one_wants(out):
    elsewhere = out.parent / "bad.jsonl"
    write([REJECT], out, elsewhere)
    assert sorted(path.name for path in out.parent.iterdir()) == sorted(["bad.jsonl", out.name])
    write([REJECT], out, out.parent / "new" / "deep" / "bad.jsonl")
    assert (out.parent / "new" / "deep" / "bad.jsonl").read_bytes() == elsewhere.read_bytes()


def test_rejects_of_an_earlier_run_do_not_stay(out):
    write([trajectory(), REJECT], out)
    write([trajectory()], out)
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_strict_stops_at_the_first_rejected_row_and_writes_nothing(out):
    with pytest.raises(UserError, match="a.jsonl, row 3: not JSON: it ends"):
        write([trajectory(), REJECT], out, strict=True)
    assert list(out.parent.iterdir()) == []
    assert write([trajectory()], out, strict=True).trajectories == 1


def test_names_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for name, message in (
        ("x.csv", ".jsonl or .parquet"),
        ("file/x.jsonl", "file is no folder, so nothing can be written into it"),
        ("none/x.csv", "x.csv: write a name"),
    ):
        with pytest.raises(UserError, match=message):
            write([], tmp_path / name)
    assert not (tmp_path / "none").exists()
    with pytest.raises(UserError, match="ends in .jsonl"):
        write_transitions([], tmp_path / "x.parquet")


def test_transitions_may_be_written_a_line_each(tmp_path):
    out, source = tmp_path / "x.jsonl", Source(format="x", file="f", row=0)
    made = trajectory("\ud800\u2028").model_copy(update={"task_id": "t", "source": source})
    assert write_transitions(expand([made]), out, repeat_history=True) == 2
    lines = out.read_bytes().split(b"\n")
    assert [json.loads(line)["observation"]["text"] for line in lines[:-1]] == ["\ud800\u2028", ""]
