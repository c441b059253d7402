"""Adds two vectors: the shape of every Triton kernel. Each program of the grid takes one block of the elements.

python examples/triton_vector_add.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_pointer, y_pointer, out_pointer, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size  # the last block may be only partly full
    x = tl.load(x_pointer + offsets, mask)
    y = tl.load(y_pointer + offsets, mask)
    tl.store(out_pointer + offsets, x + y, mask)


def add(x: torch.Tensor, y: torch.Tensor, block: int = 4096) -> torch.Tensor:
    """x + y, of contiguous tensors of one shape."""
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), block),)](x, y, out, x.numel(), BLOCK=block)
    return out


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    x = torch.rand(98_432, device=device)
    y = torch.rand(98_432, device=device)
    torch.testing.assert_close(add(x, y), x + y)
    print(f"the sum of two vectors of {x.numel()} elements on {device} is right")


if __name__ == "__main__":
    main()
