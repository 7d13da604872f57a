"""Files of every layout, and whatever is broken in them: a row that cannot be read is rejected, and the others are read."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from wm_plugin.data import Trajectory
from wm_plugin.data.files import head
from wm_plugin.data.readers import FORMATS, read_rows
from wm_plugin.data.readers.base import Reject
from wm_plugin.errors import UserError


def row(text: Any = "x", **more: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant"}, {"role": "user", "content": text}],
        **more,
    }


def line(text: Any = "x", **more: Any) -> bytes:
    return json.dumps(row(text, **more)).encode()


@pytest.fixture
def rows(tmp_path: Path):
    def read(content: bytes, format: str = "auto", name: str = "x.json") -> list[str]:
        """What each row's only observation says, or why it was rejected, after an exclamation mark."""
        path = tmp_path / name
        path.write_bytes(content)
        return [
            next(row.observed())[2].text if isinstance(row, Trajectory) else f"!{row.reason}"
            for row in read_rows(path, format)
        ]

    return read


@pytest.mark.parametrize(
    ("content", "layout"),
    [
        (line("a") + b"\n" + line("b") + b"\n", "lines"),
        (line("a") + b"\r\n\r\n" + line("b"), "lines"),
        (b"\n \r\n" + line("a") + b"\n" + line("b"), "lines"),
        (b"[" + line("a") + b",\n" + line("b") + b"]", "array"),
        (json.dumps([row("a"), row("b")], indent=1).encode(), "array"),
        (json.dumps(row("a"), indent=1).encode() + b"\n" + json.dumps(row("b"), indent=1).encode(), "document"),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("zipped", [False, True])
def test_layouts(rows, tmp_path, content, layout, mark, zipped):
    data = mark + content
    assert rows(gzip.compress(data) if zipped else data, name="x.json.gz" if zipped else "x.json") == ["a", "b"]
    assert head(tmp_path / ("x.json.gz" if zipped else "x.json")).layout == layout


@pytest.mark.parametrize("text", ["a", "x" * 200_000])
@pytest.mark.parametrize("indent", [None, 1])
def test_one_record_is_a_line_or_a_document(rows, indent, text):
    assert rows(json.dumps(row(text), indent=indent).encode()) == [text]


def test_long_blank_beginnings(rows):
    assert rows(b"\n" * 200_000 + line("a")) == ["a"]


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_empty_files(rows, content):
    for name in ("auto", "openai"):
        with pytest.raises(UserError, match="the file is empty"):
            rows(content, name)


@pytest.mark.parametrize("content", [b"PAR1", b"name,text\n", b"\x00\x01", "{}".encode("utf-16"), b"5\n", b'"x"\n'])
def test_what_is_no_json_is_named(rows, content):
    with pytest.raises(UserError, match="x.json: not JSON"):
        rows(content)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_rows(tmp_path / "none.json")
    with pytest.raises(UserError, match="directory"):
        read_rows(tmp_path)


DEEP = b'{"messages": ' + b"[" * 2000 + b"]" * 2000 + b"}"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b'{"messages": [], "x": "\xff"}', "not UTF-8 at byte 23"),
        (b"\x00\x00\x00", "not JSON"),
        (line("b")[:-9], "not JSON"),
        (b'{"messages": ' + b"1" * 5000 + b"}", "an integer of more than 308 digits"),
        (DEEP, "nested more than 250 levels deep"),
        (b"5", "no list of messages"),
        (b"null", "no list of messages"),
        (b"{}", "no list of messages"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_line_is_rejected_and_the_others_are_read(rows, broken, reason, place):
    lines = [line("a"), line("b")]
    lines.insert(place, broken)
    texts = rows(b"\n".join(lines), "openai" if broken == b"{}" else "auto")
    assert texts[place].startswith("!")
    assert reason in texts.pop(place)
    assert texts == ["a", "b"]


def test_a_broken_first_line_does_not_hide_the_format(rows):
    assert rows(line("a")[:-9] + b"\n" + line("b"))[1:] == ["b"]
    assert rows(b'[{"a": 1}, ' + line("b") + b"]", "openai")[1:] == ["b"]


@pytest.mark.parametrize(
    "first", [b"[", b" [ ", b'[{"a": 1},', b"[" + line("x") + b",", b'[{"messages": [', b"[[", b"[\n{"]
)
@pytest.mark.parametrize("between", [b"\n", b"\r\n", b"\n\n", b"\n  "])
def test_rows_without_commas_are_lines_whatever_the_first_line_begins(rows, first, between):
    texts = rows(between.join([first, *(line(str(number)) for number in range(50)), b"]"]), "openai")
    assert [text for text in texts if text[0] != "!"] == [str(number) for number in range(50)]


@pytest.mark.parametrize(
    ("begin", "between", "end"),
    [
        (b"[\n", b",\n", b"\n]"),
        (b"[\n", b"\n,", b"\n]"),
        (b"[\n", b"\n,\n", b"\n]"),
        (b"[", b"\n\n,\n\n", b"]"),
        (b"[\n", b",\n", b"\n" + line("x") + b"\n" + line("x")),  # only the end of an array is broken
    ],
)
def test_arrays_of_a_row_per_line_are_arrays(rows, tmp_path, begin, between, end):
    texts = rows(begin + between.join(line(str(number)) for number in range(30)) + end)
    assert [text for text in texts if text[0] != "!"] == [str(number) for number in range(30)]
    assert head(tmp_path / "x.json").layout == "array"


@pytest.mark.parametrize("cut", [20_000, 200_000])
@pytest.mark.parametrize("length", [5, 100_000])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "begin", [b'{"messages": [', b'{"messages": [' + b"1, " * 25_000, b'["', b"[1, ", b"[1]\n[", b"x"]
)
def test_a_long_row_that_is_cut_off_is_one_reject(rows, begin, place, length, cut):
    """The layout follows from complete rows, however long the first of them is."""
    lines = [line(f"{number}" + "x" * length) for number in range(4)]
    lines.insert(place, begin + b'{"role": "user", "content": "' + b"y" * cut)
    texts = rows(b"\n".join(lines))
    assert [text[0] for text in texts if text[0] != "!"] == ["0", "1", "2", "3"]
    assert len(texts) == 5 + begin.count(b"\n")


def test_rejected_lines_are_kept_as_they_were(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(line("a") + b'\n{"b\xff": "\xc3\xa9"\r\n')
    _, rejected = read_rows(path)
    assert isinstance(rejected, Reject)
    assert (rejected.file, rejected.row, rejected.kind, rejected.raw) == ("x.jsonl", 1, "not UTF-8", '{"b\\xff": "é"')


@pytest.mark.parametrize("end", [b"", b"]", b",", b', {"messages": [', b', {"messages" 5}]', b"] x", b', "\xff"]'])
def test_a_broken_array_is_read_up_to_there(rows, end):
    texts = rows(b"[" + line("a") + b"," + line("b") + end)
    assert texts[:2] == ["a", "b"]
    assert [text[:31] for text in texts[2:]] == ["!the document breaks off here ("] * (end != b"]")
    assert all(text.endswith("what follows is not read") for text in texts[2:])


@pytest.mark.parametrize("layout", ["{}\n%s\n%s\n", "[{}, %s, %s]", "[{},\n%s,\n%s\n]"])
def test_an_empty_first_row_does_not_decide_the_format(rows, layout):
    assert rows(layout.encode() % (line("a"), line("b")))[1:] == ["a", "b"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "1" * 30])
def test_python_writes_numbers_into_arrays_that_others_do_not_read(rows, value):
    odd = line("b").replace(b'"messages"', b'"seed": ' + value.encode() + b', "messages"')
    assert rows(b"[" + line("a") + b"," + odd + b"," + line("c") + b"]") == ["a", "b", "c"]


def test_an_integer_that_is_too_long_is_named(rows):
    odd = line("b", seed=0).replace(b'"seed": 0', b'"seed": ' + b"1" * 400)
    assert rows(b"[" + line("a") + b"," + odd + b"]")[1:] == [
        "!the document breaks off here (parse error: integer overflow; an integer of more than 308 digits); "
        "what follows is not read"
    ]


def test_deep_values_are_rejected_where_they_cannot_be_kept(rows):
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    lines, array = line("a") + b"\n" + line("b", seed=deep), json.dumps([row("a"), row("b", seed=deep)]).encode()
    for content in (lines, array):
        first, second = rows(content)
        assert (first, "levels deep" in second) == ("a", True)


def test_observations_of_megabytes(rows):
    text = "é\u2028" * 1_000_000
    content = json.dumps(row(text), ensure_ascii=False).encode()
    assert len(content) > 5_000_000
    assert rows(content + b"\n" + line("b")) == [text, "b"]
    assert rows(content) == [text]
    assert rows(b"[" + content + b"]") == [text]


def test_other_line_separators_end_no_line(rows):
    text = "a\u2028b\u2029c\x85d\x0be"
    content = json.dumps(row(text), ensure_ascii=False).encode()
    assert rows(content + b"\n" + content) == [text, text]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("top", [b"[]", b"{}", b"[[], 5, null]", b'{\n"a": [1]}', b"\x00\n{}", b"{}\n{}"])
def test_other_values_at_the_top(tmp_path, name, top):
    (tmp_path / "x.json").write_bytes(top)
    try:
        rows = list(read_rows(tmp_path / "x.json", name))
    except UserError as error:
        assert "x.json" in str(error)  # noqa: PT017 - either is right
    else:
        assert all(isinstance(row, Reject) for row in rows)


@pytest.mark.parametrize("cut", [5, 60, -3])
def test_broken_gzip(tmp_path, cut):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(line(str(n)) for n in range(50)))[:cut])
    try:
        records = list(read_rows(path, "openai"))
    except UserError as error:
        assert "x.jsonl.gz" in str(error)  # noqa: PT017 - either is right
    else:
        assert isinstance(records[-1], Reject)


def test_a_document_of_rows_breaks_off(tmp_path):
    simulations = [{"id": n, "task_id": n, "messages": row(str(n))["messages"]} for n in range(3)]
    document = json.dumps({"info": {}, "tasks": [], "simulations": simulations}, indent=1)
    path = tmp_path / "x.json"
    path.write_text(document[:-150])
    records = list(read_rows(path))
    assert [type(result) for result in records] == [Trajectory, Trajectory, Reject]


def test_devices_and_pipes_are_no_files(tmp_path):
    """/dev/full never ends, and nobody writes into the pipe: neither may be waited for."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (Path("/dev/full"), Path("/dev/null"), tmp_path / "pipe.jsonl"):
        with pytest.raises(
            UserError, match="a device or a pipe; it is read more than once, so write its text to a file$"
        ):
            head(path)
