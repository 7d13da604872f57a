"""Read tensors of safetensors files in pieces: models of any size in little memory, without running any of their code."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from wm_plugin.errors import UserError, shown
from wm_plugin.untrusted import loads

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@dataclass(frozen=True)
class Place:
    """A tensor in a file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def floating(self) -> bool:
        """Whether its numbers are floating-point ones that are compared."""
        return self.dtype in DTYPES


def tensors_of(model: str | Path) -> dict[str, Place]:
    """Find the tensors of a model by name.

    Args:
        model: a folder with `model.safetensors` or an index of several files; or a safetensors file, or an index.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        path = _in_folder(path)
    if path.suffix != ".json":
        return _header(path)
    files = _files_of(path)
    headers = {name: _header(path.parent / name) for name in sorted(set(files.values()))}
    for tensor, name in files.items():
        if tensor not in headers[name]:
            raise UserError(f"{path}: {shown(tensor)} is not in {name}, where the index has it")
    return {tensor: headers[name][tensor] for tensor, name in files.items()}


def pieces(place: Place, size: int) -> Iterator[Tensor]:
    """Yield a tensor's numbers in order, in pieces of `size` of them. The file is mapped: its pages are not kept in memory."""
    with _opened(place.file) as file:
        numbers = file.get_tensor(place.name).reshape(-1)
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size]


def settings_of(model: str | Path) -> dict[str, Any]:
    """Return the `config.json` beside a model's weights; empty where none can be read, since other tools write none."""
    path = Path(model).expanduser()
    path = (path if path.is_dir() else path.parent) / "config.json"
    try:
        value = loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _header(path: Path) -> dict[str, Place]:
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    return {name: Place(path, name, part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error})") from None


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
    """Return the file of each tensor that an index names."""
    try:
        index = loads(path.read_bytes())
    except (OSError, ValueError):
        index = None
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise UserError(f"{path}: no index of safetensors files (it has no weight_map)")
    return files
