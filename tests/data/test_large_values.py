"""One value of a document, one line of a gzip file, one row of a parquet file: each is bounded, as a line is."""

import gzip
import json
from functools import partial
from itertools import chain, islice

import pytest

from wm_plugin.data import files, parquet
from wm_plugin.data import write as write_module
from wm_plugin.data.errors import RowError
from wm_plugin.data.readers import read_rows
from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads

SMALL = {"messages": [{"role": "user", "content": "x"}]}
LARGE = {
    "a text": {"a": "x" * 40_000},
    "texts": {"a": ["x" * 10] * 4000},
    "numbers": {"a": [1] * 20_000},
    "objects": {"a": [{}] * 20_000},
    "a key": {"x" * 40_000: 1},
    "a list": [["x"]] * 8000,
}


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 20_000)
    monkeypatch.setattr(files, "_BUFFER", 1000)
    monkeypatch.setattr(files, "loads", partial(files.loads, largest=20_000))
    monkeypatch.setattr(parquet, "LARGEST", 20_000)


def outcomes(records):
    return [record.value if record.error is None else record.error.kind for record in records]


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize("place", ["item", "", "rows.item", "rows.inner.item"])
def test_a_value_of_a_document(tmp_path, large, place):
    rows = [SMALL, SMALL, LARGE[large], SMALL]
    texts = {
        "item": json.dumps(rows),
        "": "\n".join(json.dumps(row, indent=1) for row in rows),
        "rows.item": json.dumps({"info": {"a": 1}, "rows": rows}),
        "rows.inner.item": json.dumps({"rows": {"inner": rows, "x": 1}}),
    }
    path = tmp_path / "x.json"
    path.write_text(texts[place])
    assert outcomes(files.items(path, place)) == [SMALL, SMALL, "out of bounds"]


@pytest.mark.parametrize("large", LARGE)
def test_a_value_of_an_object(tmp_path, large):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"a": SMALL, "b": LARGE[large], "c": SMALL}))
    pairs = [(key, record.error is None) for key, record in files.pairs(path)]
    assert pairs == [("a", True), ("", False)]


@pytest.mark.parametrize("rows", [[SMALL] * 2000, ["x"] * 20_000, [5] * 30_000, [{"a": {"b": [1] * 3000}}] * 20])
def test_many_values_are_not_one(tmp_path, rows):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(rows))
    assert outcomes(files.items(path, "item")) == rows
    path.write_text(json.dumps({str(number): row for number, row in enumerate(rows)}))
    assert [record.value for _, record in files.pairs(path)] == rows
    path.write_text(json.dumps({"tasks": rows, "rows": [SMALL]}))
    if isinstance(rows[0], dict):  # of plain values elsewhere, a list is one value
        assert outcomes(files.items(path, "rows.item")) == [SMALL]


def test_a_line_of_a_compressed_file(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    good = json.dumps(SMALL).encode()
    large = b'{"a": "' + b"x" * 10**6 + b'"}\n'
    blank = b" " * 10**6
    path.write_bytes(gzip.compress(b"\n".join([good, large + blank + good, blank, good])))
    assert outcomes(files.lines(path)) == [SMALL, "out of bounds", "out of bounds", SMALL]


@pytest.mark.parametrize("broken", [b"\xff", b"\x00", b'"', b"["])
def test_a_long_line_that_is_rejected_leaves_a_file_that_is_ours(tmp_path, monkeypatch, broken):
    monkeypatch.setattr(write_module, "LARGEST", 20_000)
    monkeypatch.setattr(write_module, "loads", partial(loads, largest=20_000))
    good = json.dumps(
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2}
    ).encode()
    (tmp_path / "x.jsonl").write_bytes(good + b"\n" + broken * 19_000 + b"\n")
    for _ in range(2):
        counts = write_module.write(read_rows(tmp_path / "x.jsonl"), tmp_path / "out.jsonl")
        assert counts.rejected.total() == 1


def write(path, rows, **options):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path, **options)


@pytest.mark.parametrize("text", ["x", pytest.param("x" * 9000, marks=pytest.mark.slow)])
def test_a_row_of_a_parquet_file(tmp_path, text):
    """A text that is repeated is there once in the file."""
    row = {"messages": [{"role": "user", "content": text}], "flat": text, "bytes": b"x", "number": 5, "flag": True}
    large = row | {"messages": [{"role": "user", "content": text}] * 40_000}
    write(tmp_path / "x.parquet", [row, row, large, row], row_group_size=1)
    expected = row | {"bytes": "x"}
    values = parquet.rows(tmp_path / "x.parquet")
    assert [next(values), next(values)] == [expected, expected]
    with pytest.raises(RowError, match="a row of more than"):
        next(values)
    if len(text) > 1:
        large = row | {"messages": [{"role": "user", "content": text}] * 3}
        write(tmp_path / "y.parquet", [row, row, large, *[row] * 100], compression="none")
        rows = list(parquet.rows(tmp_path / "y.parquet"))
        assert [isinstance(row, RowError) for row in rows] == [False, False, True, *[False] * 100]
        assert [
            record.error is None for record in files.records(tmp_path / "y.parquet", files.head(tmp_path / "y.parquet"))
        ] == [
            True,
            True,
            False,
            *[True] * 100,
        ]


