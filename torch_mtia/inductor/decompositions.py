"""Decompositions that Inductor uses instead of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Table = dict[Any, Callable[..., Any]]


def register(table: Table) -> None:
    """Replaces entries of Inductor's table `torch._inductor.decomposition.decompositions`."""
    operator = torch.ops.aten.masked_fill.Tensor
    table[operator] = _masked_fill(table[operator])


def _masked_fill(original: Callable[..., Any]) -> Callable[..., Any]:
    """The original takes a scalar on the CPU only for devices that it lists (torch/_refs/__init__.py)."""

    def masked_fill(a: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if a.device.type == "mtia" and value.device.type == "cpu" and value.ndim == 0:
            value = value.to(a.device)
        return original(a, mask, value)  # type: ignore[no-any-return]

    return masked_fill
