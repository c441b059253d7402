"""What torch.distributed._symmetric_memory has for CUDA devices, on ours: products that overlap with collectives, which
compiled code calls (torch._inductor.config._micro_pipeline_tp). The rest is in csrc/distributed/SymmetricMemory.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch_mtia import torch_version
from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.backend import dispatch_key

__all__ = ["FUNCTIONS_OF_CUDA", "inside_the_memory", "register"]

FUNCTIONS_OF_CUDA = {
    **dict.fromkeys(
        (
            "_fused_all_gather_matmul_last_gather_dim_impl",
            "_get_backend_stream",
            "_low_contention_all_gather",
            "_low_contention_reduce_scatter_with_symm_mem_input",
            "_low_contention_reduce_scatter_with_workspace",
            "_pipelined_all_gather_and_consume_last_dim",
            "_pipelined_multi_all_gather_and_consume",
            "get_symm_mem_workspace",
        ),
        torch_version.before(2, 14),  # from then on they use torch.accelerator
    ),
    "_pipelined_produce_and_all2all": SUPPORTED_TORCH,
}
"""Those that the operators below call and that name torch.cuda, with the versions of PyTorch in which they do: a gate
turns them to the device's module."""

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
    """Has upstream's functions, of torch.distributed._symmetric_memory, be the operators' kernels for the device."""
    for operator, function in _OPERATORS.items():
        module.lib.impl(operator, getattr(module, function), dispatch_key())


def inside_the_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    """get_buffer and get_signal_pad of a handle, which check ranks and offsets."""

    def tensor_of(self: Any, rank: int, *args: Any, **kwargs: Any) -> Any:
        if not 0 <= rank < self.world_size:
            raise ValueError(f"expected rank to be a rank of the group, below {self.world_size}, got {rank}")
        offset = kwargs.get("storage_offset", args[2] if len(args) > 2 else 0)
        if offset < 0:
            raise ValueError(f"expected storage_offset to be 0 or more, got {offset}")
        return original(self, rank, *args, **kwargs)

    tensor_of.__name__ = original.__name__
    return tensor_of
