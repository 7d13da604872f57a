import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from support.trainer_logs import REAL, event, framed, record, varint, write_events
from wm_plugin.lab.report import events
from wm_plugin.lab.report.events import Damaged, scalars


def read(path) -> list[tuple[str, int, str]]:
    return [(tag, step, f"{value:g}") for tag, step, value in scalars(path)]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "events.out.tfevents.1"


def test_a_file_of_tensorboard(file):
    file.write_bytes(REAL)
    assert read(file) == [
        ("train/loss", 1, "0.5"),
        ("train/loss", 2, "0.25"),
        ("train/loss", 3, "nan"),
        ("eval/reward", 2, "-1.5"),
        ("big", 1 << 40, "3"),
    ]


def test_tensorboard_reads_the_same(file):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_events(file.parent, {"a": {step: step / 7 for step in range(50)}, "b/c": {3: -1e30, 4: 2.0}})
    (path,) = file.parent.iterdir()
    accumulator = loader.EventAccumulator(str(file.parent), size_guidance={"scalars": 0})
    accumulator.Reload()
    theirs = [(tag, one.step, one.value) for tag in accumulator.Tags()["scalars"] for one in accumulator.Scalars(tag)]
    assert sorted(scalars(path)) == sorted(theirs)


def test_the_file_of_a_run_that_was_killed_ends_with_half_a_record(file):
    whole = record(event("loss", 1, 0.5))
    for end in range(len(whole) + 1):
        file.write_bytes(whole + whole[:end])
        assert len(read(file)) == 1 + (end == len(whole))


def test_what_comes_before_a_damaged_place_is_read(file):
    whole = record(event("loss", 1, 0.5))
    for damaged in (b"\x00" * 12, record(b"\xff" * 20), record(framed(5, b"\x0a\x7f"))):
        file.write_bytes(whole + damaged + whole)
        values = scalars(file)
        assert next(values) == ("loss", 1, 0.5)
        with pytest.raises(Damaged):
            next(values)


def test_a_negative_step_and_what_is_no_scalar(file):
    step = varint(2 << 3) + varint((1 << 64) - 3)
    histogram = framed(5, framed(1, framed(1, b"h") + framed(5, b"\x00" * 9)))
    tensor = framed(1, b"t") + framed(8, varint(8) + varint(2) + framed(4, struct.pack("<d", 0.1)))
    scalar = framed(1, b"loss") + varint(2 << 3 | 5) + struct.pack("<f", 2)
    file.write_bytes(record(step + histogram) + record(step + framed(5, framed(1, tensor) + framed(1, scalar))))
    assert read(file) == [("t", -3, "0.1"), ("loss", -3, "2")]


def test_large_records_are_passed_over_without_being_read(file, monkeypatch):
    monkeypatch.setattr(events, "LARGEST", 1000)
    with file.open("wb") as out:
        out.write(record(b"\x00" * (events.LARGEST + 1)))
        out.write(record(event("loss", 1, 0.5)))
        head = struct.pack("<Q", (1 << 64) - 1)  # larger than any file
        out.write(head + struct.pack("<I", events._masked(events._checksum(head))))
    assert list(scalars(file)) == [("loss", 1, 0.5)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40).map(record), st.binary(max_size=40)), max_size=4))
def test_any_bytes(tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "tfevents"
    path.write_bytes(b"".join(parts))
    try:
        for tag, step, value in scalars(path):
            assert (type(tag), type(step), type(value)) == (str, int, float)
    except Damaged:
        pass
