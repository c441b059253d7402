"""Arithmetic, comparison, bit and cast operations of Triton kernels give what PyTorch gives, for every dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton_language import run, with_source

N = 256
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def integers(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    info = np.iinfo(str(dtype).removeprefix("torch."))
    generator = np.random.default_rng(seed)
    values = generator.integers(info.min, info.max, N, dtype=info.dtype, endpoint=True)
    values[:4] = [0, 1, info.min, info.max]
    return torch.from_numpy(values)


def floats(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(N, generator=generator, dtype=torch.float64) * 3
    values[:6] = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan])
    return values.to(dtype)


def equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    left, right = (x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy() for x in (actual, expected))
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("operator", ["+", "-", "*", "&", "|", "^"])
def test_integer_operators_wrap_around(dtype: torch.dtype, operator: str) -> None:
    x, y = integers(dtype), integers(dtype, 1)
    with np.errstate(over="ignore"):
        expected = eval(f"x {operator} y", {}, {"x": x.numpy(), "y": y.numpy()})
    equal(run(f"x {operator} y", x, y), torch.from_numpy(expected))


@triton.jit
def division_kernel(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(z + i, tl.load(x + i) // tl.load(y + i))


@pytest.mark.parametrize("operation", ["ceildivsi", "floordivsi", "divsi", "remsi"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("size", [1, 64])
def test_no_quotient_stops_the_process(dtype: torch.dtype, operation: str, size: int, tmp_path: Path) -> None:
    """The least number by -1, and division by zero. Triton's front end rounds toward zero; its dialect has others."""
    info = torch.iinfo(dtype)
    pairs = [(info.min, -1), (info.max, -1), (info.min, info.min), (7, -2), (-7, 2), (-7, -2), (7, 2), (5, 0)]
    x, y = (torch.tensor(column * 8, dtype=dtype)[:size].to("mtia") for column in zip(*map(list, pairs), strict=True))
    if size == 1:
        pairs = pairs[:1]
    z = torch.empty_like(x)
    compiled = division_kernel.warmup(x, y, z, N=size, grid=(1,))
    file = tmp_path / f"{operation}.ttir"
    file.write_text(compiled.asm["ttir"].replace("arith.divsi", f"arith.{operation}"))
    division_kernel[(1,)](x, y, z, N=size, ir_override=str(file))
    exact: Callable[[int, int], int] = {
        "ceildivsi": lambda a, b: -(-a // b),
        "floordivsi": lambda a, b: a // b,
        "divsi": lambda a, b: int(Fraction(a, b)),
        "remsi": lambda a, b: a - b * int(Fraction(a, b)),
    }[operation]
    expected = [(exact(a, b) - info.min) % (1 << info.bits) + info.min for a, b in pairs if b]
    assert z.tolist()[: len(expected)] == expected


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("operator", ["//", "%"])
def test_integer_division_truncates_as_c_does(dtype: torch.dtype, operator: str) -> None:
    x, y = integers(dtype), integers(dtype, 1)
    y = torch.where(y.to(torch.int64) == 0, torch.ones_like(y), y) if dtype.is_signed else y
    divisor = y.numpy().copy()
    divisor[divisor == 0] = 3
    if np.issubdtype(divisor.dtype, np.signedinteger):
        divisor[(divisor == -1)] = -7
    y = torch.from_numpy(divisor)
    left, right = x.numpy().astype(object), divisor.astype(object)
    quotient = np.array(
        [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(left, right, strict=True)]
    )
    expected = quotient if operator == "//" else left - quotient * right
    equal(run(f"x {operator} y", x, y), torch.from_numpy(expected.astype(divisor.dtype)))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_dividing_by_zero_does_not_stop_the_process(dtype: torch.dtype) -> None:
    """What the lanes of a zero, or of the lowest number by -1, hold is not defined; the others are right."""
    x = integers(dtype)
    y = torch.from_numpy((np.arange(N) % 2).astype(x.numpy().dtype))
    equal(run("x // y + x % y", x, y)[1::2], x[1::2])
    if np.issubdtype(x.numpy().dtype, np.signedinteger):
        lowest = torch.iinfo(dtype).min
        x[::2] = lowest
        x[1::2] = x[1::2].clamp(min=lowest + 1)
        equal(run("x // y + x % y", x, torch.full((N,), -1, dtype=dtype))[1::2], -x[1::2])


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("operator", ["<<", ">>"])
def test_shifts(dtype: torch.dtype, operator: str) -> None:
    x = integers(dtype)
    bits = dtype.itemsize * 8
    y = torch.from_numpy((np.arange(N) % bits).astype(x.numpy().dtype))
    expected = eval(f"x {operator} y", {}, {"x": x.numpy(), "y": y.numpy()})
    equal(run(f"x {operator} y", x, y), torch.from_numpy(expected))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("operator", ["==", "!=", "<", "<=", ">", ">="])
def test_comparisons(dtype: torch.dtype, operator: str) -> None:
    make = floats if dtype.is_floating_point else integers
    x, y = make(dtype), make(dtype, 1)
    y[::3] = x[::3]
    left, right = (v.float().numpy() if v.dtype == torch.bfloat16 else v.numpy() for v in (x, y))
    expected = eval(f"x {operator} y", {}, {"x": left, "y": right})
    equal(run(f"x {operator} y", x, y, out=torch.bool), torch.from_numpy(expected))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("operator", ["+", "-", "*", "/"])
def test_float_operators_round_once(dtype: torch.dtype, operator: str) -> None:
    x, y = floats(dtype), floats(dtype, 1)
    expected = eval(f"x {operator} y", {}, {"x": x, "y": y})
    if operator == "/" and dtype in (torch.float16, torch.bfloat16):
        expected = (x.float() / y.float()).to(dtype)
    equal(run(f"(x {operator} y).to(x.dtype)", x, y), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["minimum", "maximum"])
@pytest.mark.parametrize("propagate", ["NONE", "ALL"])
def test_extremes_and_nan(dtype: torch.dtype, name: str, propagate: str) -> None:
    x, y = floats(dtype), floats(dtype, 1).roll(3)
    reference = {
        "NONE": {"minimum": torch.fmin, "maximum": torch.fmax},
        "ALL": {"minimum": torch.minimum, "maximum": torch.maximum},
    }
    expected = reference[propagate][name](x, y)
    equal(run(f"tl.{name}(x, y, propagate_nan=tl.PropagateNan.{propagate})", x, y), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["minimum", "maximum"])
def test_integer_extremes(dtype: torch.dtype, name: str) -> None:
    x, y = integers(dtype), integers(dtype, 1)
    expected = getattr(np, name)(x.numpy(), y.numpy())
    equal(run(f"tl.{name}(x, y)", x, y), torch.from_numpy(expected))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("propagate", ["NONE", "ALL"])
def test_clamp(dtype: torch.dtype, propagate: str) -> None:
    x = floats(dtype)
    expected = x.clamp(-1, 2)
    if propagate == "NONE":
        expected = torch.where(x.isnan(), torch.full_like(x, -1), expected)
    low = "tl.full([N], -1.0, x.dtype)"
    high = "tl.full([N], 2.0, x.dtype)"
    equal(run(f"tl.clamp(x, {low}, {high}, propagate_nan=tl.PropagateNan.{propagate})", x), expected)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_unary(dtype: torch.dtype) -> None:
    x = floats(dtype) if dtype.is_floating_point else integers(dtype)
    with np.errstate(over="ignore"):
        negated = -x if dtype.is_floating_point else torch.from_numpy(0 - x.numpy())
        if dtype.is_floating_point:
            equal(run("-x", x).abs(), negated.abs())
            equal(run("tl.abs(x)", x), x.abs())
        else:
            equal(run("~x", x), torch.from_numpy(~x.numpy()))
            equal(run("-x" if dtype.is_signed else "0 - x", x), negated)


@pytest.mark.parametrize("source", [*INTEGERS, torch.bool])
@pytest.mark.parametrize("target", FLOATS)
def test_integers_to_floats(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.arange(N) % 2 == 0 if source == torch.bool else integers(source)
    name = f"tl.{str(target).removeprefix('torch.')}"
    reference = x.numpy().astype(np.float64 if True else None)
    if target == torch.float32:
        expected = torch.from_numpy(x.numpy().astype(np.float32))
    elif target == torch.float64:
        expected = torch.from_numpy(reference)
    else:
        if source.itemsize == 8:
            x = torch.from_numpy(x.numpy() >> 12)
            reference = x.numpy().astype(np.float64)
        if target == torch.float16:
            with np.errstate(over="ignore"):
                expected = torch.from_numpy(reference.astype(np.float16))
        else:
            expected = torch.from_numpy(reference).to(torch.bfloat16)
            if source.itemsize >= 4:  # torch rounds twice
                np.testing.assert_allclose(run(f"x.to({name})", x, out=target).float().numpy(), reference, rtol=2**-8)
                return
    equal(run(f"x.to({name})", x, out=target), expected)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_to_integers(source: torch.dtype, target: torch.dtype) -> None:
    low = 0.0 if target in (torch.uint8, torch.uint16, torch.uint32, torch.uint64) else -100.0
    x = (torch.rand(N, dtype=torch.float64) * (100.0 - low) + low).to(source)
    expected = torch.from_numpy(x.double().numpy().astype(str(target).removeprefix("torch.")))
    equal(run(f"x.to(tl.{str(target).removeprefix('torch.')})", x, out=target), expected)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_floats_to_floats(source: torch.dtype, target: torch.dtype) -> None:
    bits = torch.randint(0, 1 << 16, (N,), dtype=torch.int32).to(torch.int16)
    x = (
        bits.view(source)
        if source.itemsize == 2
        else (torch.randn(N, dtype=torch.float64) * 10.0 ** torch.randint(-9, 9, (N,))).to(source)
    )
    expected = x.to(target)
    if source == torch.float64 and target.itemsize == 2:
        with np.errstate(over="ignore"):
            expected = torch.from_numpy(x.numpy().astype(np.float16)) if target == torch.float16 else expected
        if target == torch.bfloat16:  # torch rounds twice
            np.testing.assert_allclose(run("x.to(tl.bfloat16)", x, out=target).double(), x, rtol=2**-8)
            return
    actual = run(f"x.to(tl.{str(target).removeprefix('torch.')})", x, out=target)
    equal(torch.nan_to_num(actual), torch.nan_to_num(expected))
    equal(actual.isnan(), expected.isnan())


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_integers_to_integers(source: torch.dtype, target: torch.dtype) -> None:
    x = integers(source)
    expected = torch.from_numpy(x.numpy().astype(str(target).removeprefix("torch.")))
    equal(run(f"x.to(tl.{str(target).removeprefix('torch.')})", x, out=target), expected)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float8e5", torch.float8_e5m2), ("float8e4nv", torch.float8_e4m3fn), ("float8e5b16", torch.float8_e5m2fnuz),
     ("float8e4b8", torch.float8_e4m3fnuz)],
)  # fmt: skip
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16])
def test_float8(name: str, dtype: torch.dtype, wide: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    numbers = codes.view(dtype)
    actual = run(f"x.to(tl.{name}, bitcast=True).to(tl.{str(wide).removeprefix('torch.')})", codes, out=wide)
    equal(actual, numbers.to(wide))
    # Back: every number, and numbers between, rounded to the nearest even.
    finite = numbers.float()[numbers.float().isfinite()].sort().values
    between = torch.cat([finite, (finite[1:] + finite[:-1]) / 2])[:N]
    x = torch.zeros(N)
    x[: between.numel()] = between
    x = x.to(wide)
    back = run(f"x.to(tl.{name}).to(tl.uint8, bitcast=True)", x, out=torch.uint8).view(dtype)
    np.testing.assert_array_equal(back.float().numpy(), x.to(dtype).float().numpy())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float8e5", torch.float8_e5m2), ("float8e4nv", torch.float8_e4m3fn), ("float8e5b16", torch.float8_e5m2fnuz),
     ("float8e4b8", torch.float8_e4m3fnuz)],
)  # fmt: skip
def test_what_is_too_large_for_float8_becomes_the_largest_number(name: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.full((N,), largest)
    x[:6] = torch.tensor([largest * 1.2, 1e30, math.inf, -largest * 1.2, -1e30, -math.inf])
    back = run(f"x.to(tl.{name}).to(tl.uint8, bitcast=True)", x, out=torch.uint8).view(dtype)
    assert torch.equal(back.float(), x.clamp(-largest, largest))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float8e5", torch.float8_e5m2), ("float8e4nv", torch.float8_e4m3fn), ("float8e5b16", torch.float8_e5m2fnuz),
     ("float8e4b8", torch.float8_e4m3fnuz)],
)  # fmt: skip
@pytest.mark.parametrize("number", [0.0, -1.5, 240.0, 3 * 2.0**-10, float("nan")])
def test_float8_constants(name: str, dtype: torch.dtype, number: float) -> None:
    kept = torch.arange(N) % 256 < 100
    text = f"tl.full((N,), float('{number}'), tl.float32).to(tl.{name})"
    x = torch.ones(N).to(dtype)
    actual = run(f"tl.load(z + i, mask=x.to(tl.float32) < 0, other={text})", x, out=dtype)
    np.testing.assert_array_equal(actual.float().numpy(), torch.full((N,), number).to(dtype).float().numpy())
    actual = run(f"tl.where(i % 256 < 100, x, tl.zeros((N,), tl.{name}))", x, out=dtype)
    assert torch.equal(actual.float(), kept.float())


