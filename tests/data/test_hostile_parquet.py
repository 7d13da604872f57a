"""Parquet files that are damaged or lie about their sizes: none ends the process, or takes memory out of proportion."""

import base64
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from wm_plugin.data import files, pages, parquet
from wm_plugin.data.errors import RowError
from wm_plugin.errors import UserError

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
from support.parquet import ROWS, lie, originals, varint  # noqa: E402

ROOT = Path(__file__).parents[2]
BOUND = 20_000


@pytest.fixture
def small_bounds(monkeypatch):
    monkeypatch.setattr(parquet, "LARGEST", BOUND)


def test_damaged_files_do_not_end_the_process(tmp_path):
    """pyarrow ends it on a footer whose histogram of levels has another length, and raises of it elsewhere."""
    path = tmp_path / "x.parquet"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    child = subprocess.run(
        [sys.executable, "-m", "support.parquet", path, "120"],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, (child.returncode, child.stderr[-2000:])


def test_what_the_pages_take_is_what_pyarrow_says(tmp_path):
    """On files that are in order."""
    path = tmp_path / "x.parquet"
    for text in originals(path):
        path.write_bytes(text)
        metadata = pq.ParquetFile(path).metadata
        with path.open("rb") as file:
            groups = pages.groups(file, len(text))
            assert len(groups) == metadata.num_row_groups
            for number, group in enumerate(groups):
                theirs = metadata.row_group(number)
                assert group.rows == theirs.num_rows
                assert len(group.chunks) == theirs.num_columns
                for place, chunk in enumerate(group.chunks):
                    column = theirs.column(place)
                    own = list(pages.pages(file, chunk))
                    data = [page for page in own if page.kind != pages.DICTIONARY_PAGE]
                    assert sum(page.values for page in data) == column.num_values
                    assert (len(own) > len(data)) is column.has_dictionary_page
                    assert 0 < sum(page.size for page in own) <= column.total_uncompressed_size
        records = files.records(path, files.head(path))
        assert [record.value["number"] for record in records] == [row["number"] for row in ROWS]


def taken(path, columns=None):
    """What came of a file - rows by their number, and errors -, and the most that pyarrow's memory held."""
    before, pool = pyarrow.default_memory_pool(), pyarrow.proxy_memory_pool(pyarrow.default_memory_pool())
    pyarrow.set_memory_pool(pool)
    results = []
    try:
        for row in parquet.rows(path, columns):
            results.append(str(row) if isinstance(row, RowError) else row.get("n"))
    except RowError as error:
        results.append(str(error))
    finally:
        pyarrow.set_memory_pool(before)
    return results, pool.max_memory()


LARGE = {
    "a text": "x" * 40 * BOUND,
    "texts": [["x" * 1000]] * 1000,
    "texts that differ": [f"{number}" * 300 for number in range(3000)],
    "numbers": list(range(100_000)),
    "switches": [True, False] * 50_000,
    "nulls": [None] * 10**6,
}
WRITTEN = {
    "plain": {"use_dictionary": False, "compression": "zstd"},
    "dictionary": {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30},
    "second version": {"use_dictionary": False, "compression": "zstd", "data_page_version": "2.0"},
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("large", LARGE)
def test_a_footer_that_lies_takes_no_memory(tmp_path, small_bounds, large, written):
    """Of one row that is large, and many that are not: by the mean of their sizes, too, no row is."""
    path = tmp_path / "x.parquet"
    small = LARGE[large][:1]
    values = [small] * 500 + [LARGE[large]] + [small] * 500
    pq.write_table(pyarrow.table({"a": values, "n": range(1001)}), path, store_schema=False, **WRITTEN[written])
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    for number in (chunk.total_uncompressed_size, chunk.num_values):
        if number > 10_000:
            lie(path, number, 1001)
    results, memory = taken(path)
    assert memory < 25 * BOUND
    assert 500 not in results


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize(
    "large", ["x" * 3 * BOUND, [["x" * 1000]] * 50, [["y" * 5]] * 1000, [True, False] * 1000, [1] * 2000]
)
def test_one_large_row_among_small_ones_is_one_reject(tmp_path, monkeypatch, large, written):
    """Numbers weigh what they take in Python, as in documents."""
    monkeypatch.setattr(parquet, "LARGEST", BOUND)
    monkeypatch.setattr(parquet, "_DENSE", 10**6)
    path = tmp_path / "x.parquet"
    small = [["x"]] if isinstance(large[0], list) else large[:1]
    values = [small] * 100 + [large] + [small] * 100
    pq.write_table(pyarrow.table({"a": values, "n": range(201)}), path, **WRITTEN[written])
    results, _ = taken(path)
    assert results == [*range(100), f"a row of more than {1 << 26:,} bytes", *range(101, 201)]


def test_small_rows_that_are_large_together_are_read_one_by_one(tmp_path, small_bounds):
    """More of them than may be decoded at once, none of them too large."""
    path = tmp_path / "x.parquet"
    draw = random.Random(0)
    values = [["a"]] * 1000 + [[draw.randbytes(500).hex() for _ in range(10)] for _ in range(60)] + [["a"]] * 100
    table = pyarrow.table({"a": values, "n": range(len(values))})
    pq.write_table(table, path, data_page_size=1000, write_batch_size=10, use_dictionary=False)
    assert taken(path)[0] == list(range(len(values)))


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_an_encoding_that_hides_what_it_takes_is_named(tmp_path, encoding):
    path = tmp_path / "x.parquet"
    pq.write_table(pyarrow.table({"a": ["x", "y"]}), path, use_dictionary=False, column_encoding={"a": encoding})
    with pytest.raises(RowError, match="nothing tells what column 'a' takes in its encoding"):
        list(parquet.rows(path))


def test_columns_that_share_their_pages_are_refused(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pyarrow.table({"a": ["x" * 500], "b": ["y" * 500]}), path, use_dictionary=False, compression="none")
    group = pq.ParquetFile(path).metadata.row_group(0)
    first, second = (group.column(place).data_page_offset for place in (0, 1))
    lie(path, second, first)
    with pytest.raises(RowError, match="two columns are at one place"):
        list(parquet.rows(path))


@pytest.mark.parametrize("claim", [b"\x80\x80\x80\x80\x80\x80\x01", b"\x01", b"\xff" * 9 + b"\x01"])
def test_a_number_of_rows_that_no_column_has_is_no_row(tmp_path, claim):
    """pyarrow ends the process where it has no memory for so many."""
    path = tmp_path / "x.parquet"
    pq.write_table(pyarrow.table({"a": range(70)}), path, store_schema=False, write_statistics=False)
    data = path.read_bytes()
    footer = data[len(data) - 8 - int.from_bytes(data[-8:-4], "little") : -8]
    changed = claim.join(footer.rsplit(varint(70), 1))  # the last such number: of the group's rows
    path.write_bytes(data[: -8 - len(footer)] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    for columns in ({"b"}, None):
        with pytest.raises((RowError, UserError)):
            list(parquet.rows(path, columns))


@pytest.mark.parametrize("size", [2, 1 << 20])
@pytest.mark.parametrize("nested", [False, True])
def test_nulls_of_lists_of_a_fixed_size_take_no_memory(tmp_path, size, nested):
    """Which these lists are, pyarrow takes from a text of its own in the footer."""
    path = tmp_path / "x.parquet"
    plain, fixed = (pyarrow.list_(pyarrow.int32(), *sizes) for sizes in ((), (size,)))
    lists = [[1, 2], [3, 4]] if size == 2 else [None] * 64
    kinds, values = [plain, fixed], lists
    if nested:
        kinds, values = [pyarrow.list_(pyarrow.struct({"b": kind})) for kind in kinds], [[{"b": one}] for one in lists]
    pq.write_table(pyarrow.table({"a": pyarrow.array(values, kinds[0])}), path)
    lied = base64.b64encode(pyarrow.schema({"a": kinds[1]}).serialize().to_pybytes())
    data = path.read_bytes()
    footer = data[len(data) - 8 - int.from_bytes(data[-8:-4], "little") : -8]
    true = pq.ParquetFile(path).metadata.metadata[b"ARROW:schema"]
    told, tells = (bytes(_unsigned(len(text))) + text for text in (true, lied))
    assert told in footer
    changed = footer.replace(told, tells)
    path.write_bytes(data[: -8 - len(footer)] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    assert pq.ParquetFile(path).schema_arrow.field("a").type == kinds[1]
    before, pool = pyarrow.default_memory_pool(), pyarrow.proxy_memory_pool(pyarrow.default_memory_pool())
    pyarrow.set_memory_pool(pool)
    try:
        rows = list(parquet.rows(path))
    finally:
        pyarrow.set_memory_pool(before)
    assert pool.max_memory() < 1 << 20
    expected = {"a": [{"b": one} if one else {} for one in lists[:1]] if nested else lists[0]}
    assert rows[0] == ({key: value for key, value in expected.items() if value is not None})


def test_groups_without_rows_are_read(tmp_path):
    path, table = tmp_path / "x.parquet", pyarrow.table({"a": ["x"], "b": [["y"]], "c": [1]})
    empty = table.slice(0, 0)
    pq.write_table(empty, path)
    assert list(parquet.rows(path)) == []
    with pq.ParquetWriter(path, table.schema) as writer:
        for part in (empty, table, empty, table):
            writer.write_table(part)
    assert list(parquet.rows(path)) == [{"a": "x", "b": ["y"], "c": 1}] * 2


def structure(*fields):
    """Bytes of Thrift's compact protocol: (field, kind, bytes)."""
    pieces = [bytes([kind]) + varint(field) + value for field, kind, value in fields]  # the field's number in full
    return b"".join(pieces) + b"\0"


HOSTILE = {
    "nothing": b"",
    "a list that is longer than the footer": structure((4, 9, b"\xfc\xff\xff\xff\x7f")),
    "a map of more than there is": structure((9, 11, b"\xff\xff\xff\xff\xff\x7f\x77")),
    "an endless number": structure((4, 6, b"\xff" * 100)),
    "nested without end": b"\x1c" * 100_000,
    "lists without end": structure((9, 9, b"\x19" * 100_000)),
    "a field twice": structure((4, 9, b"\x0c"), (4, 9, b"\x0c")),
    "another kind": structure((4, 6, varint(5))),
    "many groups": structure((4, 9, b"\xfc\x80\x80\x40" + b"\0" * (1 << 20))),
    "a column outside of the file": structure(
        (
            4,
            9,
            b"\x1c"
            + structure((1, 9, b"\x1c" + structure((3, 12, structure((5, 6, varint(1)), (9, 6, varint(10**9))))))),
        ),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_footer_is_one_line(tmp_path, name):
    path = tmp_path / "x.parquet"
    footer = HOSTILE[name]
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(UserError, match="x.parquet: cannot be read as parquet") as error:
        list(parquet.rows(path))
    assert "\n" not in str(error.value)


def structure_of(fields):
    """As `structure`, of fields with numbers of 32 bits, or the bytes of a structure."""
    return structure(
        *((field, 12, value) if isinstance(value, bytes) else (field, 5, varint(value)) for field, value in fields)
    )


def run(count, level):
    """Levels that are all the same."""
    return bytes(_unsigned(2 * count)) + bytes([level])


def _unsigned(number):
    while number > 127:
        yield number & 127 | 128
        number >>= 7
    yield number


def first_version(count):
    return structure_of([(1, count), (2, 0), (3, 3), (4, 3)])


MANY = 1 << 20
BEGINS, NULLS = run(1, 0) + run(MANY - 1, 1), run(MANY, 2)  # one list of so many nulls
LEVELS = b"".join(len(levels).to_bytes(4, "little") + levels for levels in (BEGINS, NULLS))
SECOND = structure_of([(1, MANY), (2, MANY), (3, 1), (4, 0), (5, len(NULLS)), (6, len(BEGINS))])
SIZES = [(2, len(LEVELS)), (3, len(LEVELS))]
PLAIN_PAGE = structure_of([(1, 0), *SIZES, (5, first_version(MANY))]) + LEVELS
FEW = b"".join(len(levels).to_bytes(4, "little") + levels for levels in (run(1, 0), run(1, 2)))
SMALL_PAGE = structure_of([(1, 0), (2, len(FEW)), (3, len(FEW)), (5, first_version(1))]) + FEW
# The pages of a column, and how many of their bytes its footer tells of; None: all.
MISLEADING = {
    "as it is": (PLAIN_PAGE, None),
    "a field's number of 17 bits": (
        structure_of([(1, 0), *SIZES, (5, first_version(1)), (65536 + 5, first_version(MANY))]) + LEVELS,
        None,
    ),
    "a sum of steps of 17 bits": (
        structure_of([(1, 0), *SIZES, (5, first_version(1))])[:-1]
        + b"\x05"
        + varint(65530)
        + varint(0)
        + b"\xbc"
        + first_version(MANY)
        + b"\0"
        + LEVELS,
        None,
    ),
    "the header of another version": (
        structure_of([(1, 3), (2, len(BEGINS + NULLS)), (3, len(BEGINS + NULLS)), (5, first_version(1)), (8, SECOND)])
        + BEGINS
        + NULLS,
        None,
    ),
    "a page that is passed over": (
        structure_of([(1, 1), (2, 0), (3, 0), (5, first_version(MANY))]) + PLAIN_PAGE,
        None,
    ),
    "a page behind the column's end": (SMALL_PAGE + PLAIN_PAGE, len(SMALL_PAGE)),
}


@pytest.mark.parametrize("name", MISLEADING)
def test_a_page_is_weighed_by_the_header_that_pyarrow_goes_by(tmp_path, small_bounds, name):
    """A list of a million nulls in some fifty bytes, which look like something else."""
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"a": pyarrow.array([[1]], pyarrow.list_(pyarrow.int32()))})
    pq.write_table(table, path, use_dictionary=False, compression="none", write_statistics=False, store_schema=False)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data, (body, told) = path.read_bytes(), MISLEADING[name]
    footer = data[4 + chunk.total_compressed_size : -8]
    size = b"\x16" + varint(chunk.total_compressed_size)
    assert b"\x16" + varint(1) + 2 * size in footer
    told = b"\x16" + varint(told or len(body))
    footer = footer.replace(b"\x16" + varint(1) + 2 * size, b"\x16" + varint(MANY) + 2 * told)
    maker = pq.ParquetFile(path).metadata.created_by.encode()  # pyarrow reads on behind the columns of this old one
    footer = footer.replace(bytes([len(maker)]) + maker, b"\x18parquet-mr version 1.2.8")
    path.write_bytes(b"PAR1" + body + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    results, memory = taken(path)
    assert len(results) == 1
    assert isinstance(results[0], str)
    assert memory < 25 * BOUND


@pytest.mark.parametrize("text", [b"", b"PAR1", b"PAR1\xff\xff\xff\x7fPAR1", json.dumps(ROWS).encode()])
def test_what_is_no_parquet_file_is_one_line(tmp_path, text):
    path = tmp_path / "x.parquet"
    path.write_bytes(text)
    with pytest.raises(UserError, match="x.parquet: cannot be read as parquet"):
        list(parquet.rows(path))
    with pytest.raises(UserError, match="cannot be read as parquet"):
        list(parquet.rows(tmp_path))


READERS = (
    "read_table",
    "read_schema",
    "ParquetFile",
    "ParquetDataset",
    "read_parquet",
    "from_parquet",
    "read_metadata",
)


def test_parquet_files_of_others_are_read_in_one_place():
    package = ROOT / "wm_plugin"
    places = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(f"{name}(" in path.read_text() for name in READERS)
    }
    assert places == {"data/parquet.py"}