def test_a_row_of_many_empty_lists(tmp_path):
    few, many = ({"lists": [[]] * count, "messages": [{"role": "user"}]} for count in (100, 20_000 // 64))
    write(tmp_path / "x.parquet", [few, many, few])
    assert [isinstance(row, RowError) for row in parquet.rows(tmp_path / "x.parquet")] == [False, True, False]


@pytest.mark.parametrize("kind", ["string", "large_string", "binary"])
def test_the_size_of_texts_of_a_dictionary(kind):
    """Of part of the rows, and of part of the dictionary."""
    pyarrow = pytest.importorskip("pyarrow")
    words = pyarrow.array(["", "é", "four", "a longer text"], getattr(pyarrow, kind)())
    sizes = [0, 2, 4, 13]
    for first in range(4):
        places = [None, *range(4 - first), 0, None]
        array = pyarrow.DictionaryArray.from_arrays(pyarrow.array(places, pyarrow.int32()), words.slice(first))
        for begin in range(len(places)):
            rest = places[begin:]
            expected = parquet._VALUE * len(rest) + sum(sizes[first + place] for place in rest if place is not None)
            assert parquet._size(array.slice(begin), parquet.pyarrow_modules()[0]) == expected


def write_repeated(path, text, count):
    """A text that is there once in the file, for any number of rows."""
    pyarrow = pytest.importorskip("pyarrow")
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), pyarrow.array([text]))
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": column}), path, store_schema=False)


def test_rows_that_repeat_a_text_are_bounded_by_the_size_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_RATIO", 1000)
    path = tmp_path / "x.parquet"
    write_repeated(path, "x" * 9000, 10_000)
    bound = 1000 * path.stat().st_size
    *records, last = files.records(path, files.head(path))
    assert bound / 2 < sum(len(record.value["text"]) for record in records) <= bound < 10_000 * 9000
    assert last.error.kind == "out of bounds"
    assert str(last.error).startswith("the rows take more than 1,000 times the")


def test_rows_that_are_large_together_are_decoded_one_by_one(tmp_path):
    """Their texts, in lists, are there once in the file and in the batch."""
    pyarrow = pytest.importorskip("pyarrow")
    count, text = 2000, "x" * 15_000
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), pyarrow.array([text]))
    rows = pyarrow.StructArray.from_arrays([texts], names=["content"])
    lists = pyarrow.ListArray.from_arrays(pyarrow.array(range(count + 1), pyarrow.int32()), rows)
    path = tmp_path / "x.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"messages": lists}), path, store_schema=False)
    assert most_memory(path, {"messages": [{"content": text}]}) < 20 * len(text)  # of 64 that are read together


def most_memory(path, expected):
    """Of the library's, while some rows are read."""
    pyarrow = pytest.importorskip("pyarrow")
    before, pool = pyarrow.default_memory_pool(), pyarrow.proxy_memory_pool(pyarrow.default_memory_pool())
    pyarrow.set_memory_pool(pool)
    try:
        for row in islice(parquet.rows(path), 100):
            assert row == expected
    finally:
        pyarrow.set_memory_pool(before)
    return pool.max_memory()


def test_values_of_a_fixed_length_are_as_large_as_they_are_in_memory(tmp_path, monkeypatch):
    """One that is repeated is there once in the file."""
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr(parquet, "_RATIO", 10**6)
    path = tmp_path / "x.parquet"
    for value, count, fits in [(b"x" * 9000, 200, False), (b"x" * 9000, 7, True), (b"x" * 70, 2000, True)]:
        table = pyarrow.table({"value": pyarrow.array([value] * count, pyarrow.binary(len(value)))})
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
        assert path.stat().st_size < len(value) + 9000
        del table
        if fits:
            assert most_memory(path, {"value": value.decode()}) < 10 * 20_000
        else:
            with pytest.raises(RowError, match="pages of more than 80,000 bytes for a row"):
                next(parquet.rows(path))


