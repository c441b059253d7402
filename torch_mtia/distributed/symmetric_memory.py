"""What torch.distributed._symmetric_memory has for CUDA devices, on ours: products that overlap with collectives, which
compiled code calls (torch._inductor.config._micro_pipeline_tp). The rest is in csrc/distributed/SymmetricMemory.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_mtia import torch_version
from torch_mtia.backend import device_module, device_type, dispatch_key
from torch_mtia.scopes import Overlay, copies, with_globals

__all__ = ["inside_the_memory", "on_the_device", "register"]

_OPERATORS = {
    "_low_contention_all_gather": "_low_contention_all_gather",
    "_low_contention_reduce_scatter": "_low_contention_reduce_scatter",
    "fused_all_gather_matmul": "_fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul": "_fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter": "_fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter": "_fused_scaled_matmul_reduce_scatter",
    "get_remote_tensors": "_get_remote_tensors_default",
}


def register(module: ModuleType) -> None:
    """Has copies of upstream's functions, of torch.distributed._symmetric_memory, be the operators' kernels for the
    device: they use its streams and events in place of torch.cuda's."""
    names: dict[str, Any] = {"torch": _torch()}
    if torch_version.TORCH < (2, 14):  # from then on it uses torch.accelerator
        names["Work"] = type("Work", (module.Work,), {"__init__": on_the_device(module.Work.__init__)})
    kernels = copies(module, _OPERATORS.values(), {"cuda", "Work"}, **names)
    for operator, function in _OPERATORS.items():
        module.lib.impl(operator, kernels[function], dispatch_key())


def on_the_device(function: Any) -> Any:
    """Returns a copy of upstream's function that uses the device where that uses CUDA."""
    return with_globals(function, torch=_torch())


def _torch() -> Overlay:
    from torch_mtia import streams

    return Overlay(torch, cuda=Overlay(device_module(), _sleep=streams.sleep), device=_device)


def _device(name: str) -> torch.device:
    return torch.device(name.replace("cuda", device_type()))


def inside_the_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    """get_buffer and get_signal_pad of a handle, which check ranks and offsets."""

    def tensor_of(self: Any, rank: int, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != device_type():
            return original(self, rank, *args, **kwargs)
        if not 0 <= rank < self.world_size:
            raise ValueError(f"expected rank to be a rank of the group, below {self.world_size}, got {rank}")
        offset = kwargs.get("storage_offset", args[2] if len(args) > 2 else 0)
        if offset < 0:
            raise ValueError(f"expected storage_offset to be 0 or more, got {offset}")
        return original(self, rank, *args, **kwargs)

    tensor_of.__name__ = original.__name__
    return tensor_of
