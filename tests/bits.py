"""Results compared bit for bit, with as many threads as a test says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_mtia.backend import device_type

Tensor = torch.Tensor


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def randn(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return torch.randn(*sizes, dtype=torch.float64, generator=generator).to(dtype).to(device_type())


def bits(result: Any) -> list[Tensor]:
    """The tensors of a result on the host, as integers, with one NaN."""
    tensors = [value.detach().cpu() for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
    tensors = [torch.view_as_real(value.resolve_conj()) if value.is_complex() else value for value in tensors]
    return [
        torch.where(value.isnan(), float("nan"), value) if value.is_floating_point() else value for value in tensors
    ]


def same(one: Any, other: Any) -> bool:
    pairs = zip(bits(one), bits(other), strict=True)
    return all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) and a.isnan().equal(b.isnan()) for a, b in pairs)
