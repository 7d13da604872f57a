"""Mixtures: how many of each file, always the same ones, shuffled, with what says where they come from."""

import json
from pathlib import Path

import pytest

from wm_plugin.data import Trajectory, Turn, read
from wm_plugin.data.mix import mix
from wm_plugin.data.schema import Action, Observation, Source
from wm_plugin.data.transitions import expand
from wm_plugin.data.write import write, write_transitions
from wm_plugin.errors import UserError


def trajectories(name, count, **fields):
    for number in range(count):
        seen = Observation(kind="environment", text=f"{name} {number}")
        yield Trajectory(
            turns=(Turn(action=Action(text="look"), observations=(seen,)),),
            task_id=f"t{number % 7}",
            success=number % 2 == 0,
            source=Source(format="wm", file=name, row=number),
            **fields,
        )


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(trajectories("real", 40), "real.jsonl")
    write(trajectories("made", 30, metadata={"synthetic": {"prompts": "word2world"}}), "made.parquet")


def drawn(path="x.jsonl"):
    return [(one.source.file, one.source.row) for one in read(path)]


def test_so_many_of_each_shuffled_with_their_provenance():
    report = mix(["real.jsonl", "made.parquet"], [20, 10], "x.jsonl")
    assert report.as_dict() | {"parts": None} == {
        "what": "trajectories",
        "parts": None,
        "drawn": 30,
        "synthetic": 10,
        "repeated": 0,
    }
    assert [(one.there, one.drawn, one.synthetic) for one in report.parts] == [(40, 20, 0), (30, 10, 10)]
    found = drawn()
    before = Path("x.jsonl").read_bytes()
    mix(["real.jsonl", "made.parquet"], [20, 10], "y.jsonl")
    assert Path("y.jsonl").read_bytes() == before
    assert len(set(found)) == 30
    assert [sum(name == one for one, _ in found) for name in ("real", "made")] == [20, 10]
    assert found != sorted(found)
    assert {name for name, _ in found[:12]} == {"real", "made"}  # not one file after the other
    synthetic = {one.source.file for one in read("x.jsonl") if one.metadata.get("synthetic")}
    assert synthetic == {"made"}


def test_a_smaller_draw_is_a_subset_whatever_is_beside_it_and_in_whatever_order():
    mix(["real.jsonl", "made.parquet"], [20, 10], "x.jsonl")
    large = set(drawn())
    mix(["real.jsonl", "made.parquet"], [5, 10], "x.jsonl")
    small = set(drawn())
    assert len(small) == 15
    assert small <= large
    write(reversed(list(trajectories("real", 40))), "turned.jsonl")
    mix(["turned.jsonl"], [5], "x.jsonl")
    assert set(drawn()) == {one for one in small if one[0] == "real"}
    mix(["real.jsonl"], [5], "x.jsonl", seed=1)
    assert set(drawn()) != {one for one in small if one[0] == "real"}


def test_successful_ones_alone():
    report = mix(["real.jsonl", "made.parquet"], [20, None], "x.parquet", successful=True)
    assert [(one.drawn, one.without_success) for one in report.parts] == [(20, 20), (15, 15)]
    assert all(one.success for one in read("x.parquet"))
    with pytest.raises(UserError, match=r"real.jsonl: 21 trajectories .* 20 of its 40 are successful; write a smaller"):
        mix(["real.jsonl"], [21], "x.jsonl", successful=True)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (None, "lost.jsonl has 1, none with success; leave out --successful"),
        (1, "lost.jsonl: 1 trajectories are asked for, and 0 of its 1 are successful; leave out --successful"),
    ],
)
def test_a_file_without_success_is_named(count, message):
    write(list(trajectories("lost", 2))[1:], "lost.jsonl")
    with pytest.raises(UserError, match=message):
        mix(["lost.jsonl"], [count], "x.jsonl", successful=True)


