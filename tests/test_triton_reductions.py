"""Reductions, scans and what is built on them, over every axis, dtype and kind of combine function."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton_language import tensors_on_mtia, with_source  # noqa: F401

from torch_mtia.triton.analyses.commutativity import is_commutative
from torch_mtia.triton.ir import parser

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")

DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint32, torch.float16, torch.bfloat16,
          torch.float32, torch.float64)  # fmt: skip


@triton.jit
def vector_kernel(x, z, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x + i)
    tl.store(z, EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def matrix_kernel(x, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, axis: tl.constexpr):
    x = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(z + tl.arange(0, K), EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    low = 0 if not dtype.is_signed else -9
    return torch.randint(low, 10, shape, generator=torch.Generator("mtia").manual_seed(3)).to(dtype)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sum", "max", "min", "argmax", "argmin", "xor_sum"])
@pytest.mark.parametrize("n", [1, 2, 8, 64, 512])
def test_vectors(dtype: torch.dtype, name: str, n: int) -> None:
    if name == "xor_sum" and dtype.is_floating_point:
        pytest.skip("xor is of integers")
    x = numbers((n,), dtype)
    z = torch.zeros(1, dtype=torch.int32 if name.startswith("arg") else torch.float64)
    with_source(vector_kernel, EXPRESSION=f"tl.{name}(x, 0)")[(1,)](x, z, N=n)
    values = x.double().cpu().numpy() if name != "xor_sum" else x.cpu().numpy().astype(np.int64)
    expected = {"xor_sum": np.bitwise_xor.reduce}.get(name) or getattr(np, name)
    if name == "sum" and not dtype.is_floating_point:
        assert z.item() == values.sum()
    elif name == "sum":
        assert abs(z.item() - values.sum()) <= abs(values).sum() * torch.finfo(dtype).eps * 4
    else:
        assert z.item() == expected(values)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (2, 32), (32, 2), (16, 128), (128, 16), (4, 4)])
@pytest.mark.parametrize("name", ["sum", "max", "argmin"])
def test_matrices(axis: int, shape: tuple[int, int], name: str) -> None:
    x = numbers(shape, torch.float32)
    z = torch.zeros(shape[1 - axis], dtype=torch.int32 if name == "argmin" else torch.float32)
    kernel = with_source(matrix_kernel, EXPRESSION=f"tl.{name}(x, axis)")
    kernel[(1,)](x, z, M=shape[0], N=shape[1], K=shape[1 - axis], axis=axis)
    np.testing.assert_array_equal(z.cpu().numpy(), getattr(np, name)(x.cpu().numpy(), axis))


def test_higher_ranks_and_all_axes() -> None:
    @triton.jit
    def kernel(x, z, w, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
        a, b, c = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
        x = tl.load(x + (a * B + b) * C + c)
        tl.store(z + tl.arange(0, A)[:, None] * C + tl.arange(0, C)[None, :], tl.sum(x, 1))
        tl.store(w, tl.max(x))

    x = torch.randn(4, 8, 16)
    z, w = torch.zeros(4, 16), torch.zeros(1)
    kernel[(1,)](x, z, w, A=4, B=8, C=16)
    assert torch.allclose(z, x.sum(1), atol=1e-5)
    assert w.item() == x.max().item()


def test_ties_go_to_the_left() -> None:
    x, z = torch.zeros(256), torch.full((1,), -1, dtype=torch.int32)
    with_source(vector_kernel, EXPRESSION="tl.argmax(x, 0)")[(1,)](x, z, N=256)
    assert z.item() == 0
    x[100] = x[200] = 5
    with_source(vector_kernel, EXPRESSION="tl.argmax(x, 0)")[(1,)](x, z, N=256)
    assert z.item() == 100


@triton.jit
def welford_combine(mean_1, m2_1, weight_1, mean_2, m2_2, weight_2):
    delta = mean_2 - mean_1
    weight = weight_1 + weight_2
    ratio = tl.where(weight == 0.0, 0.0, weight_2 / weight)
    return mean_1 + delta * ratio, m2_1 + m2_2 + delta * delta * weight_1 * ratio, weight


def test_several_operands() -> None:
    @triton.jit
    def kernel(x, z, M: tl.constexpr, N: tl.constexpr, axis: tl.constexpr):
        x = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
        mean, m2, weight = tl.reduce((x, tl.zeros_like(x), tl.full([M, N], 1.0, tl.float32)), axis, welford_combine)
        K: tl.constexpr = N if axis == 0 else M
        k = tl.arange(0, K)
        tl.store(z + k, mean)
        tl.store(z + K + k, m2 / weight)

    x = torch.randn(32, 64) + 100
    for axis in (0, 1):
        z = torch.zeros(2, x.shape[1 - axis])
        kernel[(1,)](x, z, M=32, N=64, axis=axis)
        assert torch.allclose(z[0], x.mean(axis), rtol=1e-5)
        assert torch.allclose(z[1], x.var(axis, correction=0), rtol=1e-3)


@triton.jit
def compose(factor, offset, next_factor, next_offset):
    return factor * next_factor, offset * next_factor + next_offset


@triton.jit
def composed_kernel(f, o, zf, zo, M: tl.constexpr, N: tl.constexpr, axis: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    factor, offset = tl.reduce((tl.load(f + i), tl.load(o + i)), axis, compose)
    rest = tl.arange(0, N if axis == 0 else M)
    tl.store(zf + rest, factor)
    tl.store(zo + rest, offset)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(4, 256), (256, 4), (1, 64), (32, 1), (2, 2)])
def test_what_is_not_commutative_is_combined_in_order(axis: int, shape: tuple[int, int]) -> None:
    """Functions x -> factor * x + offset, one after the other."""
    generator = torch.Generator("mtia").manual_seed(5)
    factors, offsets = torch.randint(-9, 10, (2, *shape), generator=generator, dtype=torch.int32)
    out = torch.zeros(2, shape[1 - axis], dtype=torch.int32)
    composed_kernel[(1,)](factors, offsets, out[0], out[1], M=shape[0], N=shape[1], axis=axis)
    factor = torch.ones(shape[1 - axis], dtype=torch.int32)
    offset = torch.zeros_like(factor)
    for next_factor, next_offset in zip(factors.unbind(axis), offsets.unbind(axis), strict=True):
        factor, offset = factor * next_factor, offset * next_factor + next_offset
    assert out.tolist() == [factor.tolist(), offset.tolist()]


@triton.jit
def branching_combine(a, b):
    if a > b:
        c = a - b
    else:
        c = b - a
    return tl.maximum(a, b) + c * 0


def test_control_flow_in_the_combine_function() -> None:
    @triton.jit
    def kernel(x, z, N: tl.constexpr):
        tl.store(z, tl.reduce(tl.load(x + tl.arange(0, N)), 0, branching_combine))

    x, z = torch.randn(128), torch.zeros(1)
    kernel[(1,)](x, z, N=128)
    assert z.item() == x.max().item()


# Masks ----------------------------------------------------------------------------------------------------------------


@triton.jit
def masked_kernel(x, z, n, N: tl.constexpr):
    i = tl.arange(0, N)
    mask = i < n  # noqa: F841
    x = VALUES  # type: ignore[name-defined]  # noqa: F821, F841
    tl.store(z, EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


COMBINATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "max": max, "min": min, "sum": operator.add, "xor_sum": operator.xor, "reduce_or": operator.or_,
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("values", ["tl.load(x + i, mask=mask, other=OTHER)", "tl.where(mask, tl.load(x + i), OTHER)"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64, torch.int8])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_what_a_mask_puts_in_place_of_elements_is_reduced_too(name: str, dtype: torch.dtype, values: str) -> None:
    if dtype.is_floating_point and name in ("xor_sum", "reduce_or"):
        pytest.skip("of integers")
    for x in (torch.arange(256) % 5 - 9, torch.arange(256) % 5 + 3):
        for other in (0, -1, 5, 100):
            kernel = with_source(
                masked_kernel, VALUES=values.replace("OTHER", str(other)), EXPRESSION=f"tl.{name}(x, 0)"
            )
            for n in (0, 1, 128, 255, 256):
                z = torch.zeros(1, dtype=torch.int64)
                kernel[(1,)](x.to(dtype), z, n, N=256)
                expected = functools.reduce(COMBINATIONS[name], [*x[:n].tolist(), *[other] * (256 - n)])
                if dtype != torch.float16 or abs(expected) <= 2048:
                    assert z.item() == expected, (other, n)


@triton.jit
def bitwise_and(a, b):
    return a & b


@triton.jit
def product(a, b):
    return a * b


@pytest.mark.parametrize("other", [0, 1, 3, -1])
@pytest.mark.parametrize("combine", [bitwise_and, product])
def test_masked_elements_in_a_combine_function_of_ones_own(combine: Any, other: int) -> None:
    values = f"tl.load(x + i, mask=mask, other={other})"
    kernel = with_source(masked_kernel, VALUES=values, EXPRESSION=f"tl.reduce(x, 0, {combine.__name__})")
    x, z = torch.arange(512) * 2 + 0x1235, torch.zeros(1, dtype=torch.int64)
    for n in (0, 128, 512):
        kernel[(1,)](x, z, n, N=512)
        expected = functools.reduce(combine.fn, [*x[:n].tolist(), *[other] * (512 - n)])
        assert (z.item() - expected) % (1 << 64) == 0


@pytest.mark.parametrize(
    ("expression", "other", "expected"),
    [
        ("tl.sum(x, 0)", "0.0", 0.0),  # -0 + 0 is 0
        ("tl.sum(x, 0)", "tl.load(x)", -0.0),
        ("tl.sum(x * x, 0)", "tl.load(x)", 0.0),
        ("tl.sum(x, 0)", 'float("inf")', math.inf),
        ("tl.sum(x, 0)", 'float("nan")', math.nan),
        ("tl.max(x, 0)", 'float("nan")', -0.0),
        ("tl.max(x, 0)", 'float("-inf")', -0.0),
        ("tl.min(x, 0)", 'float("-inf")', -math.inf),
        ("tl.reduce(x, 0, product)", "0.0", 0.0),
        ("tl.reduce(x - 1.0, 0, product)", "2.0", 1.0),
        ("tl.sum(x + 1.0, 0)", "-1.0", 128.0),
        ("tl.sum(tl.exp(x), 0)", 'float("-inf")', 128.0),
    ],
)
def test_zeros_infinities_and_nans_behind_a_mask(expression: str, other: str, expected: float) -> None:
    """Of 128 negative zeros, with as many others behind them."""
    x, z = torch.full((256,), -0.0), torch.ones(1)
    values = f"tl.load(x + i, mask=mask, other={other})"
    with_source(masked_kernel, VALUES=values, EXPRESSION=expression)[(1,)](x, z, 128, N=256)
    assert repr(z.item()) == repr(expected)


@triton.jit
def masked_matrix_kernel(x, z, m, n, other, M: tl.constexpr, N: tl.constexpr, axis: tl.constexpr):
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    x = tl.load(x + rows * N + columns, mask=(rows < m) & (columns < n), other=other)
    tl.store(z + tl.arange(0, N if axis == 0 else M), EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["max", "sum"])
def test_masks_along_either_axis(name: str, axis: int) -> None:
    kernel = with_source(masked_matrix_kernel, EXPRESSION=f"tl.{name}(x, axis)")
    x = -torch.rand(32, 64) - 1
    for m, n in ((0, 0), (1, 64), (32, 3), (17, 33)):
        for other in (0.0, -1.5, -math.inf):
            z = torch.zeros(x.shape[1 - axis])
            kernel[(1,)](x, z, m, n, other, M=32, N=64, axis=axis)
            filled = torch.full_like(x, other)
            filled[:m, :n] = x[:m, :n]
            torch.testing.assert_close(z, filled.amax(axis) if name == "max" else filled.sum(axis))


def test_a_masked_reduction_in_a_loop() -> None:
    @triton.jit
    def kernel(x, z, n, N: tl.constexpr, BLOCK: tl.constexpr):
        largest = float("-inf")
        for start in range(0, N, BLOCK):
            i = start + tl.arange(0, BLOCK)
            largest = tl.maximum(largest, tl.max(tl.load(x + i, mask=i < n, other=-5.0), 0))
        tl.store(z, largest)

    x, z = -torch.rand(512) - 6, torch.zeros(1)
    for n, expected in ((512, x.max().item()), (300, -5.0), (512 - 64, -5.0), (0, -5.0)):
        kernel[(1,)](x, z, n, N=512, BLOCK=64)
        assert z.item() == expected


def test_a_mask_that_is_stored_under_itself() -> None:
    @triton.jit
    def kernel(x, y, z, n, N: tl.constexpr):
        i = tl.arange(0, N)
        mask = (tl.load(x + i) > 0) & (i < n)
        tl.store(y + i, mask, mask=mask)
        tl.store(x, 2.0)  # or the stores would be one loop
        tl.store(z + i, mask, mask=mask)

    x = torch.ones(256)
    y, z = torch.full((2, 256), 7, dtype=torch.int8)
    kernel[(1,)](x, y, z, 100, N=256)
    assert y.tolist() == z.tolist() == [1] * 100 + [7] * 156


# Order ----------------------------------------------------------------------------------------------------------------


@triton.jit
def last_nonzero(a, b):
    return tl.where(b != 0, b, a)


@triton.jit
def maximum_or_nan(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def greatest_with_place(a, i, b, j):
    is_left = (a > b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(is_left, a, b), tl.where(is_left, i, j)


@triton.jit
def greatest_with_place_of_first_nan(a, i, b, j):
    is_left = (a != a) | ((b == b) & ((a > b) | ((a == b) & (i < j))))
    return tl.where(is_left, a, b), tl.where(is_left, i, j)


@triton.jit
def log_of_sum(a, b):
    greatest = tl.maximum(a, b)
    return greatest + tl.log(tl.exp(a - greatest) + tl.exp(b - greatest))


@triton.jit
def any_or_all(a, i, b, j):
    return a | b, i & j


@triton.jit
def first_negative(a, b):
    return tl.where(a < 0, a, b)


@triton.jit
def hardly_ever_left(a, b):
    return tl.where((a == 123456) & (b == 654321), a, tl.maximum(a, b))


@triton.jit
def branching_maximum(a, b):
    if a > b:
        greatest = a
    else:
        greatest = b
    return greatest


@triton.jit
def unsigned_maximum(a, b):
    return tl.where(a.to(tl.uint32) > b.to(tl.uint32), a, b)


@triton.jit
def unsigned_or_signed(a, b):
    return tl.where((a.to(tl.uint32) > b.to(tl.uint32)) | (a > b), a, b)


@triton.jit
def sign_of_zero(a, b):
    return tl.where(1 / a > 1 / b, a, b)


@triton.jit
def one_operand_kernel(x, z, N: tl.constexpr):
    tl.store(z, tl.reduce(tl.load(x + tl.arange(0, N)), 0, COMBINE))  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def placed_kernel(x, z, N: tl.constexpr):
    i = tl.arange(0, N)
    value, place = tl.reduce((tl.load(x + i), i), 0, COMBINE)  # type: ignore[name-defined]  # noqa: F821
    tl.store(z, place)
    tl.store(z + 1, value)


@triton.jit
def three_operand_kernel(x, z, N: tl.constexpr):
    x = tl.load(x + tl.arange(0, N))
    tl.store(z, tl.reduce((x, x, x), 0, COMBINE)[0])  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("combine", "dtype", "commutes"),
    [
        (product, torch.float32, True),
        (bitwise_and, torch.int8, True),
        (maximum_or_nan, torch.float32, True),
        (greatest_with_place, torch.float32, True),
        (greatest_with_place, torch.int64, True),
        (greatest_with_place_of_first_nan, torch.float32, False),
        (greatest_with_place_of_first_nan, torch.int32, True),
        (log_of_sum, torch.float32, True),
        (any_or_all, torch.int32, True),
        (first_negative, torch.float32, False),
        (hardly_ever_left, torch.int32, False),
        (branching_maximum, torch.int32, True),
        (branching_maximum, torch.float16, True),  # but for NaNs, for which it is not associative either
        (unsigned_maximum, torch.int32, True),
        (unsigned_or_signed, torch.int32, False),
        (sign_of_zero, torch.float32, False),
        (last_nonzero, torch.float32, False),
        (welford_combine, torch.float32, False),
    ],
)
def test_what_is_known_to_be_commutative(combine: Any, dtype: torch.dtype, commutes: bool, tmp_path: Path) -> None:
    template = (one_operand_kernel, placed_kernel, three_operand_kernel)[len(combine.arg_names) // 2 - 1]
    x = torch.zeros(16, dtype=dtype)
    compiled = with_source(template, COMBINE=combine.__name__).warmup(x, x, N=16, grid=(1,))
    text = tmp_path / "kernel.ttir"
    text.write_text(compiled.asm["ttir"])
    context = ir.context()
    ir.load_dialects(context)
    source = ir.parse_mlir_module(str(text), context)
    source.context = context
    module = parser.parse(parser.generic_text(source))
    (reduction,) = (op for op in module.kernel.body.walk() if op.name == "tt.reduce")
    assert is_commutative(module, reduction.regions[0]) == commutes


@pytest.mark.parametrize("n", [2, 16, 64, 256, 1024])
def test_the_first_that_is_wanted_is_found(n: int) -> None:
    z = torch.zeros(2)
    find_negative = with_source(one_operand_kernel, COMBINE="first_negative")
    find_nan = with_source(placed_kernel, COMBINE="greatest_with_place_of_first_nan")
    for first in {0, 1, n // 3, n - 1}:
        x = torch.arange(n, dtype=torch.float32)
        x[first:] -= 2 * n
        find_negative[(1,)](x, z, N=n)
        assert z[0].item() == x[first].item()
        x[first::3] = math.nan
        find_nan[(1,)](x, z, N=n)
        assert z[0].item() == first


def test_two_elements_that_do_not_commute_although_nearly_all_do() -> None:
    z = torch.zeros(1, dtype=torch.int32)
    kernel = with_source(one_operand_kernel, COMBINE="hardly_ever_left")
    for x in ([123456, 654321], [654321, 123456]):
        kernel[(1,)](torch.tensor(x, dtype=torch.int32), z, N=2)
        assert z.item() == (123456 if x[0] == 123456 else 654321)


# Scans ----------------------------------------------------------------------------------------------------------------


@triton.jit
def scan_kernel(x, z, M: tl.constexpr, N: tl.constexpr, axis: tl.constexpr, reverse: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x + i)
    tl.store(z + i, EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.sampled(5)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (2, 8), (16, 32), (1, 4), (256, 2)])
@pytest.mark.parametrize("name", ["sum", "prod", "custom"])
def test_scans(axis: int, reverse: bool, shape: tuple[int, int], name: str) -> None:
    x = torch.randint(-1, 2, shape).float() if name != "prod" else torch.randint(0, 2, shape).float() * 3 - 2
    expression = {
        "sum": "tl.cumsum(x, axis, reverse=reverse)",
        "prod": "tl.cumprod(x, axis, reverse=reverse)",
        "custom": "tl.associative_scan(x, axis, last_nonzero, reverse=reverse)",
    }[name]
    z = torch.zeros_like(x)
    with_source(scan_kernel, EXPRESSION=expression)[(1,)](x, z, M=shape[0], N=shape[1], axis=axis, reverse=reverse)
    source = x.flip(axis) if reverse else x
    if name == "custom":
        expected = source.clone()
        for k in range(1, shape[axis]):
            before, here = expected.select(axis, k - 1), expected.select(axis, k)
            here.copy_(torch.where(here != 0, here, before))
    else:
        expected = source.cumsum(axis) if name == "sum" else source.cumprod(axis)
    assert torch.equal(z, expected.flip(axis) if reverse else expected)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_rows_of_a_reverse_scan_as_one_vector(count: int) -> None:
    @triton.jit
    def kernel(x, z, N: tl.constexpr):
        i = tl.arange(0, 2)[:, None] * N + tl.arange(0, N)[None, :]
        total = tl.cumsum(tl.load(x + i), 0, reverse=True)
        tl.store(z + tl.arange(0, 2 * N), tl.reshape(total, (2 * N,)))

    x, z = torch.arange(2 * count, dtype=torch.float32), torch.zeros(2 * count)
    kernel[(1,)](x, z, N=count)
    assert torch.equal(z, torch.cat([x[:count] + x[count:], x[count:]]))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_scan_dtypes(dtype: torch.dtype) -> None:
    x = torch.randint(-1, 2, (4, 32)).to(dtype)
    z = torch.zeros(4, 32, dtype=torch.float64)
    kernel = with_source(scan_kernel, EXPRESSION="tl.cumsum(x, axis, reverse=reverse)")
    kernel[(1,)](x, z, M=4, N=32, axis=1, reverse=False)
    assert torch.equal(z, x.double().cumsum(1))


# Sorting --------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.int16, torch.float16])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(1, 8), (4, 32)])
def test_sort(dtype: torch.dtype, descending: bool, shape: tuple[int, int]) -> None:
    @triton.jit
    def kernel(x, z, M: tl.constexpr, N: tl.constexpr, descending: tl.constexpr):
        i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
        tl.store(z + i, tl.sort(tl.load(x + i), descending=descending))

    x = torch.randint(-1000, 1000, shape).to(dtype)
    z = torch.zeros_like(x)
    kernel[(1,)](x, z, M=shape[0], N=shape[1], descending=descending)
    assert torch.equal(z, x.sort(1, descending=descending).values)


def test_topk_flip_and_histogram() -> None:
    @triton.jit
    def kernel(x, top, flipped, counts, N: tl.constexpr, K: tl.constexpr):
        i = tl.arange(0, N)
        v = tl.load(x + i)
        tl.store(top + tl.arange(0, K), tl.topk(v, K))
        tl.store(flipped + i, tl.flip(v, 0))
        tl.store(counts + tl.arange(0, 16), tl.histogram(v, 16, mask=i < N - 4))

    x = torch.randint(0, 16, (64,), dtype=torch.int32)
    top, flipped, counts = torch.zeros(8, dtype=torch.int32), torch.zeros_like(x), torch.zeros(16, dtype=torch.int32)
    kernel[(1,)](x, top, flipped, counts, N=64, K=8)
    assert torch.equal(top, x.topk(8).values)
    assert torch.equal(flipped, x.flip(0))
    assert torch.equal(counts, torch.bincount(x[:60], minlength=16).int())


def test_the_divergence_of_rows() -> None:
    """As torch.nn.functional.kl_div computes it, in blocks of columns."""

    @triton.jit
    def kernel(logs, target, out, N, BLOCK: tl.constexpr):
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, N, BLOCK):
            i = start + tl.arange(0, BLOCK)
            t = tl.load(target + tl.program_id(0) * N + i, i < N, other=0.0)
            x = tl.load(logs + tl.program_id(0) * N + i, i < N, other=0.0)
            total += tl.where(t > 0, t * (tl.log(t) - x), 0.0)
        tl.store(out + tl.program_id(0), tl.sum(total))

    logs, target = torch.randn(5, 300).log_softmax(1), torch.randn(5, 300).relu()
    target /= target.sum(1, keepdim=True)
    out = torch.zeros(5)
    kernel[(5,)](logs, target, out, 300, BLOCK=128)
    torch.testing.assert_close(out, torch.nn.functional.kl_div(logs, target, reduction="none").sum(1))


def test_one_comparison_of_rows_and_columns() -> None:
    @triton.jit
    def kernel(x, y, z, size, N: tl.constexpr, axis: tl.constexpr):
        i = tl.arange(0, N)
        inside, at = i < size, i[:, None] * N + i[None, :]
        by_row = tl.load(x + at, inside[:, None], other=0)
        tl.store(z + i, tl.sum(by_row + tl.load(y + at, inside[None, :], other=0), axis))

    x, y, z = torch.randint(9, (64, 64)), torch.randint(9, (64, 64)), torch.empty(64, dtype=torch.int64)
    for axis in (0, 1):
        kernel[(1,)](x, y, z, 33, N=64, axis=axis)
        inside = torch.arange(64) < 33
        assert torch.equal(z, (x * inside[:, None] + y * inside).sum(axis))
