"""A CPU as one of verl's platforms, through verl's own plug-in interface, so that its FSDP engine runs without a GPU.

Import it before anything else of verl. Nothing of verl is patched; what has no meaning on a CPU does nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import set_platform

__all__ = ["CpuPlatform"]


def _nothing(*args: Any, **kwargs: Any) -> int:
    return 0


def _device_module() -> ModuleType:
    """`torch.cpu` with the memory figures of an accelerator, all 0."""
    module = ModuleType("cpu_device")
    module.__dict__.update(vars(torch.cpu))
    for name in (
        "empty_cache",
        "manual_seed",
        "manual_seed_all",
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
        "set_device",
        "synchronize",
    ):
        setattr(module, name, _nothing)
    module.mem_get_info = lambda *args: (0, 0)  # type: ignore[attr-defined]
    return module


class CpuPlatform(PlatformCUDA):  # type: ignore[misc]
    """verl's CUDA platform with the answers of a CPU."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        """A CPU is always there."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """A CPU is always there."""
        return True

    def current_device(self) -> str:
        """What `torch.Tensor.to` takes."""
        return "cpu"

    def device_count(self) -> int:
        """One."""
        return 1

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = _nothing

    def communication_backend_name(self) -> str:
        """What torch.distributed has on a CPU."""
        return "gloo"

    def nvtx_range(self, msg: str) -> Any:
        """No ranges to mark."""
        return nullcontext()


set_platform(CpuPlatform())
