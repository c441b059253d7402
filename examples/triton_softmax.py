"""Softmax of the rows of a matrix, each read and written once: a program holds a whole row.

python examples/triton_softmax.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_pointer, out_pointer, row_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_pointer + row * row_stride + offsets, mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_pointer + row * row_stride + offsets, numerator / tl.sum(numerator, axis=0), mask)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Over the last dimension of a contiguous matrix."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](x, out, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns))
    return out


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    x = torch.randn(1823, 781, device=device)  # sizes that are no powers of two
    torch.testing.assert_close(softmax(x), torch.softmax(x, dim=1))
    print(f"the softmax of {x.shape[0]} rows of {x.shape[1]} elements on {device} is right")


if __name__ == "__main__":
    main()