def test_a_group_of_rows_that_is_large_in_memory_alone_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_RATIO", 5)
    write_repeated(tmp_path / "x.parquet", "x" * 10**6, 1000)
    monkeypatch.setattr(parquet, "_size", None)
    with pytest.raises(RowError, match="the rows take more than 5 times"):
        next(parquet.rows(tmp_path / "x.parquet"))


def test_rows_that_share_a_long_prompt_are_read(tmp_path):
    rows = [{"prompt": "x" * 9000, "own": f"{number * 7919 % 10**6}"} for number in range(1000)]
    write(tmp_path / "x.parquet", rows)
    assert len(list(parquet.rows(tmp_path / "x.parquet"))) == 1000


@pytest.mark.parametrize("inside", [False, True])
def test_a_column_whose_name_is_not_utf_8_is_one_error(tmp_path, inside):
    pyarrow = pytest.importorskip("pyarrow")
    column = pyarrow.array([{"abcdefgh": "x"}]) if inside else pyarrow.array(["x"])
    table = pyarrow.table({"rows" if inside else "abcdefgh": column, "messages": ["y"]})
    path = tmp_path / "x.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(table, path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"\xff" * 8))
    with pytest.raises(UserError, match="x.parquet: the name of a column is not UTF-8; rename it"):
        files.head(path)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_columns_of_a_parquet_file_come_as_they_are(tmp_path, monkeypatch, one_by_one):
    pyarrow = pytest.importorskip("pyarrow")
    if one_by_one:
        monkeypatch.setattr(parquet, "_size", lambda array, _: 20_000 * len(array))
    from datetime import datetime
    from decimal import Decimal

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
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "x.parquet")
    assert list(chain(parquet.rows(tmp_path / "x.parquet"))) == [
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
    pyarrow = pytest.importorskip("pyarrow")
    make = getattr(pyarrow, kind, None) or pytest.skip("this pyarrow has none")
    column = pyarrow.array([b"x", None, b"a longer text than a view holds"]).cast(make())
    inside = pyarrow.StructArray.from_arrays([column], names=["in"])
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, 2, 3], pyarrow.int32()), column)
    table = pyarrow.table({"flat": column, "object": inside, "list": lists, "number": [1, 2, 3]})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "x.parquet")
    text = "a longer text than a view holds"
    assert list(parquet.rows(tmp_path / "x.parquet")) == [
        {"flat": "x", "object": {"in": "x"}, "list": ["x"], "number": 1},
        {"object": {}, "list": [None], "number": 2},
        {"flat": text, "object": {"in": text}, "list": [text], "number": 3},
    ]


def read_nested(path, values, inside):
    """The rows of a file with three values in a column, by themselves or inside of others, none of which is lost."""
    pyarrow = pytest.importorskip("pyarrow")
    places = pyarrow.array([0, 1, 2, 3], pyarrow.int32())
    column = {
        "": lambda: values,
        "list": lambda: pyarrow.ListArray.from_arrays(places, values),
        "object": lambda: pyarrow.StructArray.from_arrays([values, pyarrow.array([1, 2, 3])], names=["t", "n"]),
        "map": lambda: pyarrow.MapArray.from_arrays(places, pyarrow.array(["k"] * 3), values),
        "words": values.dictionary_encode,
    }[inside]()
    table = pyarrow.table({"value": column, "flat": pyarrow.array(["a", "b", "c"])})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
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
    pyarrow = pytest.importorskip("pyarrow")
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
    pyarrow = pytest.importorskip("pyarrow")
    texts = pyarrow.array([b"caf\xe9", None, b"tea"]).view(pyarrow.string())
    rows = read_nested(tmp_path / "x.parquet", texts, inside)
    assert json.dumps("caf\\xe9") in json.dumps(rows[0])
    assert '"tea"' in json.dumps(rows[2])


@pytest.mark.parametrize("inside", [False, True])
def test_two_columns_of_one_name_are_one_error(tmp_path, inside):
    pyarrow = pytest.importorskip("pyarrow")
    column = pyarrow.array(["x"])
    table = pyarrow.Table.from_arrays([column, column], names=["messages", "messages"])
    if inside:
        table = pyarrow.table({"rows": table.to_struct_array()})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UserError, match="x.parquet: two columns are named 'messages'; rename one of them"):
        list(parquet.rows(tmp_path / "x.parquet", {"other"}))


@pytest.mark.parametrize("depth", [30, 99, 3000])
def test_deep_columns_of_a_parquet_file_are_one_error(tmp_path, depth, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    kind = pyarrow.string()
    for _ in range(depth):
        kind = pyarrow.list_(kind)
    monkeypatch.setattr(parquet, "LEVELS", 50)
    assert parquet._deeper([kind], 50) is (depth > 50)
