"""What the suites without a database of PyTorch's share: a call on the device and on the CPU, with the same numbers."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.conformance.database import CPU, assert_same, seed_all

EXACT = {"rtol": 0.0, "atol": 0.0}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
"""For some operators of float32 in a row."""


def numbers(*shape: int, device: torch.device = CPU, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Returns normally distributed numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(
        device, dtype
    )


def assert_agrees(
    call: Callable[[torch.device], Any], device: torch.device, tolerance: dict[str, float] = CLOSE
) -> None:
    """`call` gives on the device what it gives on the CPU."""
    seed_all(0)
    actual = call(device)
    seed_all(0)
    assert_same(actual, call(CPU), device, tolerance)


def network(device: torch.device, seed: int = 0) -> torch.nn.Module:
    """Returns two layers, with the parameters that the seed gives, for four numbers a row."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(device)


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor out of a file that it was saved to."""
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file, weights_only=False)
    return loaded
