"""The platform `cpu` for verl's registry of platforms."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform import PlatformBase


def _zero(*_args: Any, **_options: Any) -> int:
    return 0


def _nothing(*_args: Any, **_options: Any) -> None: ...


# What verl asks of `torch.cuda`, for a device without memory or a clock of its own.
_DEVICE = SimpleNamespace(
    current_stream=torch.cpu.current_stream,
    is_available=torch.cpu.is_available,
    synchronize=torch.cpu.synchronize,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    get_device_name=lambda *_: "cpu",
    mem_get_info=lambda *_: (0, 0),
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"), _zero),
    **dict.fromkeys(("empty_cache", "ipc_collect", "set_device"), _nothing),
)


class CpuPlatform(PlatformBase):
    """Chosen by VERL_PLATFORM=cpu alone: a driver without a GPU may belong to workers that have some."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"  # verl counts GPUs and NPUs only; the group `wm: cpu` tells Ray that there are some

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None: ...
