"""Products of matrices of different sizes in one launch, whose programs share the tiles of all of them.

python examples/triton_grouped_matmul.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl


@triton.jit
def grouped_matmul_kernel(
    addresses,  # of each product: a, b, out
    sizes,  # of each product: m, n, k
    products,
    PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    first_tile = 0  # of the product
    for product in range(products):
        m = tl.load(sizes + product * 3)
        n = tl.load(sizes + product * 3 + 1)
        k = tl.load(sizes + product * 3 + 2)
        tiles_n = tl.cdiv(n, BLOCK_N)
        tiles = tl.cdiv(m, BLOCK_M) * tiles_n
        while tile < first_tile + tiles:
            a_pointer = tl.load(addresses + product * 3).to(tl.pointer_type(tl.float32))
            b_pointer = tl.load(addresses + product * 3 + 1).to(tl.pointer_type(tl.float32))
            out_pointer = tl.load(addresses + product * 3 + 2).to(tl.pointer_type(tl.float32))
            rows = (tile - first_tile) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
            columns = (tile - first_tile) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for first in range(0, k, BLOCK_K):
                inner = first + tl.arange(0, BLOCK_K)
                a = tl.load(
                    a_pointer + rows[:, None] * k + inner[None, :],
                    mask=(rows[:, None] < m) & (inner[None, :] < k),
                    other=0.0,
                )
                b = tl.load(
                    b_pointer + inner[:, None] * n + columns[None, :],
                    mask=(inner[:, None] < k) & (columns[None, :] < n),
                    other=0.0,
                )
                accumulator = tl.dot(a, b, accumulator)
            out = out_pointer + rows[:, None] * n + columns[None, :]
            tl.store(out, accumulator, mask=(rows[:, None] < m) & (columns[None, :] < n))
            tile += PROGRAMS
        first_tile += tiles


def grouped_matmul(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], programs: int = 8) -> list[torch.Tensor]:
    """a @ b of each pair of contiguous float32 matrices."""
    device = pairs[0][0].device
    outs = [torch.empty(a.shape[0], b.shape[1], device=device) for a, b in pairs]
    addresses = [tensor.data_ptr() for (a, b), out in zip(pairs, outs, strict=True) for tensor in (a, b, out)]
    sizes = [size for a, b in pairs for size in (a.shape[0], b.shape[1], a.shape[1])]
    grouped_matmul_kernel[(programs,)](
        torch.tensor(addresses, dtype=torch.int64, device=device),
        torch.tensor(sizes, dtype=torch.int32, device=device),
        len(pairs),
        PROGRAMS=programs,
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=32,
    )
    return outs


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    sizes = [(256, 256, 256), (128, 512, 100), (77, 33, 200), (1, 300, 5)]
    pairs = [(torch.randn(m, k, device=device), torch.randn(k, n, device=device)) for m, n, k in sizes]
    for out, (a, b) in zip(grouped_matmul(pairs), pairs, strict=True):
        torch.testing.assert_close(out, a @ b, atol=1e-3, rtol=1e-4)
    print(f"{len(pairs)} products of different sizes on {device}, in one launch, are right")


if __name__ == "__main__":
    main()
