"""Operators that add up or multiply many 16-bit numbers, forward and backward, against float64 of the same numbers.

A result may be off by one rounding to its dtype, and by what float32 loses on the way.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torch_mtia.conformance.database import dtype_name

MANY = 8192
"""As many summands as show: in bfloat16, ones add up to 256, in float16 to 2048."""

DTYPES = [torch.bfloat16, torch.float16]
LOST_BY_FLOAT32 = 3e-5
"""Of the largest value of a result: sums of `MANY` numbers whose rounding errors do not all have one sign."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed))


def positive(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=generator(seed)) + 0.5


def factors(*shape: int) -> torch.Tensor:
    """Near 1, so that the product of many is no overflow."""
    return 1 + 0.05 * normal(*shape).clamp(-1, 1)


def indices(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=generator(1))


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    operands: tuple[torch.Tensor, ...]

    def results(self, device: torch.device | str, dtype: torch.dtype, of: torch.dtype) -> list[torch.Tensor]:
        """What the function and its backward give in `dtype`, for operands with the digits of `of`."""
        operands = [
            operand.to(of).to(dtype).to(device).requires_grad_() if operand.is_floating_point() else operand.to(device)
            for operand in self.operands
        ]
        output = self.function(*operands)
        leaves = [operand for operand in operands if operand.requires_grad]
        if not output.requires_grad:
            return [output]
        gradient = positive(*output.shape, seed=2).to(of).to(dtype).to(device)
        gradients = torch.autograd.grad(output, leaves, gradient, allow_unused=True)
        return [output.detach(), *(each for each in gradients if each is not None)]


def faults(case: Case, dtype: torch.dtype, actual: Sequence[torch.Tensor]) -> list[str]:
    """What is wrong with results in this dtype, in words."""
    found = []
    expected = case.results("cpu", torch.float64, dtype)
    assert len(actual) == len(expected)
    for i, (ours, exact) in enumerate(zip(actual, expected, strict=True)):
        assert ours.dtype == dtype
        error = (ours.cpu().double() - exact).abs()
        bound = 0.51 * torch.finfo(dtype).eps * exact.abs() + LOST_BY_FLOAT32 * exact.abs().max()
        if not bool((error <= bound).all()):
            what = "result" if i == 0 else f"gradient {i}"
            found.append(f"{case.name}, {dtype}, {what}: off by {float(error.max() / exact.abs().max()):.2g}")
    return found


HOT = torch.zeros(MANY, dtype=torch.long)
FEW = indices(3, MANY)
ONE_OF_FOUR = torch.tensor([False, False, True, False])
BAGS = torch.tensor([0, 4])
LENGTHS = torch.tensor([MANY - 5, 5])
PEAK_1D = positive(1, 2, 4096).index_fill_(2, torch.tensor([2048]), 9)
PEAK_2D = positive(1, 2, 64, 64)
PEAK_2D[:, :, 32, 32] = 9
PEAK_3D = positive(1, 2, 24, 24, 24)
PEAK_3D[:, :, 12, 12, 12] = 9


def unfold_images(x: torch.Tensor) -> torch.Tensor:
    return F.unfold(x, 48)


