"""Triton kernels as nodes of graphs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.capturing import capture


@triton.jit
def scale_kernel(x, y, size, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(y + offsets, tl.load(x + offsets, mask) * factor, mask)


def test_a_kernel_runs_at_each_replay() -> None:
    x = torch.ones(5000, device="mtia")
    y = torch.empty_like(x)

    def body() -> torch.Tensor:
        scale_kernel[(triton.cdiv(5000, 1024),)](x, y, 5000, 3.0, BLOCK=1024)
        return y + 1

    body()
    graph, z = capture(body)
    for value in (2.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert z.unique().tolist() == [3 * value + 1]


def test_a_kernel_that_has_not_run_before_is_captured() -> None:
    x = torch.ones(100, dtype=torch.float64, device="mtia")
    y = torch.zeros_like(x)
    graph, _ = capture(lambda: scale_kernel[(1,)](x, y, 100, 2.0, BLOCK=128))
    assert y.unique().tolist() == [0]
    graph.replay()
    assert y.unique().tolist() == [2]
