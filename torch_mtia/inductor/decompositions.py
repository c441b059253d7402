"""Decompositions that Inductor uses instead of PyTorch's: entries of `torch._inductor.decomposition.decompositions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.backend import device_type


def masked_fill_of_a_scalar(original: Callable[..., Any]) -> Callable[..., Any]:
    """Moves the scalar to the device. The original takes one on the CPU for the devices that it lists."""

    def masked_fill(a: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if a.device.type == device_type() and value.device.type == "cpu" and value.ndim == 0:
            value = value.to(a.device)
        return original(a, mask, value)  # type: ignore[no-any-return]

    return masked_fill


def whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves tensors of the device to its own kernel. The original of native_layer_norm does so for mtia by name; that
    of index_add makes an atomic addition of each element (2048 x 2048 in fp32 on one core, and on two, which wait for
    each other: 6.7 and 16 ms, its own kernel 5.0 and 2.4)."""

    def keep(input: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        return NotImplemented if input.device.type == device_type() else original(input, *arguments, **options)

    return keep
