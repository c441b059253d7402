"""Mathematical functions of Triton kernels are accurate to a few units in the last place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy import special
from triton_language import run

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


@pytest.mark.parametrize("mode", ["rz", "rd", "ru", "rn"])
@pytest.mark.parametrize("operator", ["add", "sub", "mul", "div"])
def test_directed_rounding(mode: str, operator: str) -> None:
    x, y = torch.randn(N), torch.randn(N)
    wide = {
        "add": x.double() + y.double(),
        "sub": x.double() - y.double(),
        "mul": x.double() * y.double(),
        "div": x.double() / y.double(),
    }[operator]
    nearest = wide.float()
    up, down = torch.nextafter(nearest, torch.tensor(math.inf)), torch.nextafter(nearest, torch.tensor(-math.inf))
    above = torch.where(nearest.double() < wide, up, nearest)
    below = torch.where(nearest.double() > wide, down, nearest)
    expected = {"rn": nearest, "ru": above, "rd": below, "rz": torch.where(wide > 0, below, above)}[mode]
    assert torch.equal(run(f"libdevice.{operator}_{mode}(x, y)", x, y), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types_compute_in_single_precision(dtype: torch.dtype) -> None:
    x = torch.randn(N).to(dtype)
    expected = torch.exp(x.float()).to(dtype)
    assert torch.equal(run("tl.exp(x.to(tl.float32)).to(x.dtype)", x), expected)
