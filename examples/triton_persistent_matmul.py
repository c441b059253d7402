"""A matrix product by as many programs as the device has cores: each takes one tile after the other, through tensor
descriptors, which need no masks.

python examples/triton_persistent_matmul.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def persistent_matmul_kernel(
    a,
    b,
    out,
    M,
    N,
    K,
    PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * tiles_n
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        row = tile // tiles_n * BLOCK_M
        column = tile % tiles_n * BLOCK_N
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for inner in range(0, K, BLOCK_K):
            accumulator = tl.dot(a.load([row, inner]), b.load([inner, column]), accumulator)
        out.store([row, column], accumulator.to(out.dtype))


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b of contiguous matrices, whose rows are multiples of 16 bytes."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    programs = triton.runtime.driver.active.utils.get_device_properties(a.device.index)["multiprocessor_count"]
    persistent_matmul_kernel[(programs,)](
        TensorDescriptor.from_tensor(a, [64, 32]),
        TensorDescriptor.from_tensor(b, [32, 64]),
        TensorDescriptor.from_tensor(out, [64, 64]),
        *(m, n, k),
        PROGRAMS=programs,
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=32,
    )
    return out


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    a, b = torch.randn(500, 300, device=device), torch.randn(300, 400, device=device)
    torch.testing.assert_close(matmul(a, b), a @ b, atol=1e-3, rtol=1e-4)
    print(f"the product of {a.shape[0]} x {a.shape[1]} and {b.shape[0]} x {b.shape[1]} on {device} is right")


if __name__ == "__main__":
    main()
