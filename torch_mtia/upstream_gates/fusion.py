"""Replacements in what Inductor fuses, pads and lowers, which it does for listed devices only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from torch_mtia.backend import device_type
from torch_mtia.scopes import Overlay
from torch_mtia.upstream_gates.ours import is_ours


def online_softmax(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(original)
    def prepare_softmax_extra_check(match: Any) -> bool:
        from torch._inductor import config

        if match.kwargs["x"].meta["val"].device.type == device_type():
            return bool(config.online_softmax)
        return original(match)

    return prepare_softmax_extra_check


def reductions_of_one_tensor(original: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def _is_gpu_triton_backend(node1: Any, node2: Any) -> bool:
        from torch._inductor.utils import get_current_backend

        if any(node.get_device().type != device_type() for node in (node1, node2) if node.is_gpu()):
            return original(node1, node2)
        return node1.is_gpu() and node2.is_gpu() and get_current_backend(device_type()) == "triton"

    return _is_gpu_triton_backend


def products_as_reductions(original: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Asks upstream as if the first operand were on CUDA."""

    def use_native_matmul(mat1: Any, mat2: Any) -> bool:
        if mat1.get_device().type == device_type():
            mat1 = Overlay(mat1, get_device=lambda: torch.device("cuda"))
        return original(mat1, mat2)

    return use_native_matmul


def padded_where_asked_for(original: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Upstream pads what it has measured to be quicker, or all with `force_shape_pad`: it measures for tensor cores."""

    @functools.wraps(original)
    def check_device(a: torch.Tensor, b: torch.Tensor) -> bool:
        from torch._inductor import config

        return original(a, b) or (config.force_shape_pad and a.device.type == b.device.type == device_type())

    return check_device


def products_in_a_row(original: Callable[..., bool]) -> Callable[..., bool]:
    """Asks upstream as if the operands were on CUDA."""

    @functools.wraps(original)
    def is_b2b_gemm_good_on(is_left_assoc: bool, *nodes: Any) -> bool:
        values = [node.meta.get("val") for node in nodes]
        if all(isinstance(value, torch.Tensor) and value.device.type == device_type() for value in values):
            nodes = tuple(SimpleNamespace(meta={"val": Overlay(value, is_cuda=True)}) for value in values)
        return original(is_left_assoc, *nodes)

    return is_b2b_gemm_good_on


def operations_with_out_dtype(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def baddbmm_flop(bias: Any, a: Any, b: Any, *out_dtype: Any, **kwargs: Any) -> int:
        return original(bias, a, b, *(() if is_ours(bias, a, b) else out_dtype), **kwargs)

    return baddbmm_flop


def batched_with_out_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    """For shapes too, which are asked of a kernel that upstream has made of its decomposition."""

    def baddbmm(
        self: torch.Tensor,
        batch1: torch.Tensor,
        batch2: torch.Tensor,
        out_dtype: torch.dtype,
        **factors: complex,
    ) -> torch.Tensor:
        if not is_ours(self, batch1, batch2):
            return original(self, batch1, batch2, out_dtype, **factors)  # type: ignore[no-any-return]
        beta, alpha = factors.get("beta", 1), factors.get("alpha", 1)
        result = torch.bmm(batch1, batch2, out_dtype=out_dtype) * alpha
        return result if beta == 0 else result + self * beta

    _shapes().impl("baddbmm.dtype", baddbmm, "Meta", allow_override=True)
    operator = torch.ops.aten.baddbmm.dtype
    operator.py_kernels[torch._C.DispatchKey.Meta] = baddbmm  # which is asked first while Dynamo traces
    operator._dispatch_cache.clear()
    return baddbmm


@functools.cache
def _shapes() -> torch.library.Library:
    """Returns a library that lives as long as the process: what is registered goes with it."""
    return torch.library.Library("aten", "IMPL")