@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_float8e4b15(wide: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.int32)
    expected = ((codes & 0x80) << 8 | (codes & 0x7F) << 7).to(torch.int16).view(torch.float16).to(wide)
    name = str(wide).removeprefix("torch.")
    assert torch.equal(
        run(f"x.to(tl.float8e4b15, bitcast=True).to(tl.{name})", codes.to(torch.uint8), out=wide), expected
    )
    # Back: every number but 0x7f, which is no result, what lies between (ties away from zero), and what is too large.
    numbers = expected[:127]
    for x, magnitude in ((numbers, codes[:127]), ((numbers[1:] + numbers[:-1]) / 2, codes[1:127]), (numbers + 4, 0x7E)):
        padded = torch.zeros(128, dtype=wide)
        padded[: x.numel()] = x
        for sign, flag in ((1, 0), (-1, 0x80)):
            back = run("x.to(tl.float8e4b15).to(tl.uint8, bitcast=True)", sign * padded, out=torch.uint8)
            assert torch.equal(
                back[: x.numel()].int(), torch.as_tensor(magnitude | flag, dtype=torch.int32).expand(x.shape)
            )


def test_multiply_high() -> None:
    for dtype, bits in ((torch.uint32, 32), (torch.uint64, 64)):
        x, y = integers(dtype), integers(dtype, 1)
        expected = [(int(a) * int(b)) >> bits for a, b in zip(x.numpy(), y.numpy(), strict=True)]
        equal(run("tl.umulhi(x, y)", x, y), torch.from_numpy(np.array(expected, dtype=x.numpy().dtype)))


