"""Parquet files that are damaged or lie about themselves, and what reads them in a process of its own."""

import random
import sys
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.errors import UserError

ROWS = [
    {
        "messages": [
            {"role": "user", "content": "x" * number, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
        ],
        "number": number,
        "half": None if number % 2 else 1.5,
    }
    for number in range(50)
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"compression": "none"},
    {"compression": "zstd", "data_page_version": "2.0"},
    {"use_dictionary": False, "compression": "gzip"},
    {"store_schema": False, "row_group_size": 10},
]


# In the schema of a footer: a field that may be null, and one of which nothing tells that. Where pyarrow looks at the histogram
# of a column's levels, which then has another length, it ends the process.
NULLABLE, UNTOLD = b"%\x02\x18", b"&\x02\x18"


def originals(path: Path) -> list[bytes]:
    """Small files, written in several ways."""
    import pyarrow
    import pyarrow.parquet

    texts = []
    for options in OPTIONS:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, **options)
        texts.append(path.read_bytes())
    return texts


def damaged(draw: random.Random, original: bytes) -> bytes:
    """A file with some bytes changed, left out or added; most of them in its footer."""
    data = bytearray(original)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(draw.choice((1, 1, 2, 5))):
        place = draw.randrange(max(min(footer, len(data) - 8), 0) if draw.random() < 0.7 else 0, len(data))
        how = draw.random()
        if how < 0.1:
            data = data.replace(NULLABLE, UNTOLD, draw.randint(1, 5))
        elif how < 0.6:
            data[place] = draw.randrange(256)
        elif how < 0.8:
            data[place] ^= 1 << draw.randrange(8)
        else:
            data[place : place + 1] = draw.randbytes(draw.randrange(4))
    return bytes(data)


def read(path: Path) -> None:
    """Read a file to its end. Whatever is wrong with it is an error of ours."""
    errors: list[str] = []
    try:
        for record in files.records(path, files.head(path)):
            errors += [str(record.error)] if record.error is not None else []
    except UserError as error:
        errors.append(str(error))
    assert "\n" not in "".join(errors)


def attack_damaged(path: Path) -> None:
    """What `test_fuzz.py` runs in a process of its own. The file that ended the process is left at `path`."""
    from support.fuzz import attack

    texts = originals(path)

    def once(draw: random.Random) -> None:
        path.write_bytes(damaged(draw, draw.choice(texts)))
        read(path)

    attack(once)


def read_damaged(path: Path, count: int) -> None:
    """A few such files, always the same ones."""
    texts = originals(path)
    for text in texts:
        assert NULLABLE in text
        path.write_bytes(text.replace(NULLABLE, UNTOLD, 3))
        read(path)
    for seed in range(count):
        draw = random.Random(seed)
        path.write_bytes(damaged(draw, draw.choice(texts)))
        read(path)


def lie(path: Path, number: int, claim: int) -> None:
    """Put another number into the footer, wherever it holds this one."""
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    true = varint(number)
    assert true in data[footer:]
    path.write_bytes(data[:footer] + data[footer:].replace(true, varint(claim, len(true))))


def varint(number: int, length: int = 0) -> bytes:
    """A number in Thrift's compact protocol, by any number of bytes."""
    number *= 2
    pieces = bytearray()
    while number > 127 or len(pieces) + 1 < length:
        pieces.append(number & 127 | 128)
        number >>= 7
    return bytes([*pieces, number])


if __name__ == "__main__":
    path = Path(sys.argv[1])
    attack_damaged(path) if len(sys.argv) == 2 else read_damaged(path, int(sys.argv[2]))
