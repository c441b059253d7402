"""Hyperbolic functions and their inverses."""

from __future__ import annotations

import math

from torch_mtia.triton.vecmath.number import FUNCTIONS, Number, function, through_double

# (tanh(x) / x - 1) / x**2 in x**2
TANH_SINGLE = (-0.333333343, 0.133332998, -0.0539584607, 0.0217625033, -0.00832318701, 0.0022695018)


@function("tanh")
def _tanh(x: Number) -> Number:
    size = abs(x)
    if x.single:
        z = x * x
        near = (x * z).fma(z.polynomial(TANH_SINGLE), x)
        far = 1.0 - 2.0 / (FUNCTIONS["exp"](size + size) + 1.0)
        return near.where(size.compare("olt", 0.625), far).sign_of(x)
    t = FUNCTIONS["expm1"](size.clamp(0.0, 22.0) * 2.0)
    return (t / (t + 2.0)).sign_of(x)


@through_double("sinh")
def _sinh(x: Number) -> Number:
    size = abs(x)
    t = FUNCTIONS["expm1"](size)
    near = (t + t / (t + 1.0)) * 0.5
    half = FUNCTIONS["exp"](size * 0.5)
    far = half * 0.5 * half
    return near.where(size.compare("olt", 22.0), far).sign_of(x)


@through_double("cosh")
def _cosh(x: Number) -> Number:
    size = abs(x)
    half = FUNCTIONS["exp"](size * 0.5)
    e = half * half
    near = (e + 1.0 / e) * 0.5
    return near.where(size.compare("olt", 22.0), half * 0.5 * half)


@through_double("asinh")
def _asinh(x: Number) -> Number:
    size = abs(x)
    huge = size.compare("ogt", 1e150)
    safe = size.constant(1.0).where(huge, size)
    square = safe * safe
    near = FUNCTIONS["log1p"](safe + square / ((square + 1.0).sqrt() + 1.0))
    far = FUNCTIONS["log"](size) + math.log(2)
    return far.where(huge, near).sign_of(x)


@through_double("acosh")
def _acosh(x: Number) -> Number:
    huge = x.compare("ogt", 1e150)
    safe = x.constant(1.0).where(huge, x)
    t = safe - 1.0
    near = FUNCTIONS["log1p"](t + (t * t + 2.0 * t).sqrt())
    result = (FUNCTIONS["log"](x) + math.log(2)).where(huge, near)
    return result.constant(math.nan).where(x.compare("olt", 1.0), result)


@through_double("atanh")
def _atanh(x: Number) -> Number:
    size = abs(x)
    return (FUNCTIONS["log1p"](2.0 * size / (1.0 - size)) * 0.5).sign_of(x)
