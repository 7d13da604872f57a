"""The scalars in TensorBoard's event files, read without TensorBoard, which brings a web server and gRPC with it.

A file is a sequence of records: a length, its checksum, the bytes, their checksum. The bytes are the protocol buffer `Event`, of
which a few fields are read. The file of a run that is going on, or was killed, ends with half a record. Whatever is in a file,
the time to read it is linear in its length, and one record at a time is in memory.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from wm_plugin.errors import UserError

LARGEST = 1 << 22  # bytes of a record that may hold scalars; larger ones are images, graphs and texts
_MASK = 0xA282EAD8  # TensorFlow's, of checksums
_FLOAT, _DOUBLE = 1, 2  # types of a tensor

Scalar = tuple[str, int, float]  # its tag, step and value
Field = int | bytes


class Damaged(ValueError):
    """Bytes that are no record or no protocol buffer."""


def scalars(path: Path) -> Iterator[Scalar]:
    """The scalars of a file, in order. What comes after a damaged place is not read.

    Raises:
        UserError: it cannot be read, or is no event file.
        Damaged: the place, after the scalars before it.
    """
    try:
        with path.open("rb") as file:
            for number, record in enumerate(_records(file)):
                try:
                    yield from _of_event(record)
                except (Damaged, struct.error):
                    raise Damaged(f"record {number}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _records(file: IO[bytes]) -> Iterator[bytes]:
    """Raises Damaged where a length has not its checksum. A record that is cut, by the end of the file, is none."""
    size = os.fstat(file.fileno()).st_size
    while len(head := file.read(12)) == 12:
        length, check = struct.unpack("<QI", head)
        if _masked(_checksum(head[:8])) != check:
            raise Damaged(f"byte {file.tell() - 12}")
        if length > size - file.tell():
            return
        if length > LARGEST:
            file.seek(length + 4, 1)
            continue
        record = file.read(length)
        if len(file.read(4)) < 4:
            return
        yield record


def _of_event(record: bytes) -> Iterator[Scalar]:
    step, summaries = 0, []
    for number, value in _fields(record):
        if number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                tag, scalar = _of_value(value)
                if scalar is not None:
                    yield tag, step, scalar


def _of_value(record: bytes) -> tuple[str, float | None]:
    """The tag and the number of a value; None where it is something else, such as a histogram."""
    tag, scalar = "", None
    for number, value in _fields(record):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value.decode(errors="replace")
        elif number == 2 and len(value) == 4:
            (scalar,) = struct.unpack("<f", value)
        elif number == 8:
            scalar = _of_tensor(value)
    return tag, scalar


def _of_tensor(record: bytes) -> float | None:
    """The number of a tensor that holds one."""
    kind, numbers = 0, b""
    for number, value in _fields(record):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):  # raw bytes, floats, doubles
            numbers = value
    form = {(_FLOAT, 4): "<f", (_DOUBLE, 8): "<d"}.get((kind, len(numbers)))
    return float(struct.unpack(form, numbers)[0]) if form else None


def _fields(record: bytes) -> Iterator[tuple[int, Field]]:
    """(number, value) of each field of a protocol buffer: an integer for a varint, else its bytes."""
    place = 0
    while place < len(record):
        key, place = _varint(record, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(record, place)
            yield key >> 3, value
            continue
        size, place = _varint(record, place) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), place)
        if size < 0 or place + size > len(record):
            raise Damaged(str(place))
        yield key >> 3, record[place : place + size]
        place += size


def _varint(record: bytes, place: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(record[place : place + 10]):
        value |= (byte & 127) << 7 * number
        if byte < 128:
            return value & (1 << 64) - 1, place + number + 1
    raise Damaged(str(place))


def _table() -> tuple[int, ...]:
    numbers = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        numbers.append(byte)
    return tuple(numbers)


_TABLE = _table()


def _checksum(data: bytes) -> int:
    """CRC-32C."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


def _masked(value: int) -> int:
    return (value >> 15 | value << 17 & 0xFFFFFFFF) + _MASK & 0xFFFFFFFF