def coo(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(index, values, (4, *values.shape[1:]), check_invariants=True)


def put(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return x.index_put((index,), values, accumulate=True)


CASES = [
    # Lookups and scatters
    Case("embedding, one row", lambda w, i: F.embedding(i, w), (normal(4, 64), HOT)),
    Case("embedding", lambda w, i: F.embedding(i, w), (normal(500, 64), indices(500, MANY))),
    Case("embedding, padding", lambda w, i: F.embedding(i, w, padding_idx=1), (normal(4, 40), FEW)),
    Case("embedding, by frequency", lambda w, i: F.embedding(i, w, scale_grad_by_freq=True), (normal(4, 64), FEW)),
    Case("embedding, wide", lambda w, i: F.embedding(i, w), (normal(4, 1000), indices(2, 300))),
    Case("lookup", lambda x, i: x[i], (normal(4, 64), FEW)),
    Case("lookup, one dimension", lambda x, i: x[i], (normal(4), FEW)),
    Case("lookup of columns", lambda x, i: x[:, i], (normal(16, 4), FEW)),
    Case("lookup by two indices", lambda x, i, j: x[i, j], (normal(4, 4, 8), FEW, indices(2, MANY))),
    Case("lookup by two indices apart", lambda x, i, j: x[i, :, j], (normal(4, 5, 4), FEW, indices(2, MANY))),
    Case("lookup by mask and index", lambda x, m, i: x[m, i], (normal(4, 8), ONE_OF_FOUR, indices(8, MANY))),
    Case("lookup, negative", lambda x, i: x[i - 4], (normal(4, 8), FEW)),
    Case("index_put", put, (normal(4, 64), FEW, positive(MANY, 64))),
    Case("index_put, broadcast", lambda x, i, v: put(x, i, v), (normal(4, 64), FEW, positive(64))),
    Case("put", lambda x, i, v: x.put(i, v, accumulate=True), (normal(4, 4), FEW, positive(MANY))),
    Case("put, transposed", lambda x, i, v: x.t().put(i, v, accumulate=True), (normal(4, 3), FEW, positive(MANY))),
    Case("take", lambda x, i: x.take(i), (normal(4, 4), FEW)),
    Case("index_select, one dimension", lambda x, i: x.index_select(0, i), (normal(4), FEW)),
    Case("index_select of columns", lambda x, i: x.index_select(1, i), (normal(16, 4), FEW)),
    Case("index_add", lambda x, i, v: x.index_add(0, i, v), (normal(4, 64), FEW, positive(MANY, 64))),
    Case("index_add, alpha", lambda x, i, v: x.index_add(1, i, v, alpha=0.5), (normal(8, 4), FEW, positive(8, MANY))),
    Case("index_add, one dimension", lambda x, i, v: x.index_add(0, i, v), (normal(4), FEW, positive(MANY))),
    Case("bags", lambda w, i, o: F.embedding_bag(i, w, o, mode="sum"), (positive(8, 64), indices(8, MANY), BAGS)),
    Case("bags, mean", lambda w, i, o: F.embedding_bag(i, w, o, mode="mean"), (positive(8, 64), HOT, BAGS)),
    Case("small bags", lambda w, i: F.embedding_bag(i, w, mode="mean"), (positive(8, 64), indices(2, MANY // 2, 2))),
    Case("bags, maximum", lambda w, i: F.embedding_bag(i, w, mode="max"), (positive(8, 64), indices(2, MANY // 2, 2))),
    Case(
        "bags, weights",
        lambda w, i, o, p: F.embedding_bag(i, w, o, per_sample_weights=p, mode="sum"),
        (positive(8, 64), indices(8, MANY), BAGS, positive(MANY)),
    ),
    # Normalization
    Case(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, (64,), w, b),
        (normal(MANY, 64), positive(64), normal(64)),
    ),
    Case(
        "layer_norm, long rows",
        lambda x, w, b: F.layer_norm(x, (1000,), w, b),
        (normal(40, 1000), positive(1000), normal(1000)),
    ),
    Case(
        "layer_norm, far from zero",
        lambda x, w, b: F.layer_norm(x, (64,), w, b),
        (normal(MANY, 64) + 4, positive(64), normal(64)),
    ),
    Case("layer_norm, no parameters", lambda x: F.layer_norm(x, (70,)), (normal(300, 70),)),
    # Products
    Case("prod", lambda x: x.prod().detach(), (factors(MANY),)),
    Case("prod of columns", lambda x: x.prod(0).detach(), (factors(MANY, 8),)),
    Case("index_reduce", lambda x, i, v: x.index_reduce(0, i, v, "mean").detach(), (positive(4), FEW, positive(MANY))),
    # Convolutions
    Case("conv1d", lambda x, w: F.conv1d(x, w), (positive(512, 2, 20), positive(3, 2, 5))),
    Case("conv2d", lambda x, w, b: F.conv2d(x, w, b), (positive(256, 2, 10, 10), positive(3, 2, 3, 3), normal(3))),
    Case("conv2d, groups", lambda x, w: F.conv2d(x, w, groups=2), (positive(256, 2, 10, 10), positive(4, 1, 3, 3))),
    Case("conv2d, channels", lambda x, w: F.conv2d(x, w), (positive(2, 512, 8, 8), positive(3, 512, 3, 3))),
    Case(
        "conv2d, dilated",
        lambda x, w, b: F.conv2d(x, w, b, dilation=2),
        (positive(256, 2, 10, 10), positive(3, 2, 3, 3), normal(3)),
    ),
    Case("conv3d", lambda x, w, b: F.conv3d(x, w, b), (positive(256, 2, 6, 6, 6), positive(3, 2, 3, 3, 3), normal(3))),
    Case(
        "conv3d, dilated",
        lambda x, w, b: F.conv3d(x, w, b, dilation=2),
        (positive(256, 2, 6, 6, 6), positive(3, 2, 3, 3, 3), normal(3)),
    ),
    Case("conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w), (positive(512, 2, 20), positive(2, 3, 5))),
    Case("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w), (positive(2, 64, 24, 24), positive(64, 3, 24, 24))),
    Case(
        "conv_transpose3d",
        lambda x, w, b: F.conv_transpose3d(x, w, b),
        (positive(64, 2, 6, 6, 6), positive(2, 3, 3, 3, 3), normal(3)),
    ),
    # Losses
    Case("nll_loss", lambda x, t: F.nll_loss(x, t, reduction="sum"), (-positive(MANY // 4, 4), indices(4, MANY // 4))),
    Case("nll_loss2d", lambda x, t: F.nll_loss(x, t), (-positive(2, 4, 64, 64), indices(4, 2, 64, 64))),
    # Padding
    Case("replication_pad1d", lambda x: F.pad(x, (MANY // 2, 9), "replicate"), (positive(2, 2, 4),)),
    Case("replication_pad2d", lambda x: F.pad(x, (64,) * 4, "replicate"), (positive(2, 2, 4, 4),)),
    Case("replication_pad3d", lambda x: F.pad(x, (12,) * 6, "replicate"), (positive(1, 2, 3, 3, 3),)),
    Case("reflection_pad1d", lambda x: F.pad(x, (39,) * 2, "reflect"), (positive(2, 2, 40),)),
    Case("reflection_pad2d", lambda x: F.pad(x, (39,) * 4, "reflect"), (positive(2, 2, 40, 40),)),
    Case("reflection_pad3d", lambda x: F.pad(x, (7,) * 6, "reflect"), (positive(1, 2, 8, 8, 8),)),
    # Sampling
    Case(
        "grid_sample",
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        (normal(1, 4, 4, 4), 2 * positive(1, 64, 128, 2) - 2),
    ),
    Case(
        "grid_sample, bicubic",
        lambda x, grid: F.grid_sample(x, grid, "bicubic", align_corners=True),
        (normal(1, 4, 4, 4), 2 * positive(1, 64, 64, 2) - 2),
    ),
    Case(
        "grid_sample, volumes",
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        (normal(1, 4, 3, 3, 3), 2 * positive(1, 16, 16, 32, 3) - 2),
    ),
    Case("bicubic", lambda x: F.interpolate(x, scale_factor=64, mode="bicubic"), (positive(1, 2, 4, 4),)),
    Case("area", lambda x: F.interpolate(x, scale_factor=64, mode="area"), (positive(1, 2, 4, 4),)),
    # Pools
    Case("avg_pool1d", lambda x: F.avg_pool1d(x, 512, stride=1), (positive(1, 2, 1536),)),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 48, stride=1), (positive(1, 2, 96, 96),)),
    Case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 64), (positive(1, 2, 3, 3),)),
    Case("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 3), (positive(1, 2, 24, 24, 24),)),
    Case("adaptive_avg_pool3d, up", lambda x: F.adaptive_avg_pool3d(x, 20), (positive(1, 2, 3, 3, 3),)),
    Case("max_pool1d", lambda x: F.max_pool1d(x, 2048, stride=1), (PEAK_1D,)),
    Case("max_pool2d", lambda x: F.max_pool2d(x, 40, stride=1), (PEAK_2D,)),
    Case("max_pool3d", lambda x: F.max_pool3d(x, 12, stride=1), (PEAK_3D,)),
    Case("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 4096), (positive(1, 2, 3),)),
    Case("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 64), (positive(1, 2, 3, 3),)),
    Case("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 20), (positive(1, 2, 3, 3, 3),)),
    Case("fold", lambda x: F.fold(x, (96, 96), 48), (positive(1, 48 * 48, 49 * 49),)),
    Case("unfold", unfold_images, (positive(1, 1, 96, 96),)),
    Case("Tensor.unfold", lambda x: x.unfold(0, 512, 1), (positive(1024),)),
    # Others
    Case(
        "segment_reduce, sum",
        lambda x, lengths: torch.segment_reduce(x, "sum", lengths=lengths, axis=0),
        (positive(MANY, 8), LENGTHS),
    ),
    Case(
        "segment_reduce, mean",
        lambda x, lengths: torch.segment_reduce(x, "mean", lengths=lengths, axis=0),
        (positive(MANY, 8), LENGTHS),
    ),
    Case("sparse, coalesced", lambda x, i: coo(x, i).coalesce().values().detach(), (positive(MANY, 2), FEW[None])),
    Case("sparse, dense", lambda x, i: coo(x, i).to_dense().detach(), (positive(MANY), FEW[None])),
    Case("histc", lambda x: torch.histc(x.detach(), 4, 0.5, 1.5), (positive(1000),)),
]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, id=f"{re.sub('[^A-Za-z0-9_.]+', '_', case.name)}/{dtype_name(dtype)}")
        for case in CASES
        for dtype in DTYPES
    ],
)
def test_rounded_once(device: torch.device, case: Case, dtype: torch.dtype) -> None:
    assert not faults(case, dtype, case.results(device, dtype, dtype))
