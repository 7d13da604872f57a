"""Tensors in safetensors files, read in pieces: models of any size in little memory, and without running any of their code.

Headers and indexes are what others wrote: their size, their numbers and the names of files in them are checked before anything is
read, and no two tensors of a file share bytes, so that reading all of them takes no longer than reading the file.
"""

import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from wm_plugin.errors import UserError, shown
from wm_plugin.untrusted import LARGEST, loads

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_DIMENSIONS, _LARGEST_DIMENSION = 16, 1 << 62


@dataclass(frozen=True)
class Place:
    """Where a tensor lies.

    Attributes:
        file: its file.
        start, end: its bytes in the file.
        dtype: the name that the file gives it, such as "BF16"; one that is not in `DTYPES` cannot be read.
    """

    file: Path
    start: int
    end: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def floating(self) -> bool:
        """Whether its numbers are floating-point ones that can be read."""
        return self.dtype in DTYPES and DTYPES[self.dtype].is_floating_point


def tensors_of(model: str | Path) -> dict[str, Place]:
    """The tensors of a model by name.

    Args:
        model: a folder with `model.safetensors` or an index of several files; or a safetensors file, or an index.

    Raises:
        UserError: there is no such model, it has other weights alone, or a file is damaged.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        path = _in_folder(path)
    if path.suffix != ".json":
        return header(path)
    files = _files_of(path)
    headers = {name: header(path.parent / name) for name in sorted(set(files.values()))}
    places: dict[str, Place] = {}
    for tensor, name in files.items():
        if tensor not in headers[name]:
            raise UserError(f"{path}: {shown(tensor)} is not in {name}, where the index has it")
        places[tensor] = headers[name][tensor]
    return places


def header(path: Path) -> dict[str, Place]:
    """The tensors of one file by name.

    Raises:
        UserError: it cannot be read, or is no safetensors file, or a damaged one.
    """
    with _opened(path) as file:
        length = os.fstat(file.fileno()).st_size
        size = int.from_bytes(file.read(8), "little")
        if length < 8 or size > length - 8:
            raise UserError(f"{path}: no safetensors file, or only a part of one")
        if size > LARGEST:
            raise UserError(f"{path}: its header is larger than {LARGEST:,} bytes")
        try:
            entries = loads(file.read(size), strict=True)
        except ValueError:
            entries = None
    if not isinstance(entries, dict):
        raise UserError(f"{path}: no safetensors file (its header is no JSON object)")
    entries.pop("__metadata__", None)
    places = {name: _place(path, name, entry, 8 + size, length) for name, entry in entries.items()}
    end = 0
    for place in sorted(places.values(), key=lambda place: (place.start, place.end)):
        if place.start < end:
            raise UserError(f"{path}: damaged, two tensors share bytes")
        end = place.end
    return places


def pieces(place: Place, size: int) -> Iterator[Tensor]:
    """A tensor's numbers in order, in pieces of `size` of them; each is valid until the next one is taken.

    Raises:
        UserError: the file cannot be read, or ends too early.
    """
    dtype = DTYPES[place.dtype]
    buffer = bytearray(min(size, place.size) * dtype.itemsize)
    view, left = memoryview(buffer), place.end - place.start
    with _opened(place.file) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), place.start, left, os.POSIX_FADV_SEQUENTIAL)
        file.seek(place.start)
        while left:
            part = view[: min(left, len(buffer))]
            if not _filled(file, part):
                raise UserError(f"{place.file}: ends in the middle of a tensor")
            left -= len(part)
            yield torch.frombuffer(part, dtype=dtype)


def settings_of(model: str | Path) -> dict[str, Any]:
    """The `config.json` beside a model's weights; empty where there is none that can be read."""
    path = Path(model).expanduser()
    path = (path if path.is_dir() else path.parent) / "config.json"
    try:
        with _opened(path) as file:
            value = loads(file.read(LARGEST))
    except ValueError:  # a UserError, too: other tools write none
        return {}
    return value if isinstance(value, dict) else {}


def _in_folder(folder: Path) -> Path:
    for name in (INDEX, SINGLE):
        if (folder / name).is_file():
            return folder / name
    there = sorted(path.name for path in folder.glob("*.safetensors"))
    if "adapter_model.safetensors" in there:
        raise UserError(f"{folder}: an adapter alone; merge it into its model, and name that folder")
    if len(there) == 1:
        return folder / there[0]
    if there:
        raise UserError(f"{folder}: has {len(there)} safetensors files but no {INDEX}; name one of them")
    raise UserError(f"{folder}: has no safetensors file; write the model by save_pretrained")


def _files_of(path: Path) -> dict[str, str]:
    """The file of each tensor, as an index says. Names that lead elsewhere are refused."""
    with _opened(path) as file:
        try:
            index = loads(file.read(LARGEST + 1))
        except ValueError:
            index = None
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files:
        raise UserError(f"{path}: no index of safetensors files (it has no weight_map)")
    for name in files.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{path}: {shown(name)} is no safetensors file beside the index")
    return files


def _place(path: Path, name: str, entry: Any, start: int, length: int) -> Place:
    fields: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
    dtype: Any = fields.get("dtype")
    shape, offsets = (_whole(fields.get(key)) for key in ("shape", "data_offsets"))
    if not isinstance(dtype, str) or shape is None or len(shape) > _DIMENSIONS or offsets is None or len(offsets) != 2:
        raise UserError(f"{path}: damaged, {shown(name)} has no dtype, shape and place that can be read")
    begin, end = offsets
    if not begin <= end <= length - start:
        raise UserError(f"{path}: damaged or cut, {shown(name)} lies beyond its end")
    place = Place(path, start + begin, start + end, dtype, tuple(shape))
    if dtype in DTYPES and place.size * DTYPES[dtype].itemsize != end - begin:
        raise UserError(f"{path}: damaged, {shown(name)} has {end - begin:,} bytes for the shape {shape}")
    return place


def _whole(value: Any) -> list[int] | None:
    """A list of numbers that count something; None if it is none."""
    fits = isinstance(value, list) and all(type(one) is int and 0 <= one < _LARGEST_DIMENSION for one in value)
    return value if fits else None


def _opened(path: Path) -> IO[bytes]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path}: no file")
        return path.open("rb", buffering=0)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _filled(file: IO[bytes], part: memoryview) -> bool:
    """Whether the file had enough for the whole part; one read may give less."""
    done = 0
    while done < len(part):
        count = file.readinto(part[done:])  # type: ignore[attr-defined]
        if not count:
            return False
        done += count
    return True
