"""Mathematical functions of Triton kernels are accurate to a few units in the last place."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy import special
from triton.language.extra import libdevice
from triton_language import _unary_kernel, run, with_source

from torch_mtia.triton import machine
from torch_mtia.triton.architecture import usable

N = 4096


def arguments(low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
    """Evenly spread, and small ones of both signs if the range has them, and what is special."""
    even = np.linspace(low, high, N // 2)
    small = np.geomspace(1e-30, max(abs(low), abs(high)), N // 2) * np.where(np.arange(N // 2) % 2, 1, -1)
    small = np.where((small < low) | (small > high), abs(small), small)
    small = np.clip(small, low, high)
    return torch.from_numpy(np.concatenate([even, small])).to(dtype)


def check(actual: torch.Tensor, expected: np.ndarray[Any, Any], ulps: float) -> None:
    dtype = actual.dtype
    left = actual.double().numpy()
    limit = torch.finfo(dtype)
    expected = np.asarray(expected, dtype=np.float64)
    rounded = torch.from_numpy(expected).to(dtype).double().numpy()
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(np.isnan(left), np.isnan(rounded))
    np.testing.assert_array_equal(left[~finite & ~np.isnan(rounded)], rounded[~finite & ~np.isnan(rounded)])
    unit = np.maximum(np.abs(expected[finite]) * limit.eps, limit.tiny * limit.eps * 4)
    error = np.abs(left[finite] - expected[finite]) / unit
    assert error.max(initial=0) <= ulps, f"{error.max()} at {error.argmax()}"


FUNCTIONS: list[tuple[str, Callable[..., Any], float, float]] = [
    ("tl.exp(x)", np.exp, -110, 95),
    ("tl.exp2(x)", np.exp2, -155, 130),
    ("tl.log(x)", np.log, 0, 1e30),
    ("tl.log2(x)", np.log2, 0, 1e30),
    ("tl.sin(x)", np.sin, -1e4, 1e4),
    ("tl.cos(x)", np.cos, -1e4, 1e4),
    ("tl.sqrt(x)", np.sqrt, 0, 1e30),
    ("tl.rsqrt(x)", lambda x: 1 / np.sqrt(x), 1e-20, 1e20),
    ("tl.erf(x)", special.erf, -6, 6),
    ("tl.floor(x)", np.floor, -1e3, 1e3),
    ("tl.ceil(x)", np.ceil, -1e3, 1e3),
    ("tl.sigmoid(x)", special.expit, -80, 80),
    ("libdevice.tanh(x)", np.tanh, -20, 20),
    ("libdevice.tan(x)", np.tan, -1e2, 1e2),
    ("libdevice.asin(x)", np.arcsin, -1, 1),
    ("libdevice.acos(x)", np.arccos, -1, 1),
    ("libdevice.atan(x)", np.arctan, -1e3, 1e3),
    ("libdevice.sinh(x)", np.sinh, -80, 80),
    ("libdevice.cosh(x)", np.cosh, -80, 80),
    ("libdevice.asinh(x)", np.arcsinh, -1e10, 1e10),
    ("libdevice.acosh(x)", np.arccosh, 1, 1e10),
    ("libdevice.atanh(x)", np.arctanh, -0.999, 0.999),
    ("libdevice.expm1(x)", np.expm1, -60, 80),
    ("libdevice.log1p(x)", np.log1p, -0.999, 1e10),
    ("libdevice.log10(x)", np.log10, 1e-30, 1e30),
    ("libdevice.exp10(x)", lambda x: np.power(10.0, x), -40, 38),
    ("libdevice.cbrt(x)", np.cbrt, -1e20, 1e20),
    ("libdevice.rcbrt(x)", lambda x: 1 / np.cbrt(x), 1e-20, 1e20),
    ("libdevice.erfc(x)", special.erfc, -6, 9),
    ("libdevice.erfcx(x)", special.erfcx, -5, 1e3),
    ("libdevice.erfinv(x)", special.erfinv, -0.999, 0.999),
    ("libdevice.erfcinv(x)", special.erfcinv, 1e-8, 1.99),
    ("libdevice.normcdf(x)", special.ndtr, -8, 8),
    ("libdevice.normcdfinv(x)", special.ndtri, 1e-6, 0.999),
    ("libdevice.lgamma(x)", special.gammaln, 0.1, 100),
    ("libdevice.tgamma(x)", special.gamma, 0.1, 30),
    ("libdevice.j0(x)", special.j0, 0, 2),
    ("libdevice.j1(x)", special.j1, 0.1, 3),
    ("libdevice.y0(x)", special.y0, 1.5, 3),
    ("libdevice.cyl_bessel_i0(x)", special.i0, -5, 5),
    ("libdevice.cyl_bessel_i1(x)", special.i1, -5, 5),
    ("libdevice.trunc(x)", np.trunc, -1e3, 1e3),
    ("libdevice.rint(x)", np.rint, -1e3, 1e3),
    ("libdevice.round(x)", lambda x: np.trunc(x + np.copysign(0.5, x)), -1e3, 1e3),
    ("libdevice.sinpi(x)", lambda x: np.sin(np.pi * (x - 2 * np.rint(x / 2))), 0.01, 0.99),
    ("libdevice.cospi(x)", lambda x: np.cos(np.pi * (x - 2 * np.rint(x / 2))), -0.49, 0.49),
]


def erfcx_of_many_digits(x: mpmath.mpf) -> mpmath.mpf:
    if x < 50:
        return mpmath.exp(x * x) * mpmath.erfc(x)
    terms, term = mpmath.mpf(1), mpmath.mpf(1)
    for k in range(1, 8):
        term *= -(2 * k - 1) / (2 * x * x)
        terms += term
    return terms / (x * mpmath.sqrt(mpmath.pi))


# Where SciPy and NumPy in f64 are not accurate enough to say how accurate something is.
MANY_DIGITS: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "exp10": lambda x: mpmath.power(10, x),
    "erfc": mpmath.erfc,
    "erfcx": erfcx_of_many_digits,
    "erfinv": mpmath.erfinv,
    "erfcinv": lambda x: mpmath.erfinv(1 - x),
    "normcdf": lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "normcdfinv": lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1),
    "lgamma": mpmath.loggamma,
    "tgamma": mpmath.gamma,
    "j0": lambda x: mpmath.besselj(0, x),
    "j1": lambda x: mpmath.besselj(1, x),
    "y0": lambda x: mpmath.bessely(0, x),
    "cyl_bessel_i0": lambda x: mpmath.besseli(0, x),
    "cyl_bessel_i1": lambda x: mpmath.besseli(1, x),
    "sinpi": mpmath.sinpi,
    "cospi": mpmath.cospi,
}
EVERY = 32  # so many arguments apart: many digits take long


def name_of(expression: str) -> str:
    return expression.partition(".")[2].partition("(")[0]


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [(row[0], *row[2:]) for row in FUNCTIONS if name_of(row[0]) in MANY_DIGITS],
    ids=[name_of(row[0]) for row in FUNCTIONS if name_of(row[0]) in MANY_DIGITS],
)
def test_accuracy_of_what_is_rare_in_f64(expression: str, low: float, high: float) -> None:
    x = arguments(low, high, torch.float64)
    name = name_of(expression)
    computed = run(expression, x)[::EVERY]
    with mpmath.workdps(40):
        exact = [MANY_DIGITS[name](mpmath.mpf(number)) for number in x[::EVERY].tolist()]
        errors = [abs(mpmath.mpf(one) - other) for one, other in zip(computed.tolist(), exact, strict=True)]
        ulps = [float(error / abs(other)) * 2**52 for error, other in zip(errors, exact, strict=True) if other]
    assert max(ulps) <= (10.0 if name == "erfcx" else 4.0)


@pytest.mark.parametrize(("expression", "reference", "low", "high"), FUNCTIONS, ids=[row[0] for row in FUNCTIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unary(expression: str, reference: Callable[..., Any], low: float, high: float, dtype: torch.dtype) -> None:
    if dtype == torch.float64 and "sigmoid" in expression:
        pytest.skip("tl.sigmoid of f64 goes through tl.exp, which is tested")
    if dtype == torch.float64 and name_of(expression) in MANY_DIGITS:
        pytest.skip("compared with many digits in a test of its own")
    x = arguments(low, high, dtype)
    with np.errstate(all="ignore"):
        expected = reference(x.double().numpy())
    check(run(expression, x), expected, 3.0 if dtype == torch.float32 else 6.0)


def test_angles_of_any_size() -> None:
    x = torch.from_numpy(np.concatenate([np.geomspace(1, 1e38, N // 2), -np.geomspace(1, 1e38, N // 2)])).float()
    check(run("tl.sin(x)", x), np.sin(x.double().numpy()), 2)
    check(run("tl.cos(x)", x), np.cos(x.double().numpy()), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_values(dtype: torch.dtype) -> None:
    x = torch.zeros(N, dtype=dtype)
    x[:5] = torch.tensor([math.inf, -math.inf, math.nan, -0.0, -1.0])
    for name in ["exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "erf"]:
        expected = getattr(torch, name)(x)
        np.testing.assert_allclose(run(f"tl.{name}(x)", x)[:5].numpy(), expected[:5].numpy(), rtol=2e-7, err_msg=name)
    for name in ["tanh", "atan", "asinh", "expm1", "log1p"]:
        actual, expected = run(f"libdevice.{name}(x)", x)[:5], getattr(torch, name)(x)[:5]
        np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["tanh", "sinh", "asinh", "atan", "asin", "atanh", "expm1", "log1p", "cbrt", "erf"])
def test_an_odd_function_keeps_the_sign_of_zero(name: str, dtype: torch.dtype) -> None:
    x = torch.zeros(N, dtype=dtype)
    x[::2] = -0.0
    assert torch.equal(run(f"libdevice.{name}(x)", x).signbit(), x.signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sin", "cos", "tan", "sinpi", "cospi"])
def test_a_periodic_function_has_no_value_at_infinity(name: str, dtype: torch.dtype) -> None:
    x = torch.full((N,), math.inf, dtype=dtype)
    x[::2] = -math.inf
    assert run(f"libdevice.{name}(x)", x).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "reference", "low", "high"),
    [("cbrt", np.cbrt, -1.0, 1.0), ("acosh", np.arccosh, -1.0, 1.0), ("expm1", np.expm1, 0.0, 0.0)],
)
def test_largest_numbers(name: str, reference: Callable[..., Any], low: float, high: float, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = np.concatenate([np.linspace(0, math.log(largest), N // 2), np.linspace(low, high, N // 2) * largest])
    numbers = torch.from_numpy(x).to(dtype)
    with np.errstate(all="ignore"):
        check(run(f"libdevice.{name}(x)", numbers), reference(numbers.double().numpy()), 4)


BINARY: list[tuple[str, Callable[..., Any]]] = [
    ("libdevice.pow(x, y)", np.power),
    ("libdevice.atan2(x, y)", np.arctan2),
    ("libdevice.fmod(x, y)", np.fmod),
    ("libdevice.hypot(x, y)", np.hypot),
    ("libdevice.copysign(x, y)", np.copysign),
    ("libdevice.fdim(x, y)", lambda x, y: np.maximum(x - y, 0)),
    ("libdevice.nextafter(x, y)", np.nextafter),
]


@pytest.mark.parametrize(("expression", "reference"), BINARY, ids=[row[0] for row in BINARY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary(expression: str, reference: Callable[..., Any], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, generator=generator, dtype=dtype) * 10
    y = torch.randn(N, generator=generator, dtype=dtype) * 5
    x[:64], y[:64] = (
        torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5]).repeat(8),
        torch.tensor([0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -0.5, -0.0]).repeat_interleave(8),
    )
    with np.errstate(all="ignore"):
        if "nextafter" in expression:
            expected = reference(x.numpy(), y.numpy())
        else:
            expected = reference(x.double().numpy(), y.double().numpy())
    check(run(expression, x, y), expected, 2)


def test_predicates() -> None:
    x = torch.zeros(N)
    x[:5] = torch.tensor([math.inf, -math.inf, math.nan, -0.0, -1.0])
    assert torch.equal(run("libdevice.isnan(x)", x, out=torch.int32).bool(), x.isnan())
    assert torch.equal(run("libdevice.isinf(x)", x, out=torch.int32).bool(), x.isinf())
    assert torch.equal(run("libdevice.finitef(x)", x, out=torch.int32).bool(), x.isfinite())
    assert torch.equal(run("libdevice.signbit(x)", x, out=torch.int32).bool(), x.signbit())


def test_exponents() -> None:
    x = arguments(1e-30, 1e30, torch.float32)
    expected = torch.frexp(x).exponent - 1
    assert torch.equal(run("libdevice.ilogb(x)", x, out=torch.int32), expected)
    assert torch.equal(run("libdevice.logb(x)", x), expected.float())
    powers = torch.arange(N, dtype=torch.int32) % 300 - 150
    assert torch.equal(run("libdevice.ldexp(x, y)", x, powers), torch.ldexp(x.double(), powers).float())


def test_bit_functions() -> None:
    x = torch.randint(-(1 << 31), 1 << 31, (N,), dtype=torch.int64).to(torch.int32)
    unsigned = x.numpy().astype(np.uint32)
    assert run("libdevice.popc(x)", x).tolist() == [int(v).bit_count() for v in unsigned]
    assert run("libdevice.clz(x)", x).tolist() == [32 - int(v).bit_length() for v in unsigned]
    assert run("libdevice.ffs(x)", x).tolist() == [(int(v) & -int(v)).bit_length() for v in unsigned]
    reverse = [int(f"{v:032b}"[::-1], 2) for v in unsigned]
    assert run("libdevice.brev(x)", x).numpy().astype(np.uint32).tolist() == reverse


def test_ldexp_rounds_once() -> None:
    """Also where two steps would each round to a subnormal number."""
    x = torch.from_numpy(np.ldexp(1 + np.arange(1024) * 2.0**-52 + 2.0**-30, np.arange(1024) % 200 - 100))
    powers = torch.arange(1024, dtype=torch.int32).flip(0) * 3 - 2000
    for function in ("ldexp", "scalbn"):
        assert torch.equal(run(f"libdevice.{function}(x, y)", x, powers), torch.ldexp(x, powers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_with_integer_exponents_use_every_bit_of_them(dtype: torch.dtype) -> None:
    odd = [1, 3, (1 << 24) + 1, (1 << 25) - 1, (1 << 30) + 1, (1 << 31) - 1]
    exponents = torch.tensor([*odd, *(-n for n in odd), 0, 2, 1 << 24, -(1 << 31)], dtype=torch.int32)
    base = torch.full((16,), -1.0, dtype=dtype)
    expected = torch.where(exponents % 2 == 1, -1.0, 1.0).to(dtype)
    assert torch.equal(run("libdevice.pow(x, y)", base, exponents), expected)
    near = torch.full((16,), 1 + 2.0**-20, dtype=dtype)
    exact = [mpmath.mpf(float(near[0])) ** int(n) for n in exponents]
    check(run("libdevice.pow(x, y)", near, exponents), np.array([float(value) for value in exact]), 2)


@pytest.mark.parametrize("function", ["jn", "yn"])
def test_bessel_functions_have_no_negative_order(function: str) -> None:
    orders = torch.tensor([-3, -1, 0, 1, 2, 7, 50, -(1 << 31)], dtype=torch.int32)
    x = torch.full((8,), 2.5, dtype=torch.float64)
    actual = run(f"libdevice.{function}(x, y)", orders, x, out=torch.float64)
    expected = np.where(orders.numpy() < 0, np.nan, getattr(special, function)(np.maximum(orders.numpy(), 0), 2.5))
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-13)


# Directed rounding ----------------------------------------------------------------------------------------------------

MODES = ["rz", "rd", "ru", "rn"]
DIGITS = {  # and the exponents of the least number and of what is beyond the greatest
    torch.float16: (11, -24, 16),
    torch.bfloat16: (8, -133, 128),
    torch.float32: (24, -149, 128),
    torch.float64: (53, -1074, 1024),
}


ROUND: dict[str, Callable[[Any], int]] = {"rd": math.floor, "ru": math.ceil, "rn": round, "rz": math.trunc}


def rounded(exact: Fraction, mode: str, dtype: torch.dtype) -> float:
    """As IEEE 754 rounds a number that is not zero."""
    digits, least, greatest = DIGITS[dtype]
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < (Fraction(2) ** exponent)
    unit = Fraction(2) ** max(exponent - digits + 1, least)
    quotient = exact / unit
    whole = ROUND[mode](quotient)
    rounded_size: Fraction | float
    if abs(whole) * unit >= Fraction(2) ** greatest:
        inward = mode == "rz" or (mode == "rd" and exact > 0) or (mode == "ru" and exact < 0)
        rounded_size = Fraction(torch.finfo(dtype).max) if inward else math.inf
    else:
        rounded_size = abs(whole) * unit
    return math.copysign(float(rounded_size), 1 if exact > 0 else -1)


def square_root(x: Fraction) -> Fraction:
    """Or a number between the same neighbours."""
    shift = 2400
    root = math.isqrt((x.numerator << 2 * shift) // x.denominator)
    inexact = Fraction(root, 1 << shift) ** 2 != x
    return Fraction(2 * root + inexact, 2 << shift)


OPERATORS: dict[str, tuple[Callable[..., Fraction], Callable[..., Any]]] = {
    "add": (lambda x, y: x + y, np.add),
    "sub": (lambda x, y: x - y, np.subtract),
    "mul": (lambda x, y: x * y, np.multiply),
    "div": (lambda x, y: x / y, np.divide),
    "sqrt": (square_root, np.sqrt),
    "rcp": (lambda x: 1 / x, np.reciprocal),
    "fma": (lambda x, y, z: x * y + z, lambda x, y, z: z if np.isfinite(x) and np.isfinite(y) else x * y + z),
}


def expected_of(operator: str, mode: str, dtype: torch.dtype, *operands: float) -> float:
    exactly, by_numpy = OPERATORS[operator]
    with np.errstate(all="ignore"):
        nearest = float(by_numpy(*map(np.float64, operands)))
    divides_by_zero = (operator == "div" and operands[1] == 0) or (operator == "rcp" and operands[0] == 0)
    if not all(map(math.isfinite, operands)) or divides_by_zero or (operator == "sqrt" and operands[0] < 0):
        return nearest
    exact = exactly(*map(Fraction, operands))
    if exact != 0:
        return rounded(exact, mode, dtype)
    cancels = operator in ("add", "sub") and any(operands)
    if operator == "fma":
        cancels = operands[2] != 0 or math.copysign(1, operands[0]) * math.copysign(1, operands[1]) != math.copysign(
            1, operands[2]
        )
    elif operator in ("add", "sub"):
        cancels |= math.copysign(1, operands[0]) != math.copysign(1, operands[1] if operator == "add" else -operands[1])
    return (-0.0 if mode == "rd" else 0.0) if cancels else nearest


def numbers_of_all_sizes(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Zeros, infinities, NaN, the ends of the ranges of normal and subnormal numbers, and random bits."""
    limits, integers = torch.finfo(dtype), {torch.float32: torch.int32, torch.float64: torch.int64}[dtype]
    least = 2.0 ** DIGITS[dtype][1]
    named = [0.0, least, 3 * least, limits.tiny, limits.tiny - least, limits.max, 1.0, 1 + limits.eps, 3.0, 0.1]
    named += [math.inf, limits.max / 2, limits.tiny**0.5, limits.max**0.5]
    special_ones = torch.tensor([*named, *(-each for each in named), math.nan, 1e-30], dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    bits = torch.iinfo(integers)
    others = torch.randint(bits.min, bits.max, (count,), generator=generator, dtype=integers).view(dtype)
    chosen = torch.randint(0, special_ones.numel(), (count,), generator=generator)
    middle = torch.randn(count, generator=generator, dtype=dtype)
    which = torch.randint(0, 3, (count,), generator=generator)
    return torch.where(which == 0, special_ones[chosen], torch.where(which == 1, others, middle))


def assert_rounds(operator: str, mode: str, symbol: str, level: str, *operands: torch.Tensor) -> None:
    dtype = operands[0].dtype
    names = ("x", "y", "t")[: len(operands)]
    actual = run(f"libdevice.{symbol}({', '.join(names)})", *operands, arch=level)
    lists = [operand.double().tolist() for operand in operands]
    expected = torch.tensor(
        [expected_of(operator, mode, dtype, *each) for each in zip(*lists, strict=True)], dtype=torch.float64
    ).to(dtype)
    same = (actual == expected) & (actual.signbit() == expected.signbit()) | (actual.isnan() & expected.isnan())
    first = int((~same).int().argmax())
    assert same.all(), f"{[each[first] for each in lists]}: {actual[first]!r}, not {expected[first]!r}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operator", ["add", "sub", "mul", "div", "sqrt", "rcp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", usable())
def test_directed_rounding_is_that_of_ieee_754(level: str, dtype: torch.dtype, operator: str, mode: str) -> None:
    """On overflow, underflow and exact zero too."""
    x, y = (numbers_of_all_sizes(dtype, 1024, seed) for seed in (1, 2))
    operands = (x,) if operator in ("sqrt", "rcp") else (x, y)
    assert_rounds(operator, mode, f"{operator}_{mode}", level, *operands)
    if operator in ("mul", "div", "add", "sub"):  # results at the edges, of which random bits have few
        for value in (torch.finfo(dtype).tiny, torch.finfo(dtype).max, 2.0 ** DIGITS[dtype][1]):
            near = torch.randn(512, generator=torch.Generator().manual_seed(3), dtype=dtype)
            other = {"mul": value / near, "div": near / value, "add": value - near, "sub": near - value}[operator]
            assert_rounds(operator, mode, f"{operator}_{mode}", level, near, other.to(dtype))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", usable())
def test_directed_rounding_of_products_and_sums_at_once(level: str, dtype: torch.dtype, mode: str) -> None:
    if dtype == torch.float64 and "fma" not in machine.level(level).features:
        pytest.skip("without the instruction, fma of f64 rounds twice")
    x, y, z = (numbers_of_all_sizes(dtype, 1024, seed) for seed in (4, 5, 6))
    generator = torch.Generator().manual_seed(7)
    sizes = torch.randint(-60, 60, (1024,), generator=generator).to(dtype)
    opposite = -(x * y)  # whose rest alone is left
    tiny = torch.copysign(torch.full_like(z, 2.0 ** DIGITS[dtype][1]), z)
    for third in (z, opposite, torch.nextafter(opposite, z), opposite * torch.exp2(sizes), tiny):
        assert_rounds("fma", mode, f"fma_{mode}", level, x, y, third)


@pytest.mark.parametrize("mode", MODES)
def test_directed_rounding_to_single_precision(mode: str) -> None:
    x = torch.cat([numbers_of_all_sizes(torch.float64, 512, 8), numbers_of_all_sizes(torch.float32, 512, 9).double()])
    x[256:512] = torch.nextafter(x[512:768], torch.tensor(math.inf, dtype=torch.float64))
    actual = run(f"libdevice.double2float_{mode}(x)", x, out=torch.float32)
    expected = [
        value if not math.isfinite(value) or value == 0 else rounded(Fraction(value), mode, torch.float32)
        for value in x.tolist()
    ]
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(actual.signbit() & ~actual.isnan(), torch.tensor(expected).signbit() & ~actual.isnan())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", ["int", "uint", "ll", "ull"])
def test_directed_rounding_of_integers(source: str, mode: str) -> None:
    bits, unsigned = (32 if "int" in source else 64), source.startswith("u")
    generator = torch.Generator().manual_seed(10)
    values = torch.randint(-(1 << 62), 1 << 62, (1024,), generator=generator) >> torch.arange(1024) % 60
    values[:6] = torch.tensor([0, 1, -1, (1 << 63) - 1, -(1 << 63), (1 << 53) + 1])
    x = values.to(torch.int32) if bits == 32 else values
    exact = [value % (1 << bits) if unsigned else value for value in x.tolist()]
    for target, dtype in (("float", torch.float32), ("double", torch.float64)):
        name = f"{source}2{target}_{mode}"
        if not hasattr(libdevice, name):
            continue
        typed = f"x.to(tl.uint{bits}, bitcast=True)" if unsigned else "x"
        actual = run(f"libdevice.{name}({typed})", x, out=dtype)
        expected = [rounded(Fraction(value), mode, dtype) if value else 0.0 for value in exact]
        assert actual.double().tolist() == expected


@pytest.mark.parametrize(("dtype", "target", "bits"), [(torch.float32, "int", 32), (torch.float64, "ll", 64)])
@pytest.mark.parametrize("mode", MODES)
def test_conversions_to_integers_saturate(dtype: torch.dtype, target: str, bits: int, mode: str) -> None:
    x = numbers_of_all_sizes(dtype, 1024, 11)
    result = {32: torch.int32, 64: torch.int64}[bits]
    source = "float" if dtype == torch.float32 else "double"
    actual = run(f"libdevice.{source}2{target}_{mode}(x)", x, out=result)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def expected(value: float) -> int:
        if math.isnan(value):
            return 0 if bits == 32 else low
        if math.isinf(value):
            return high if value > 0 else low
        whole = ROUND[mode](value)
        return min(max(whole, low), high)

    assert actual.tolist() == [expected(value) for value in x.tolist()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types_compute_in_single_precision(dtype: torch.dtype) -> None:
    x = torch.randn(N).to(dtype)
    expected = torch.exp(x.float()).to(dtype)
    assert torch.equal(run("tl.exp(x.to(tl.float32)).to(x.dtype)", x), expected)


@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", usable())
def test_integers_of_64_bits_are_rounded_once(level: str, dtype: torch.dtype, unsigned: bool) -> None:
    """Also where f64, through which they go, has no room for them: near the middle between two results."""
    digits = DIGITS[dtype][0]
    generator = torch.Generator().manual_seed(12)
    size = torch.arange(4096) % (62 - digits) + digits + 1
    kept = torch.randint(1 << (digits - 1), 1 << digits, (4096,), generator=generator)
    near = torch.randint(-1, 2, (4096,), generator=generator) * (torch.arange(4096) % 3 + 1)
    x = (kept << (size - digits + 1)) + (1 << (size - digits)) + near
    x[1::2] *= -1
    values = [value % (1 << 64) if unsigned else value for value in x.tolist()]
    actual = run(
        f"{'x.to(tl.uint64, bitcast=True)' if unsigned else 'x'}.to(z.dtype.element_ty)", x, out=dtype, arch=level
    )
    assert actual.double().tolist() == [rounded(Fraction(value), "rn", dtype) for value in values]


# Powers that vanish ---------------------------------------------------------------------------------------------------

VANISHING = [
    ("tl.exp(x)", -104.0, np.exp),
    ("tl.exp2(x)", -150.0, np.exp2),
    ("libdevice.exp10(x)", -46.0, lambda x: 10.0**x),
]


@pytest.mark.parametrize(("expression", "least", "reference"), VANISHING)
@pytest.mark.parametrize("block", [1, 8, 1024])
@pytest.mark.parametrize("level", usable())
def test_small_powers_underflow_gradually_and_vanish_in_the_end(
    level: str, block: int, expression: str, least: float, reference: Callable[..., Any]
) -> None:
    near = torch.linspace(least - 2, least + 30, 1024)
    near[:8] = torch.tensor([-math.inf, -1e38, -1e5, least, least - 1e-4, math.nan, -3e38, -(2.0**21)])
    for x in (near[:block], near.flip(0)[:block]):
        with np.errstate(all="ignore"):
            check(run(expression, x, arch=level), reference(x.double().numpy()), 1)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM generates code only for the processor it runs on")
@pytest.mark.parametrize("level", [level for level in machine.LEVELS if level.startswith("x86-64-v4")])
def test_lanes_whose_power_vanishes_are_masked(level: str) -> None:
    """An instruction that underflows takes ten times longer on Intel's processors."""
    for expression in ("tl.exp(x)", "tl.exp2(x)", "tl.sigmoid(x)", "tl.softmax(x)"):
        text = code(expression, level)
        scaled = [line for line in text.splitlines() if "vscalefps" in line]
        assert scaled
        assert all("{z}" in line for line in scaled if "%zmm" in line)


UNDERFLOW = 0x08 if platform.machine() == "aarch64" else 0x10  # FE_UNDERFLOW of <fenv.h>


def underflows(expression: str, x: torch.Tensor, level: str) -> bool:
    """Whether the processor says so; the kernel is small enough to run on this thread."""
    libm = ctypes.CDLL("libm.so.6")
    kernel, device = with_source(_unary_kernel, EXPRESSION=expression), x.to("mtia")
    out = torch.empty_like(device)
    for _ in range(2):  # the first one compiles
        torch.mtia.synchronize()
        libm.feclearexcept(UNDERFLOW)
        kernel[(1,)](device, out, N=x.numel(), arch=level)
        found: bool = libm.fetestexcept(UNDERFLOW) != 0
    torch.mtia.synchronize()
    return found


@pytest.mark.parametrize("expression", ["tl.exp(x)", "tl.exp2(x)", "tl.sigmoid(-x)", "tl.softmax(x)"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", usable())
def test_nothing_underflows_where_a_power_vanishes(level: str, dtype: torch.dtype, expression: str) -> None:
    x = torch.zeros(64, dtype=dtype)
    x[8:40] = torch.tensor([-math.inf, -1e9, -1e4, torch.finfo(dtype).min], dtype=dtype).repeat(8)
    assert not underflows(expression, x, level)
    subnormal = {torch.float32: -95.3, torch.float64: -730.3}[dtype]
    x[3] = subnormal * math.log2(math.e) if "exp2" in expression else subnormal
    if not underflows(expression, x, level):
        pytest.skip("the kernel ran on another thread, which has flags of its own")


def code(expression: str, level: str) -> str:
    kernel = with_source(_unary_kernel, EXPRESSION=expression)
    return str(kernel.warmup(torch.float32, torch.float32, N=1024, arch=level, grid=(1,)).asm["asm"])
