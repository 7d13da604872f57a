"""Ten thousand broken rows of every format: each is read or rejected with file, row and reason, and nothing else happens."""

import copy
import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.formats import DOCUMENTS
from wm_plugin.data import Trajectory
from wm_plugin.data.readers import FORMATS, read_rows
from wm_plugin.data.readers.base import Reject
from wm_plugin.errors import UserError

LINES, DOCUMENTS_OF_ONE = 9000, 1000
BY_ROWS = [name for name in FORMATS if isinstance(DOCUMENTS[name], list)]
JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1.5,
    10**30,
    1e308,
    "",
    "\x00",
    "\ud800",
    "tool",
    [],
    [5],
    {},
    {"a": None},
    [[{}]],
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place inside a value: the container and the key."""
    spots, stack = [], [value]
    while stack:
        item = stack.pop()
        for key, child in list(item.items() if isinstance(item, dict) else enumerate(item)):
            spots.append((item, key))
            if isinstance(child, dict | list):
                stack.append(child)
    return spots


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def change(rng: random.Random, value: Any) -> None:
    """One change inside a value: another type, a key less, nesting, a huge number, roles or messages in another order."""
    spots = places(value)
    if not spots:
        return
    container, key = rng.choice(spots)
    kind = rng.randrange(7)
    if kind == 0:
        del container[key]
    elif kind == 1:
        container[key] = nest(rng.choice([10, 198, 202, 400]))
    elif kind == 2 and isinstance(container, list):
        rng.shuffle(container)
    elif kind == 3 and isinstance(container, list):
        container.insert(rng.randrange(len(container)), copy.deepcopy(container[key]))
    elif kind == 4 and isinstance(container, dict) and "role" in container:
        container["role"] = rng.choice(["tool", "user", "assistant", "system", "function", "ghost"])
    else:
        container[key] = copy.deepcopy(rng.choice(JUNK))


def garble(rng: random.Random, line: bytes) -> bytes:
    """One change of bytes: a flip, a cut, NUL, invalid UTF-8, a key twice, nesting of 1000, a number of 5000 digits."""
    place = rng.randrange(len(line))
    kind = rng.randrange(7)
    if kind == 0:
        return line[:place] + bytes([line[place] ^ (1 << rng.randrange(8))]) + line[place + 1 :]
    if kind == 1:
        return line[:place]
    inserted = (
        b"\x00",
        b"\xff",
        b'{"role": "user", "role": 5, ',
        b'"x": ' + b"[" * 1000 + b"]" * 1000 + b", ",
        b"1" * 5000,
    )
    return line[:place] + inserted[kind - 2] + line[place:]


def mutated(rng: random.Random, row: Any, quiet: bool = False) -> bytes:
    text = json.dumps(row)
    if quiet or rng.random() < 0.6:
        row = json.loads(text)
        for _ in range(rng.randint(1, 3)):
            change(rng, row)
        text = json.dumps(row)
    line = text.encode()
    return line if quiet or rng.random() < 0.5 else garble(rng, line)


def check(path: Path, name: str, expected: int | None) -> Counter[str]:
    """Read a file, and count its rows (a row may give several trajectories)."""
    rows, outcomes = set(), Counter[str]()
    number = -1
    for row in read_rows(path, name):
        if isinstance(row, Reject):
            assert row.file == path.name
            assert row.reason
            assert row.row not in rows
            outcomes["rejected"] += row.row not in rows
            rows.add(row.row)
        else:
            number = row.source.row if row.source and name != "own" else number + 1
            outcomes["read"] += name == "own" or number not in rows
            rows.add(number) if name != "own" else None
            assert Trajectory.model_validate(json.loads(row.to_bytes())) == row
    assert expected is None or outcomes.total() == expected
    return outcomes


@pytest.mark.parametrize("name", BY_ROWS)
def test_ten_thousand_broken_lines(tmp_path, name):
    rng = random.Random(name)
    count = LINES // len(BY_ROWS)
    lines = [mutated(rng, DOCUMENTS[name][0]).replace(b"\n", b" ").replace(b"\r", b" ") for _ in range(count)]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([json.dumps(DOCUMENTS[name][0]).encode(), *lines]))
    outcomes = check(tmp_path / "x.jsonl", name, 1 + sum(not line.isspace() and line != b"" for line in lines))
    assert min(outcomes["read"], outcomes["rejected"]) > count / 20


@pytest.mark.parametrize("name", BY_ROWS)
def test_broken_rows_of_an_array(tmp_path, name):
    """Whose bytes are JSON: in an array no broken row can be told from the next."""
    rng = random.Random(name)
    rows = [mutated(rng, DOCUMENTS[name][0], quiet=True) for _ in range(LINES // len(BY_ROWS) // 4)]
    (tmp_path / "x.json").write_bytes(b"[" + b",".join([json.dumps(DOCUMENTS[name][0]).encode(), *rows]) + b"]")
    check(tmp_path / "x.json", name, 1 + len(rows))


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in BY_ROWS])
def test_broken_documents(tmp_path, name):
    rng = random.Random(name)
    outcomes = Counter[str]()
    count = DOCUMENTS_OF_ONE // (len(FORMATS) - len(BY_ROWS))
    for _ in range(count):
        (tmp_path / "1_x.json").write_bytes(mutated(rng, DOCUMENTS[name]) or b"{}")
        try:
            outcomes += check(tmp_path / "1_x.json", name, None)
        except UserError as error:  # not even its beginning is JSON
            assert str(tmp_path / "1_x.json") in str(error)  # noqa: PT017 - not all are refused
            outcomes["refused"] += 1
    assert min(outcomes["read"], outcomes["rejected"]) > count / 20


@pytest.mark.slow
def test_an_observation_of_fifty_megabytes(tmp_path):
    text = "é\\n\u2028" * 7_300_000
    messages = [{"role": "assistant", "content": "go"}, {"role": "user", "content": text}]
    (tmp_path / "x.jsonl").write_bytes(json.dumps({"messages": messages}, ensure_ascii=False).encode())
    (row,) = read_rows(tmp_path / "x.jsonl")
    assert isinstance(row, Trajectory)
    assert row.turns[0].observations[0].text == text


@pytest.mark.parametrize("name", BY_ROWS)
def test_a_zipped_file_that_breaks_off(tmp_path, name):
    rng = random.Random(0)
    line = json.dumps(DOCUMENTS[name][0]).encode() + b"\n"
    zipped = gzip.compress(
        b"".join(rng.randbytes(40).hex().encode().join([b'{"x": "', b'", ' + line[1:]]) for _ in range(2000))
    )
    (tmp_path / "x.jsonl.gz").write_bytes(zipped[: len(zipped) // 2])
    *_, last = read_rows(tmp_path / "x.jsonl.gz", name)
    assert isinstance(last, Reject)
    assert "breaks off here" in last.reason


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "top", [b"[]", b"{}", b"[[], 5, null]", b'{\n"a": [1]}', b"[{}]", b"\x00\n{}", b"5", b"{}\n{}"]
)
def test_other_values_at_the_top(tmp_path, name, top):
    (tmp_path / "x.json").write_bytes(top)
    try:
        rows = list(read_rows(tmp_path / "x.json", name))
    except UserError as error:
        assert "x.json" in str(error)  # noqa: PT017 - either is right
    else:
        assert all(isinstance(row, Reject) for row in rows)
