"""Parquet files: rows come as JSON, one that is too large is one reject, and a damaged file is one line."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

import wm_plugin
from wm_plugin.data import files, parquet
from wm_plugin.errors import UserError

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("text", [b"", b"PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"{}"])
def test_what_is_no_parquet_file_is_one_line(tmp_path, text):
    path = tmp_path / "x.parquet"
    path.write_bytes(text)
    for place in (path, tmp_path):
        with pytest.raises(UserError, match="cannot be read as parquet [^\n]*$"):
            list(parquet.rows(place))


def test_a_file_that_breaks_off_is_read_up_to_there(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(
        pyarrow.table({"a": ["x" * 5000] * 9}), path, row_group_size=3, use_dictionary=False, compression="none"
    )
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)
    *records, last = files.records(path, files.head(path))
    assert len(records) == 6
    assert last.error.kind == "broken document"
    assert "the file breaks off here" in str(last.error)


def test_a_row_that_is_too_large_is_one_reject(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "LARGEST", 20_000)
    path = tmp_path / "x.parquet"
    small, large = ({"messages": [{"content": "x" * length}]} for length in (10, 30_000))
    pq.write_table(pyarrow.Table.from_pylist([small, large, *[small] * 100]), path)
    records = list(files.records(path, files.head(path)))
    assert [record.value for record in records] == [small, None, *[small] * 100]
    assert (records[1].error.kind, str(records[1].error)) == ("out of bounds", "a row of more than 20,000 bytes")


def test_some_columns_and_groups_without_rows(tmp_path):
    path, table = tmp_path / "x.parquet", pyarrow.table({"a": ["x"], "b": [["y"]], "c": [1]})
    empty = table.slice(0, 0)
    pq.write_table(empty, path)
    assert list(parquet.rows(path)) == []
    with pq.ParquetWriter(path, table.schema) as writer:
        for part in (empty, table, empty, table):
            writer.write_table(part)
    assert list(parquet.rows(path)) == [{"a": "x", "b": ["y"], "c": 1}] * 2
    assert list(parquet.rows(path, {"a", "c"})) == [{"a": "x", "c": 1}] * 2


def test_names_of_columns_that_cannot_be_told_apart_are_one_error(tmp_path):
    path, column = tmp_path / "x.parquet", pyarrow.array(["x"])
    pq.write_table(pyarrow.Table.from_arrays([column, column], names=["messages", "messages"]), path)
    with pytest.raises(UserError, match="x.parquet: two columns are named 'messages'; rename one of them"):
        list(parquet.rows(path, {"other"}))
    pq.write_table(pyarrow.table({"abcdefgh": column}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"\xff" * 8))
    with pytest.raises(UserError, match="x.parquet: cannot be read as parquet [^\n]*$"):
        files.head(path)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_columns_come_as_they_are(tmp_path, monkeypatch, one_by_one):
    if one_by_one:
        monkeypatch.setattr(parquet, "_ROWS", 1)
    table = pyarrow.table(
        {
            "a.b": ["x", None],
            "map": pyarrow.array([[("k", "v")], []], pyarrow.map_(pyarrow.string(), pyarrow.string())),
            "fixed": pyarrow.array([["a", "b"], None], pyarrow.list_(pyarrow.string(), 2)),
            "words": pyarrow.array(["u", "u"]).dictionary_encode(),
            "codes": pyarrow.array([7, 7]).dictionary_encode(),
            "decimal": [Decimal("1.5"), None],
            "when": [datetime(2024, 1, 2), None],
            "large": pyarrow.array(["l", None], pyarrow.large_string()),
            "maps": pyarrow.array(
                [[[("k", "v")]], []], pyarrow.list_(pyarrow.map_(pyarrow.string(), pyarrow.string()))
            ),
            "number": [1.5, None],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    assert list(parquet.rows(tmp_path / "x.parquet")) == [
        {
            "a.b": "x",
            "map": [["k", "v"]],
            "fixed": ["a", "b"],
            "words": "u",
            "codes": 7,
            "decimal": "1.5",
            "when": "2024-01-02 00:00:00",
            "large": "l",
            "maps": [[["k", "v"]]],
            "number": 1.5,
        },
        {"map": [], "words": "u", "codes": 7, "maps": []},
    ]


@pytest.mark.parametrize("kind", ["string_view", "binary_view"])
def test_columns_of_views_are_read(tmp_path, kind):
    make = getattr(pyarrow, kind, None) or pytest.skip("this pyarrow has none")
    column = pyarrow.array([b"x", None, b"a longer text than a view holds"]).cast(make())
    inside = pyarrow.StructArray.from_arrays([column], names=["in"])
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, 2, 3], pyarrow.int32()), column)
    table = pyarrow.table({"flat": column, "object": inside, "list": lists, "number": [1, 2, 3]})
    pq.write_table(table, tmp_path / "x.parquet")
    text = "a longer text than a view holds"
    assert list(parquet.rows(tmp_path / "x.parquet")) == [
        {"flat": "x", "object": {"in": "x"}, "list": ["x"], "number": 1},
        {"object": {}, "list": [None], "number": 2},
        {"flat": text, "object": {"in": text}, "list": [text], "number": 3},
    ]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("odd", ["time", "zone", "text"])
def test_a_value_that_python_cannot_hold_costs_its_row_alone(tmp_path, odd, inside):
    numbers = pyarrow.array([5, 2**62 if odd == "time" else None, 0])
    values = {
        "time": lambda: numbers.view(pyarrow.timestamp("us")),
        "zone": lambda: pyarrow.array([None, 5, None]).view(pyarrow.timestamp("us", "Mars/Base")),
        "text": lambda: pyarrow.array([b"tea", b"caf\xe9", None]).view(pyarrow.string()),
    }[odd]()
    column = pyarrow.StructArray.from_arrays([values], names=["in"]) if inside else values
    pq.write_table(pyarrow.table({"value": column, "flat": ["a", "b", "c"]}), tmp_path / "x.parquet")
    first, second, third = parquet.rows(tmp_path / "x.parquet")
    assert (first["flat"], third["flat"]) == ("a", "c")
    assert str(second).startswith("a value cannot be read (")


def test_parquet_files_of_others_are_read_in_one_place():
    package = Path(wm_plugin.__file__).parent
    readers = (
        "read_table(",
        "read_schema(",
        "ParquetFile(",
        "ParquetDataset(",
        "read_parquet(",
        "from_parquet(",
        "read_metadata(",
    )
    places = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(name in path.read_text() for name in readers)
    }
    # besides, verl's adapter looks at the rows of a run, which verl then reads whole
    assert places == {"data/parquet.py", "verl/rows.py", "verl/support.py"}
