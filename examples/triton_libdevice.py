"""Calls functions of libdevice: arcsines of random numbers, and how far they are from float64's.

python examples/triton_libdevice.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def asin_kernel(x_pointer, out_pointer, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(out_pointer + offsets, libdevice.asin(tl.load(x_pointer + offsets, mask)), mask)


def asin(x: torch.Tensor) -> torch.Tensor:
    """Of a contiguous tensor, element by element."""
    out = torch.empty_like(x)
    asin_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    x = torch.rand(98432, device=device) * 2 - 1
    error = (asin(x).double() - torch.asin(x.double())).abs().max().item()
    assert error < 1e-6, error
    print(f"the arcsines of {x.numel()} numbers on {device} are right to {error:.0e}")


if __name__ == "__main__":
    main()
