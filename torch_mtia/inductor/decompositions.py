"""Decompositions that Inductor uses instead of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.door import device_type

Table = dict[Any, Callable[..., Any]]


def register(table: Table) -> None:
    """Replaces entries of Inductor's table `torch._inductor.decomposition.decompositions`."""
    for operator, replace in (
        (torch.ops.aten.masked_fill.Tensor, _masked_fill),
        (torch.ops.aten.native_layer_norm.default, _whole),
        (torch.ops.aten.index_add.default, _whole),
    ):
        table[operator] = replace(table[operator])
    for operator in (torch.ops.aten.argmax.default, torch.ops.aten.argmin.default):
        table[operator] = _of_one_dimension(operator)


def _masked_fill(original: Callable[..., Any]) -> Callable[..., Any]:
    """The original takes a scalar on the CPU only for devices that it lists (torch/_refs/__init__.py)."""

    def masked_fill(a: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if a.device.type == device_type() and value.device.type == "cpu" and value.ndim == 0:
            value = value.to(a.device)
        return original(a, mask, value)  # type: ignore[no-any-return]

    return masked_fill


def _of_one_dimension(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream's lowering counts the elements of several dimensions in the order of memory, where their values are
    computed in the same kernel from a tensor that is not contiguous."""

    def flat(input: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is not None or input.dim() < 2 or input.device.type != device_type():
            return NotImplemented
        index = operator(input.reshape(-1), 0)
        return index.reshape([1] * input.dim()) if keepdim else index

    return flat


def _whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves tensors of mtia to the device's own kernel. The original of native_layer_norm means to, but knows them by
    their dispatch key; that of index_add makes an atomic addition of each element (2048 x 2048 in fp32 on one core, and
    on two, which wait for each other: 6.7 and 16 ms, its own kernel 5.0 and 2.4)."""

    def keep(input: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        return NotImplemented if input.device.type == device_type() else original(input, *arguments, **options)

    return keep
