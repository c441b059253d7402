"""Dropout that keeps no mask: the same seed draws the same numbers again.

python examples/triton_dropout.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def dropout_kernel(x_pointer, out_pointer, size, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_pointer + offsets, mask)
    keep = tl.rand(seed, offsets) > p  # one number for each element, whatever the block size
    tl.store(out_pointer + offsets, tl.where(keep, x / (1 - p), 0.0), mask)


def dropout(x: torch.Tensor, p: float, seed: int, block: int = 1024) -> torch.Tensor:
    """Zeroes elements with probability p and scales the others by 1 / (1 - p)."""
    out = torch.empty_like(x)
    dropout_kernel[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), p, seed, BLOCK=block)
    return out


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    x = torch.ones(100_000, device=device)
    first = dropout(x, p=0.3, seed=123)
    torch.testing.assert_close(dropout(x, p=0.3, seed=123, block=256), first, rtol=0, atol=0)
    assert not torch.equal(dropout(x, p=0.3, seed=512), first)
    kept = first[first != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.7))
    dropped = 1 - kept.numel() / x.numel()
    assert abs(dropped - 0.3) < 0.01, dropped
    print(f"dropout on {device} zeroed {dropped:.1%} of the elements, the same ones with the same seed")


if __name__ == "__main__":
    main()
