"""What verl asks of `torch.cuda`, for a device without a memory or a clock of its own."""

from torch import get_rng_state as get_rng_state
from torch import set_rng_state as set_rng_state
from torch.cpu import current_stream as current_stream
from torch.cpu import is_available as is_available
from torch.cpu import synchronize as synchronize


def _zero(*_args, **_options) -> int:
    return 0


max_memory_allocated = max_memory_reserved = memory_allocated = memory_reserved = _zero


def _nothing(*_args, **_options) -> None: ...


empty_cache = ipc_collect = set_device = _nothing


def get_device_name(*_args) -> str:
    return "cpu"


def mem_get_info(*_args) -> tuple[int, int]:
    return 0, 0
