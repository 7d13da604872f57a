"""Several processes write the same as one, byte for byte."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from support.slow import SLOW, slowly
from wm_plugin.cli.main import main
from wm_plugin.data import Trajectory, files, parallel
from wm_plugin.data.readers import parts, read_part, read_rows
from wm_plugin.data.write import write
from wm_plugin.errors import UserError


def line(number: int) -> bytes:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": f"é {number}"}]
    return json.dumps({"messages": messages, "id": number}, ensure_ascii=number % 2 == 0).encode()


LINES = b"\n".join(
    b"" if n % 7 == 0 else b'{"messages": 5}' if n % 11 == 0 else b'{"mess' if n % 13 == 0 else line(n)
    for n in range(200)
)


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """A file of each layout; rows are rejected in all of them."""
    contents = {
        "a.jsonl": LINES,
        "b.jsonl": b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n") + b"\n\n",
        "c.jsonl.gz": gzip.compress(LINES),
        "d.json": b"[" + b",".join([line(1), b"{}", line(2)]) + b"]",
        "e.json": json.dumps({"x": "Room.\n> go\nHall."}).encode(),
        "f.jsonl": b'{"messages": 5}\n' * 3 + line(3)[:-4],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return [tmp_path / name for name in contents if name != "f.jsonl"]


def as_values(rows: Any) -> list[Any]:
    return [row.to_bytes() if isinstance(row, Trajectory) else row for row in rows]


@pytest.mark.parametrize("size", [1, 100, 1000, 10**9])
def test_parts_are_the_file(sources, size):
    for source in sources:
        cut = list(parts(source, size=size))
        assert [row for part in cut for row in as_values(read_part(part))] == as_values(read_rows(source))
        assert len(cut) == 1 or source.name in ("a.jsonl", "b.jsonl")
        if size == 100 and source.name == "a.jsonl":
            assert len(cut) > 50


def test_ranges_are_the_file(sources):
    whole = sources[1].read_bytes()
    ranges = list(files.ranges(sources[1], 50))
    assert ranges[0][0] == 3  # after the byte order mark
    assert b"".join(whole[start:end] for start, end, _ in ranges) == whole[3:]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_is_written_is_the_same(sources, tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = tmp_path / "one" / f"x{suffix}", tmp_path / "two" / f"x{suffix}"
    counts = write((row for source in sources for row in read_rows(source)), one)
    many = parallel.convert(sources, two, workers=2, size=2000)
    assert json.dumps(many.as_dict()) == json.dumps(counts.as_dict())
    assert counts.rejected.total() > 10
    for name in (one.name, "x.rejects.jsonl"):
        assert (one.parent / name).read_bytes() == (two.parent / name).read_bytes()
    assert sorted(path.name for path in two.parent.iterdir()) == sorted([two.name, "x.rejects.jsonl"])


def test_strict_stops_at_the_same_row(sources, tmp_path):
    out = tmp_path / "out" / "x.jsonl"
    out.parent.mkdir()
    with pytest.raises(UserError, match="a.jsonl, row 9: no list of messages"):
        parallel.convert(sources, out, workers=2, size=500, strict=True)
    with pytest.raises(UserError, match="f.jsonl: of no known format"):
        parallel.convert([sources[0], tmp_path / "f.jsonl"], out, workers=2)
    assert list(out.parent.iterdir()) == []


def test_an_error_ends_what_still_runs(sources, tmp_path):
    broken, start = tmp_path / "f.jsonl", time.monotonic()
    with pytest.raises(UserError, match="f.jsonl, row 0"):
        parallel.convert(
            [broken, sources[0]], tmp_path / "out.jsonl", workers=2, format="openai", strict=True, complete=slowly
        )
    assert time.monotonic() - start < SLOW / 2


def test_the_command_takes_workers(sources, tmp_path, capsys):
    results = []
    command = ["data", "convert", *map(str, sources), "--out", str(tmp_path / "x.jsonl"), "--json", "--workers"]
    for workers in "12":
        assert main([*command, workers]) == 0
        results.append((capsys.readouterr().out, (tmp_path / "x.jsonl").read_bytes()))
    assert results[0] == results[1]
    assert main(["data", "convert", str(sources[0]), "--out", str(tmp_path / "x.jsonl"), "--workers", "0"]) == 2
    assert "--workers is 0" in capsys.readouterr().err
