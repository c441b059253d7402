"""Decompositions that Inductor uses instead of PyTorch's: entries of `torch._inductor.decomposition.decompositions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.backend import device_type


def masked_fill_of_a_scalar(original: Callable[..., Any]) -> Callable[..., Any]:
    """The original takes a scalar on the CPU only for devices that it lists (torch/_refs/__init__.py)."""

    def masked_fill(a: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if a.device.type == device_type() and value.device.type == "cpu" and value.ndim == 0:
            value = value.to(a.device)
        return original(a, mask, value)  # type: ignore[no-any-return]

    return masked_fill


def of_one_dimension(name: str, _original: object) -> Callable[..., Any]:
    """Upstream's lowering counts the elements of several dimensions in the order of memory, where their values are
    computed in the same kernel from a tensor that is not contiguous."""

    operator = getattr(torch.ops.aten, name).default

    def flat(input: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is not None or input.dim() < 2 or input.device.type != device_type():
            return NotImplemented
        index = operator(input.reshape(-1), 0)
        return index.reshape([1] * input.dim()) if keepdim else index

    return flat


def with_the_scale_of_the_result(_original: object) -> Callable[..., Any]:
    """Upstream's lowering takes the argument and makes nothing of it."""
    operator = torch.ops.aten._scaled_mm.default

    def scaled_mm(
        self: torch.Tensor,
        mat2: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None = None,
        scale_result: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        use_fast_accum: bool = False,
    ) -> Any:
        dtype = out_dtype or self.dtype
        if scale_result is None or dtype.itemsize > 1 or self.device.type != device_type():
            return NotImplemented
        product = operator(self, mat2, scale_a, scale_b, bias, None, torch.float32, use_fast_accum)
        return (product * scale_result.reshape(()).reciprocal()).to(dtype)

    return scaled_mm


def with_a_dimension(original: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream's lowering of addmm expands a bias without dimensions twice, once for each kind of kernel that it tries.
    One of the two is dropped, although ATen's kernel, if it is the quickest, is given that one."""

    def addmm(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if self.dim() == 0 and arguments[0].device.type == device_type():
            return torch.ops.aten.addmm(self.reshape(1), *arguments, **options)
        return original(self, *arguments, **options)

    return addmm


def whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves tensors of the device to its own kernel. The original of native_layer_norm does so for mtia by name; that
    of index_add makes an atomic addition of each element (2048 x 2048 in fp32 on one core, and on two, which wait for
    each other: 6.7 and 16 ms, its own kernel 5.0 and 2.4)."""

    def keep(input: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        return NotImplemented if input.device.type == device_type() else original(input, *arguments, **options)

    return keep
