"""Operators on 16-bit numbers compute in float32 and round once, as on CUDA: their operands' digits are not lost on the
way. Numbers among the operands keep float32's digits too, except in comparisons, which round them first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

Function = Callable[..., torch.Tensor]

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
NUMBER = 0.1  # no 16-bit format has it
SHAPE = (6, 32, 37)


def normal(seed: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def positive(seed: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return normal(seed, shape).abs() + 0.25


def zero_dim() -> torch.Tensor:
    """A tensor on the CPU that counts as a number."""
    return torch.tensor(NUMBER)


def in_list(function: Callable[..., None], x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    changed = x.clone()
    function([changed], *args, **kwargs)
    return changed


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    function: Function
    operands: tuple[torch.Tensor, ...]

    def both(self, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The result on the device, and float32's result on the same numbers, neither rounded nor converted."""
        low = [operand.to(dtype) if operand.is_floating_point() else operand for operand in self.operands]
        wide = [operand.float() if operand.is_floating_point() else operand for operand in low]
        actual = self.function(*(operand.to(device) for operand in low))
        assert actual.dtype == dtype
        return actual.cpu(), self.function(*wide)


def cases(*rows: tuple[str, Function, tuple[torch.Tensor, ...]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [Case(*row) for row in rows], ids=lambda case: case.name)


def ulps(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How many steps of their 16-bit format lie between them."""

    def position(values: torch.Tensor) -> torch.Tensor:
        bits = values.view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (position(one) - position(other)).abs()


X, Y, Z = normal(1), normal(2), normal(3)
POSITIVE = positive(4)
DENOMINATOR = positive(5)
CONDITION = normal(6) > 0

# Elementwise ---------------------------------------------------------------------------------------------------------


@DTYPES
@cases(
    ("add", torch.add, (X, Y)),
    ("add, alpha", lambda x, y: torch.add(x, y, alpha=NUMBER), (X, Y)),
    ("add number", lambda x: x + NUMBER, (X,)),
    ("add number, alpha", lambda x: torch.add(x, 3, alpha=NUMBER), (X,)),
    ("add 0-dim CPU tensor", lambda x: x + zero_dim(), (X,)),
    ("sub", torch.sub, (X, Y)),
    ("sub, alpha", lambda x, y: torch.sub(x, y, alpha=NUMBER), (X, Y)),
    ("sub number", lambda x: x - NUMBER, (X,)),
    ("sub from number", lambda x: NUMBER - x, (X,)),
    ("sub 0-dim CPU tensor", lambda x: x - zero_dim(), (X,)),
    ("mul", torch.mul, (X, Y)),
    ("mul number", lambda x: x * NUMBER, (X,)),
    ("mul 0-dim CPU tensor", lambda x: x * zero_dim(), (X,)),
    ("mul of 0-dim CPU tensor", lambda x: zero_dim() * x, (X,)),
    ("foreach add number", lambda x: in_list(torch._foreach_add_, x, NUMBER), (X,)),
    ("foreach add, alpha", lambda x, y: in_list(torch._foreach_add_, x, [y], alpha=NUMBER), (X, Y)),
    ("foreach sub, alpha", lambda x, y: in_list(torch._foreach_sub_, x, [y], alpha=NUMBER), (X, Y)),
    ("foreach mul number", lambda x: in_list(torch._foreach_mul_, x, NUMBER), (X,)),
    ("foreach mul numbers", lambda x: in_list(torch._foreach_mul_, x, [NUMBER]), (X,)),
    ("div", torch.div, (X, DENOMINATOR)),
    # Not of a number, which CUDA rounds first.
    ("div by number", lambda x: x / NUMBER, (X,)),
    ("div by 0-dim CPU tensor", lambda x: x / zero_dim(), (X,)),
    ("addcmul", torch.addcmul, (X, Y, Z)),
    ("addcmul, value", lambda x, y, z: torch.addcmul(x, y, z, value=NUMBER), (X, Y, Z)),
    ("addcdiv", torch.addcdiv, (X, Y, DENOMINATOR)),
    ("addcdiv, value", lambda x, y, z: torch.addcdiv(x, y, z, value=NUMBER), (X, Y, DENOMINATOR)),
    ("lerp, number", lambda x, y: torch.lerp(x, y, NUMBER), (X, Y)),
    ("lerp, tensor", torch.lerp, (X, Y, Z)),
    ("pow", torch.pow, (POSITIVE, Y)),
    # Not the cube: CUDA rounds the square first.
    ("pow 2", lambda x: x**2, (X,)),
    # On some machines the CPU's roots of float32 are an ulp off.
    ("pow 0.5", lambda x: x.double() ** 0.5 if x.dtype == torch.float32 else x**0.5, (POSITIVE,)),
    ("pow -1", lambda x: x**-1, (POSITIVE,)),
    ("pow 2.5", lambda x: x**2.5, (POSITIVE,)),
    ("pow of number", lambda x: 3**x, (X,)),
    ("where", torch.where, (CONDITION, X, Y)),
    ("where number", lambda c, x: torch.where(c, x, NUMBER), (CONDITION, X)),
)
def test_an_elementwise_operator_rounds_once(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    actual, exact = case.both(device, dtype)
    # Where a sum cancels, it shows whether the product was rounded to float32: without FMA instructions it was.
    cancels = case.name in ("add, alpha", "foreach add, alpha")
    torch.testing.assert_close(actual, exact.to(dtype), rtol=0, atol=2**-22 if cancels else 0)


@DTYPES
@pytest.mark.parametrize("number", [NUMBER, zero_dim()], ids=["number", "0-dim CPU tensor"])
@pytest.mark.parametrize("compare", [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
def test_a_comparison_rounds_the_number_first(
    compare: Function, number: float | torch.Tensor, dtype: torch.dtype, device: torch.device
) -> None:
    rounded = torch.tensor(NUMBER, dtype=dtype)
    infinity = torch.tensor(torch.inf, dtype=dtype)
    x = torch.stack([torch.nextafter(rounded, -infinity), rounded, torch.nextafter(rounded, infinity)]).repeat(50)
    torch.testing.assert_close(compare(x.to(device), number).cpu(), compare(x.float(), float(rounded)))


@DTYPES
def test_an_exponent_is_rounded_first(dtype: torch.dtype, device: torch.device) -> None:
    x, rounded = POSITIVE.to(dtype), torch.tensor(NUMBER, dtype=dtype)
    expected = x.float().pow(float(rounded)).to(dtype)
    torch.testing.assert_close((x.to(device) ** NUMBER).cpu(), expected, rtol=0, atol=0)


# Reductions ----------------------------------------------------------------------------------------------------------

ROWS = normal(7, (40, 1000))
IMAGES = normal(8, (8, 12, 9, 11))
CHANNELS = (positive(9, (12,)), normal(10, (12,)))
FEATURES = (positive(11, (1000,)), normal(12, (1000,)))


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


@pytest.mark.sampled(3)
@DTYPES
@cases(
    ("sum", torch.sum, (ROWS,)),
    ("sum of rows", lambda x: x.sum(-1), (ROWS,)),
    ("sum of columns", lambda x: x.sum(0), (ROWS,)),
    ("mean", torch.mean, (ROWS,)),
    ("mean of rows", lambda x: x.mean(-1), (ROWS,)),
    ("softmax", lambda x: x.softmax(-1), (ROWS,)),
    ("softmax of columns", lambda x: x.softmax(0), (ROWS,)),
    ("log_softmax", lambda x: x.log_softmax(-1), (ROWS,)),
    ("log_softmax of columns", lambda x: x.log_softmax(0), (ROWS,)),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, (1000,), w, b), (ROWS, *FEATURES)),
    ("layer_norm, plain", lambda x: F.layer_norm(x, (1000,)), (ROWS,)),
    ("rms_norm", lambda x, w: F.rms_norm(x, (1000,), w, eps=1e-5), (ROWS, FEATURES[0])),
    ("rms_norm, plain", lambda x: F.rms_norm(x, (1000,), eps=1e-5), (ROWS,)),
    ("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), (IMAGES, *CHANNELS)),
    ("batch_norm", batch_norm, (IMAGES, *CHANNELS)),
    ("batch_norm, evaluation", lambda x, m, v: F.batch_norm(x, m, v), (IMAGES, CHANNELS[1], CHANNELS[0])),
    ("1-norm", lambda x: torch.linalg.vector_norm(x, 1, -1), (ROWS,)),
    ("2-norm", lambda x: torch.linalg.vector_norm(x, 2, -1), (ROWS,)),
    ("2-norm of all", torch.linalg.vector_norm, (ROWS,)),
    ("3-norm", lambda x: torch.linalg.vector_norm(x, 3, -1), (ROWS,)),
    ("maximum norm", lambda x: torch.linalg.vector_norm(x, torch.inf, -1), (ROWS,)),
)
def test_a_reduction_is_one_step_off_at_most(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    actual, exact = case.both(device, dtype)
    # Where terms cancel, float32's own rounding may be more than a step of the small result.
    within_float32 = (actual.float() - exact).abs() <= 1e-5 * case.operands[0].abs().max()
    far = ~(within_float32 | (ulps(actual, exact.to(dtype)) <= 1))
    assert not far.any(), f"{int(far.sum())} of {far.numel()}, for example {actual[far][:3]} for {exact[far][:3]}"