def test_where_broadcasts_and_keeps_types() -> None:
    x = torch.arange(N, dtype=torch.int32)
    equal(run("tl.where(x % 2 == 0, x, -x)", x), torch.where(x % 2 == 0, x, -x))


def test_bool_memory() -> None:
    flags = torch.arange(N) % 3 == 0
    equal(run("x ^ True", flags), ~flags)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int16])
def test_bitcasts(dtype: torch.dtype) -> None:
    x = integers({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    target = {torch.float32: "float32", torch.float64: "float64", torch.int32: "float32", torch.int16: "float16"}[dtype]
    back = str(x.dtype).removeprefix("torch.")
    equal(run(f"x.to(tl.{target}, bitcast=True).to(tl.{back}, bitcast=True)", x), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_multiply_add_rounds_once(dtype: torch.dtype) -> None:
    x, y = floats(dtype)[6:].repeat(2)[:N], floats(dtype, 1)[6:].repeat(2)[:N]
    actual = run("tl.fma(x, y, -x * y)", x, y)
    assert actual.abs().max() <= torch.finfo(dtype).eps * 100


def test_fused_multiply_add_of_narrow_numbers_rounds_once() -> None:
    """The sum lies just below the middle of two numbers of 16 bits; with 24 bits it would be the middle."""
    x, y, z = (torch.full((N,), value, dtype=torch.float16) for value in (-80.8125, -192.0, -6.574392318725586e-05))
    assert run("tl.fma(x, tl.full([N], -192.0, tl.float16), y)", x, z).tolist() == [15512.0] * N
    assert run("tl.fma(x, y, y * 0)", x, y).tolist() == [15520.0] * N


def test_keyword_kernel_arguments_of_every_kind() -> None:
    @triton.jit
    def kernel(z, a, b, c, d, e):
        tl.store(z, a.to(tl.float64))
        tl.store(z + 1, b.to(tl.float64))
        tl.store(z + 2, c.to(tl.float64))
        tl.store(z + 3, d.to(tl.float64))
        tl.store(z + 4, e.to(tl.float64))

    result = torch.empty(5, dtype=torch.float64, device="mtia")
    arguments: list[Any] = [7, -(1 << 40), 2.5, True, (1 << 64) - 1]
    kernel[(1,)](result, *arguments)
    assert result.tolist() == [7.0, float(-(1 << 40)), 2.5, 1.0, float((1 << 64) - 1)]


@pytest.mark.parametrize("divisor", [16, -16, -48, 64, 1 << 30, -(1 << 31)])
def test_indices_are_divided_by_negative_and_by_large_unsigned_numbers(divisor: int) -> None:
    @triton.jit
    def kernel(z, divisor, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(z + i, EXPRESSION)  # type: ignore[name-defined]  # noqa: F821

    i, unsigned = torch.arange(64), divisor % (1 << 32)
    for expression, expected in (
        ("i // divisor", torch.div(i, divisor, rounding_mode="trunc")),
        ("i % divisor", torch.fmod(i, divisor)),
        ("i.to(tl.uint32) // divisor.to(tl.uint32)", i // unsigned),
        ("i.to(tl.uint32) % divisor.to(tl.uint32)", i % unsigned),
    ):
        z = torch.zeros(64, dtype=torch.int32, device="mtia")
        with_source(kernel, EXPRESSION=expression)[(1,)](z, divisor, N=64)
        assert torch.equal(z.cpu(), expected.int()), expression


@pytest.mark.parametrize("divisor", [3.0, -0.1, 7e-39, 1e-45, 3e38, 0.0, math.inf, math.nan, 2.0**64])
def test_division_by_a_scalar_rounds_once(divisor: float) -> None:
    @triton.jit
    def kernel(x, y, z, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(z + i, tl.load(x + i) / tl.load(y))

    x = torch.cat([torch.randn(2000), torch.arange(-30.0, 30.0), torch.randn(2036) * 1e38])[:4096]
    x[:5] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    x[5:100] *= 1e-40
    x = torch.nn.functional.pad(x, (0, 4096 - x.numel()))
    y, z = torch.tensor([divisor]), torch.zeros(4096, device="mtia")
    kernel[(1,)](x.to("mtia"), y.to("mtia"), z, N=4096)
    np.testing.assert_array_equal(z.cpu().numpy(), (x / y).numpy())


@triton.jit
def _widened(start, step, sums, products, counted):
    lane = tl.arange(0, 64)
    added = (lane + start).to(tl.int64)
    tl.store(sums + lane, added * 3 + 1)
    tl.store(products + lane, (lane * step).to(tl.int64))
    for _ in range(3):
        added += step
    tl.store(counted + lane, added)


def test_indices_that_wrap_are_wrapped_where_they_are_widened() -> None:
    sums, products, counted = (torch.zeros(64, dtype=torch.int64, device="mtia") for _ in range(3))
    start, step = 2**31 - 20, 2**30 - 1
    _widened[(1,)](start, step, sums, products, counted)
    lane = np.arange(64, dtype=np.int32)
    with np.errstate(over="ignore"):
        added, multiplied = lane + np.int32(start), lane * np.int32(step)
    equal(sums.cpu(), torch.from_numpy(added.astype(np.int64) * 3 + 1))
    equal(products.cpu(), torch.from_numpy(multiplied.astype(np.int64)))
    equal(counted.cpu(), torch.from_numpy(added.astype(np.int64) + 3 * step))


@triton.jit
def _masked_by_wrapped(start, out):
    lane = tl.arange(0, 64)
    tl.store(out + lane, lane, mask=lane + start < 5)


def test_masks_of_indices_that_wrap_hold_behind_the_wrap() -> None:
    out = torch.full((64,), -1, dtype=torch.int32, device="mtia")
    _masked_by_wrapped[(1,)](2**31 - 20, out)
    lane = torch.arange(64, dtype=torch.int32)
    equal(out.cpu(), torch.where(lane < 20, -1, lane))


@triton.jit
def _masked_by_widened(start, bound, total, out):
    lane = tl.arange(0, 512)
    mask = (lane + start).to(tl.int64) - 1000 < bound
    tl.store(out + lane, lane, mask=mask)
    tl.store(total, tl.sum(tl.where(mask, lane, 0)))


def test_masks_of_indices_that_wrapped_before_they_were_widened_hold_behind_the_wrap() -> None:
    total = torch.zeros(1, dtype=torch.int32, device="mtia")
    out = torch.full((512,), -1, dtype=torch.int32, device="mtia")
    _masked_by_widened[(1,)](2**31 - 40, 0, total, out)
    lane = torch.arange(512, dtype=torch.int32)
    equal(out.cpu(), torch.where(lane < 40, -1, lane))
    assert total.item() == sum(range(40, 512))


@triton.jit
def _wrapped_differences(start, sums, below, quotients):
    lane = tl.arange(0, 64)
    difference = (lane + start).to(tl.int64) - lane
    tl.store(sums + lane, difference + 1)
    tl.store(below + lane, difference < 0)
    tl.store(quotients + lane, difference // 3)


def test_differences_of_indices_tell_where_one_of_them_wrapped() -> None:
    sums, quotients = (torch.zeros(64, dtype=torch.int64, device="mtia") for _ in range(2))
    below = torch.zeros(64, dtype=torch.bool, device="mtia")
    start = 2**31 - 20
    _wrapped_differences[(1,)](start, sums, below, quotients)
    difference = torch.where(torch.arange(64) < 20, start, start - 2**32)
    equal(sums.cpu(), difference + 1)
    equal(below.cpu(), difference < 0)
    equal(quotients.cpu(), torch.div(difference, 3, rounding_mode="trunc"))


@triton.jit
def _shifted(start, out):
    index = (tl.program_id(0) - 2) * 64 + start * 16 + tl.arange(0, 64)
    tl.store(out + tl.program_id(0) * 64 + tl.arange(0, 64), index >> 4)


@triton.jit
def _narrow_index(few, out):
    lane = tl.arange(0, 64)
    start = (tl.program_id(0) < few).to(tl.int8) * 64 + 64  # -128
    tl.store(out + lane, (start.to(tl.int32) + lane) // 16)
    tl.store(out + 64 + lane, (start.to(tl.int32) + lane) % 16)


def test_a_sum_of_8_bits_may_be_below_zero() -> None:
    out = torch.zeros(128, dtype=torch.int32, device="mtia")
    _narrow_index[(1,)](5, out)
    lane = torch.arange(-128, -64)
    quotients = torch.div(lane, 16, rounding_mode="trunc")
    equal(out.cpu(), torch.cat([quotients, lane - quotients * 16]).int())


@triton.jit
def _bits_of_indices(out, N: tl.constexpr):
    lane = tl.arange(0, N).to(tl.int64)
    tl.store(out + lane, (lane + 0x3FF0000000000000).to(tl.float64, bitcast=True) * 2.0)


def test_bits_of_indices_may_be_numbers() -> None:
    out = torch.zeros(N, dtype=torch.float64, device="mtia")
    _bits_of_indices[(1,)](out, N)
    equal(out.cpu(), (torch.arange(N) + 0x3FF0000000000000).view(torch.float64) * 2)


def test_indices_below_zero_are_shifted_with_their_sign() -> None:
    out = torch.zeros(4 * 64, dtype=torch.int32, device="mtia")
    _shifted[(4,)](0, out)
    equal(out.cpu(), (torch.arange(4 * 64, dtype=torch.int32) - 2 * 64) >> 4)


@triton.jit
def _shifted_product(out):
    index = tl.program_id(0) * 1073741824 + tl.arange(0, 64)
    tl.store(out + tl.program_id(0) * 64 + tl.arange(0, 64), index >> 4)


def test_indices_that_wrapped_are_shifted_with_their_sign() -> None:
    out = torch.zeros(4 * 64, dtype=torch.int32, device="mtia")
    _shifted_product[(4,)](out)
    product = torch.arange(4, dtype=torch.int32) * 2**30
    equal(out.cpu(), ((product[:, None] + torch.arange(64, dtype=torch.int32)) >> 4).flatten())


@triton.jit
def _doubled(start, out):
    lane = tl.arange(0, 64)
    index = (lane + start).to(tl.int64)
    for _ in tl.static_range(40):
        index = (index + index) - (index + 3)
    tl.store(out + lane, index)


def test_an_index_may_be_used_twice_many_times_over() -> None:
    out = torch.zeros(64, dtype=torch.int64, device="mtia")
    _doubled[(1,)](7, out)
    equal(out.cpu(), torch.arange(64) + 7 - 3 * 40)


@triton.jit
def _widened_unsigned(out):
    program = tl.program_id(0)
    index = program * 1431655765 + tl.arange(0, 64)
    tl.store(out + program * 64 + tl.arange(0, 64), index.to(tl.uint32).to(tl.int64))


def test_unsigned_indices_that_wrap_are_wrapped_where_they_are_widened() -> None:
    out = torch.zeros(4 * 64, dtype=torch.int64, device="mtia")
    _widened_unsigned[(4,)](out)
    index = torch.arange(4)[:, None] * 1431655765 + torch.arange(64)
    equal(out.cpu(), (index % 2**32).flatten())


@triton.jit
def _repeated(x, z, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x + i)
    REPEATED  # type: ignore[name-defined]  # noqa: B018, F821
    tl.store(z + i, x)


def test_a_long_chain_of_operations() -> None:
    expected = torch.arange(64)
    x, z = expected.to("mtia"), torch.empty(64, dtype=torch.int64, device="mtia")
    with_source(_repeated, REPEATED="; ".join(["x = (x ^ 5) + 1"] * 700))[(1,)](x, z, N=64)
    for _ in range(700):
        expected = (expected ^ 5) + 1
    assert torch.equal(z.cpu(), expected)