def test_what_is_in_two_files_is_counted():
    assert mix(["real.jsonl", "real.jsonl"], [40, 40], "x.jsonl").repeated == 40
    assert sorted(drawn()) == sorted(2 * [("real", number) for number in range(40)])


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_rows_to_train_on(suffix, tmp_path):
    from wm_plugin.data import files
    from wm_plugin.data.rows import write_rows

    for name, start in (("a", 0), ("b", 100)):
        rows = [{"input_ids": [start + n, 1], "loss_mask": [0, 1]} for n in range(12)]
        write_rows([*rows, rows[0]], tmp_path / f"{name}.{suffix}")
    report = mix([f"a.{suffix}", f"b.{suffix}"], [None, 6], f"x.{suffix}")
    assert report.as_dict()["what"] == "rows"
    path = tmp_path / f"x.{suffix}"
    found = [record.value["input_ids"][0] for record in files.records(path, files.head(path))]
    assert sorted(one for one in found if one < 100) == [0, *range(12)]  # with its repetition
    assert len(found) == 19
    (tmp_path / "c.jsonl").write_text('{"a": 1}\n{"a": 2, "b": 2}\n')  # a row may lack a column that others have
    (tmp_path / "d.jsonl").write_text('{"a": 3, "b": 3}\n')
    assert mix(["c.jsonl", "d.jsonl"], [None, None], "x.jsonl").as_dict()["drawn"] == 3


@pytest.mark.parametrize(
    ("sources", "counts", "message"),
    [
        (["real.jsonl"], [41], r"real.jsonl: 41 trajectories are asked for, and there are 40; write a smaller count"),
        (["real.jsonl", "rows.jsonl"], [1, 1], "trajectories and rows do not mix: .*build rows of all of them first"),
        (
            ["rows.jsonl", "other.jsonl"],
            [1, 1],
            "rows of other columns do not mix: rows.jsonl has a; other.jsonl has a, b",
        ),
        (["rows.jsonl", "odd.jsonl"], [1, 1], r"odd.jsonl has 'a\\nb\\x1b', c0, .*, c43 and 61 more. Build"),
        (["rows.jsonl", "later.jsonl"], [1, 1], "rows.jsonl has a; later.jsonl has a, b"),
        (["half.jsonl"], [1], "a row holds half a surrogate pair"),
        (["rows.jsonl", "list.jsonl"], [1, 1], "list.jsonl, row [01]: no object with columns"),
        (["broken.jsonl"], [1], "broken.jsonl, row 1"),
        (["transitions.jsonl"], [1], "transitions.jsonl holds transitions; build rows"),
        (["real.jsonl"], [0], "a count is 0"),
        (["real.jsonl"], [1, 1], "1 files and 2 counts"),
        (["no.jsonl"], [1], "no.jsonl"),
    ],
)
def test_what_does_not_fit_is_one_line(sources, counts, message, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "other.jsonl").write_text('{"a": 1, "b": 2}\n')
    (tmp_path / "later.jsonl").write_text('{"a": 1}\n{"a": 1, "b": 2}\n')
    (tmp_path / "odd.jsonl").write_text(
        json.dumps({"a\nb\x1b": 1, **{f"c{number}": 1 for number in range(100)}}) + "\n"
    )
    (tmp_path / "half.jsonl").write_text('{"a": "\\ud800"}\n{"a": "\\ud800"}\n')
    (tmp_path / "list.jsonl").write_text("[1]\n[2]\n")
    (tmp_path / "broken.jsonl").write_text('{"a": 1}\n{"a"\n')
    write_transitions(expand(trajectories("real", 2)), "transitions.jsonl")
    with pytest.raises(UserError, match=message) as raised:
        mix(sources, counts, "x.jsonl")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "x.jsonl").exists()


def test_rows_know_no_success_and_no_source_is_written_over(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UserError, match="rows do not say whether they are of a success"):
        mix(["rows.jsonl"], [1], "x.jsonl", successful=True)
    with pytest.raises(UserError, match="is the source"):
        mix(["real.jsonl"], [1], "real.jsonl")
    assert json.loads((tmp_path / "real.jsonl").read_text().splitlines()[0])["source"]["row"] == 0
