"""Parquet files: rows come as JSON, one that is too large is one reject, and a damaged file is one line."""

import json
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


@pytest.mark.parametrize("inside", [False, True])
def test_a_column_whose_name_is_not_utf_8_is_one_error(tmp_path, inside):
    column = pyarrow.array([{"abcdefgh": "x"}]) if inside else pyarrow.array(["x"])
    table = pyarrow.table({"rows" if inside else "abcdefgh": column, "messages": ["y"]})
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"\xff" * 8))
    with pytest.raises(UserError, match="x.parquet: the name of a column is not UTF-8; rename it"):
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


def read_nested(path, values, inside):
    """The rows of a file with three values in a column, by themselves or inside of others, none of which is lost."""
    places = pyarrow.array([0, 1, 2, 3], pyarrow.int32())
    column = {
        "": lambda: values,
        "list": lambda: pyarrow.ListArray.from_arrays(places, values),
        "object": lambda: pyarrow.StructArray.from_arrays([values, pyarrow.array([1, 2, 3])], names=["t", "n"]),
        "map": lambda: pyarrow.MapArray.from_arrays(places, pyarrow.array(["k"] * 3), values),
        "words": values.dictionary_encode,
    }[inside]()
    table = pyarrow.table({"value": column, "flat": pyarrow.array(["a", "b", "c"])})
    pq.write_table(table, path)
    rows = list(parquet.rows(path))
    assert [row["flat"] for row in rows] == ["a", "b", "c"]
    return rows


LATEST = 2**62
ODD_TIMES = {
    "milliseconds": ("timestamp", "ms", LATEST),
    "microseconds": ("timestamp", "us", LATEST),
    "before all years": ("timestamp", "us", -LATEST),
    "time of day": ("time64", "us", LATEST),
    "day": ("date32", None, 2**31 - 1),
    "unknown zone": ("timestamp", "us", 5),
}


@pytest.mark.parametrize("inside", ["", "list", "object", "map", "words"])
@pytest.mark.parametrize("name", ODD_TIMES)
def test_a_time_that_python_cannot_hold_costs_no_row(tmp_path, name, inside):
    kind, unit, number = ODD_TIMES[name]
    zone = ["Mars/Base"] if name == "unknown zone" else []
    type = getattr(pyarrow, kind)(*([unit] if unit else []), *zone)
    times = pyarrow.array([number, None, 0], pyarrow.int32() if kind == "date32" else pyarrow.int64()).view(type)
    rows = read_nested(tmp_path / "x.parquet", times, inside)
    assert str(number) in json.dumps(rows[0])
    if not zone:
        assert str(number) not in json.dumps(rows[2])
        assert "0" in json.dumps(rows[2])


@pytest.mark.parametrize("inside", ["", "list", "object", "map"])
def test_a_text_that_is_not_utf_8_costs_no_row(tmp_path, inside):
    texts = pyarrow.array([b"caf\xe9", None, b"tea"]).view(pyarrow.string())
    rows = read_nested(tmp_path / "x.parquet", texts, inside)
    assert json.dumps("caf\\xe9") in json.dumps(rows[0])
    assert '"tea"' in json.dumps(rows[2])


@pytest.mark.parametrize("inside", [False, True])
def test_two_columns_of_one_name_are_one_error(tmp_path, inside):
    column = pyarrow.array(["x"])
    table = pyarrow.Table.from_arrays([column, column], names=["messages", "messages"])
    if inside:
        table = pyarrow.table({"rows": table.to_struct_array()})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UserError, match="x.parquet: two columns are named 'messages'; rename one of them"):
        list(parquet.rows(tmp_path / "x.parquet", {"other"}))


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
    assert places == {"data/parquet.py"}
