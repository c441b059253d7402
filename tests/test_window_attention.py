"""The example's attention in a window: any window, lengths, alignment and dtype, forward and backward."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "examples"))

from triton_window_attention import reference, window_attention

WINDOWS = [(-1, -1), (-1, 0), (0, -1), (-1, 7), (7, -1), (30, 5), (5, 30), (0, 0), (500, 500)]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (70, 150), (150, 70), (1, 130), (130, 1)])
def test_any_window_is_that_of_a_mask(window: tuple[int, int], queries: int, keys: int) -> None:
    for bottom_right in (False, True):
        host = [torch.randn(2, 2, length, 16, dtype=torch.float64) for length in (queries, keys, keys)]
        ours = [x.float().to("mtia").requires_grad_() for x in host]
        theirs = [x.requires_grad_() for x in host]
        out = window_attention(ours[0], ours[1], ours[2], window, bottom_right)
        expected = reference(theirs[0], theirs[1], theirs[2], window, bottom_right)
        grad_out = torch.randn_like(expected)
        torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-4, atol=1e-4)
        for gradient, wanted in zip(
            torch.autograd.grad(out, ours, grad_out.float().to("mtia")),
            torch.autograd.grad(expected, theirs, grad_out),
            strict=True,
        ):
            torch.testing.assert_close(gradient.cpu().double(), wanted, rtol=1e-3, atol=1e-4)


def test_a_query_that_sees_no_key_is_zero() -> None:
    """Of 150 queries, aligned at the bottom right with 70 keys, the first 80 see none under a causal mask."""
    inputs = [torch.randn(1, 1, length, 16, device="mtia", requires_grad=True) for length in (150, 70, 70)]
    q, k, v = inputs
    out = window_attention(q, k, v, (-1, 0), bottom_right=True)
    out.sum().backward()
    assert not out[:, :, :80].cpu().any()
    assert out[:, :, 80:].cpu().all(-1).all()
    assert inputs[0].grad is not None
    assert not inputs[0].grad[:, :, :80].cpu().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits(dtype: torch.dtype) -> None:
    host = [torch.randn(1, 2, 100, 32).to(dtype) for _ in range(3)]
    q, k, v = (x.to("mtia") for x in host)
    out = window_attention(q, k, v, (20, 0))
    q, k, v = (x.double() for x in host)
    expected = reference(q, k, v, (20, 0), True)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0.02, atol=0.02)
