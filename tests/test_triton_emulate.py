"""kernel[grid](..., emulate="cuda:90"): products and conversions as a GPU computes them, compared with roundings that
are done here on the bits, by integer arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

if TYPE_CHECKING:
    from tests.conftest import RunScript


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    left, right = tl.load(a + m * K + k), tl.load(b + k[:, None] * N + n)
    before = tl.load(c + m * N + n)
    tl.store(c + m * N + n, tl.dot(left, right, before, input_precision=PRECISION, out_dtype=c.dtype.element_ty))


@triton.jit
def convert(x, y, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    tl.store(y + lanes, tl.load(x + lanes).to(y.dtype.element_ty))


def multiply(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], precision: str | None = None, **options: Any) -> Any:
    (m, k), n = a.shape, b.shape[1]
    c = torch.zeros(m, n).to("mtia")
    left, right = (torch.from_numpy(each).to("mtia") for each in (a, b))
    product[(1,)](left, right, c, m, n, k, precision, **options)
    return c.cpu().numpy()


def f32(*bits: int) -> np.ndarray[Any, Any]:
    return np.array(bits, np.uint32).view(np.float32)


def bits_of(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.astype(np.float32).view(np.uint32)


def toward_zero(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """tf32: 10 bits of the mantissa, the others cut."""
    return (bits_of(values) & 0xFFFFE000).view(np.float32)


def away(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """tf32, the nearest; ties away from zero."""
    return ((bits_of(values).astype(np.uint64) + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)


def bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The nearest, ties to even."""
    bits = bits_of(values).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def numbers() -> Any:
    """A matrix with random bits of the mantissa, and with ties of tf32 and numbers beside them."""
    random = np.random.default_rng(0)
    exponents = random.integers(100, 150, (16, 16), np.uint32) << 23
    bits = random.integers(0, 1 << 23, (16, 16), np.uint32) | exponents
    bits[0, :8] = [0x3F801000, 0x3F801001, 0x3F800FFF, 0x3F803000, 0xBF801000, 0xBF803000, 0x3FFFF000, 0x3FFFFFFF]
    return bits.view(np.float32)


ONES = np.eye(16, dtype=np.float32)


def split(values: np.ndarray[Any, Any], parts: int) -> list[np.ndarray[Any, Any]]:
    """Into bf16 numbers whose sum is close."""
    found = []
    for _ in range(parts):
        found.append(bf16(values))
        values = values - found[-1]
    return found


def expected(precision: str | None) -> Any:
    """Of numbers() @ ONES."""
    x = numbers()
    if precision == "ieee":
        return x
    if precision == "tf32x3":
        big = away(x)
        return toward_zero(x - big) + big
    if precision == "bf16x3":
        high, middle = split(x, 2)
        return middle + high
    if precision == "bf16x6":
        high, middle, low = split(x, 3)
        return (low + middle) + high
    return toward_zero(x)


@pytest.mark.parametrize("precision", [None, "tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"])
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100"])
def test_operands_of_f32_have_the_precision_that_is_asked_for(target: str, precision: str | None) -> None:
    found = multiply(numbers(), ONES, precision, emulate=target)
    assert bits_of(found).tolist() == bits_of(expected(precision)).tolist()
    right = multiply(ONES, numbers(), precision, emulate=target)
    assert bits_of(right).tolist() == bits_of(expected(precision)).tolist()


def test_amd_has_defaults_and_precisions_of_its_own() -> None:
    x = numbers()
    assert bits_of(multiply(x, ONES, emulate="hip:gfx950")).tolist() == bits_of(x).tolist()
    assert bits_of(multiply(x, ONES, "tf32", emulate="hip:gfx942")).tolist() == bits_of(toward_zero(x)).tolist()
    for target, precision in (("hip:gfx942", "tf32x3"), ("hip:gfx950", "tf32")):
        with pytest.raises(CompilationError, match="input_precision must be one of"):
            multiply(x, ONES, precision, emulate=target)


def test_without_emulation_operands_keep_all_bits() -> None:
    for precision in (None, "tf32", "tf32x3"):
        assert bits_of(multiply(numbers(), ONES, precision)).tolist() == bits_of(numbers()).tolist()


# Accumulation ---------------------------------------------------------------------------------------------------------


def added(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], instruction: int) -> np.ndarray[Any, Any]:
    """Sums of products that are rounded to f32 after each so many. Operands have few bits, so f64 is exact."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, a.shape[1], instruction):
        part = slice(first, first + instruction)
        sums = (sums.astype(np.float64) + a[:, part].astype(np.float64) @ b[part].astype(np.float64)).astype(np.float32)
    return sums


def few_bits(shape: tuple[int, int], dtype: Any) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(1)
    return (random.integers(-7, 8, shape) * 2.0 ** random.integers(-4, 5, shape)).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "target", "instruction"),
    [(np.float16, "cuda:80", 16), (np.float16, "cuda:90", 16), (np.float32, "cuda:90", 8), (np.float32, "cuda:80", 8)],
)
def test_sums_are_rounded_once_for_each_instruction(dtype: Any, target: str, instruction: int) -> None:
    small, big = dtype(2.0**-12), dtype(1.0)
    a, b = np.full((16, 64), small, dtype), np.full((64, 16), small, dtype)
    a[:, 0] = b[0] = big
    found = multiply(a, b, emulate=target)
    assert found.tolist() == added(a, b, instruction).tolist()
    assert (found > 1).all()
    assert (multiply(a, b) == 1).all()  # each 2**-24 is rounded away by itself
    a, b = few_bits((32, 128), dtype), few_bits((128, 32), dtype)
    a[:, ::5] *= dtype(64)
    assert multiply(a, b, emulate=target).tolist() == added(a, b, instruction).tolist()


def test_integers_are_exact() -> None:
    a, b = (torch.randint(-100, 100, (32, 32), dtype=torch.int8) for _ in range(2))
    c = torch.zeros(32, 32, dtype=torch.int32).to("mtia")
    product[(1,)](a.to("mtia"), b.to("mtia"), c, 32, 32, 32, None, emulate="cuda:90")
    assert c.cpu().equal(a.int() @ b.int())


# Conversions ----------------------------------------------------------------------------------------------------------


def converted(values: list[float], dtype: torch.dtype, **options: Any) -> list[int]:
    x, y = torch.tensor(values).to("mtia"), torch.empty(len(values), dtype=dtype).to("mtia")
    convert[(1,)](x, y, len(values), **options)
    return y.cpu().view(torch.uint8).tolist()


# 1.0625 is between 1 (0x38) and 1.125 (0x39) of e4m3. What is just above is nearer to 1.125, but its f16 is 1.0625.
ABOVE = 1.0625 + 2.0**-12


@pytest.mark.parametrize(("target", "code"), [("cuda:89", 0x38), ("cuda:90", 0x39), ("hip:gfx942", 0x39)])
def test_f32_becomes_fp8_by_way_of_f16_before_hopper(target: str, code: int) -> None:
    assert converted([ABOVE, -ABOVE, 1.0, 2.0], torch.float8_e4m3fn, emulate=target) == [code, code | 0x80, 0x38, 0x40]


def test_fp8_saturates() -> None:
    values = [448.0, 1e6, -1e6, float("inf")]
    for target in ("cuda:89", "cuda:90"):
        assert converted(values, torch.float8_e4m3fn, emulate=target) == [0x7E, 0x7E, 0xFE, 0x7E]
    assert converted([57344.0, 1e6, -1e6, 1.0], torch.float8_e5m2, emulate="cuda:90") == [0x7B, 0x7B, 0xFB, 0x3C]


def test_formats_of_amd_have_no_negative_zero_and_one_nan() -> None:
    values = [240.0, 1e6, -1e6, -0.0, float("nan"), 1.0, -1.0, 0.0]
    found = converted(values, torch.float8_e4m3fnuz, emulate="hip:gfx942")
    assert found == [0x7F, 0x7F, 0xFF, 0x00, 0x80, 0x40, 0xC0, 0x00]


def test_bf16_is_rounded_to_the_nearest_with_ties_to_even() -> None:
    x = f32(0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF)
    y = torch.empty(4, dtype=torch.bfloat16).to("mtia")
    convert[(1,)](torch.from_numpy(x).to("mtia"), y, 4, emulate="cuda:90")
    assert bits_of(y.cpu().float().numpy()).tolist() == bits_of(bf16(x)).tolist()


# What a target refuses, and settings ----------------------------------------------------------------------------------


def test_what_the_front_end_of_a_target_refuses_is_refused_here() -> None:
    small = np.zeros((16, 8), np.float32)
    with pytest.raises(CompilationError, match="K >= 16"):
        multiply(small, np.zeros((8, 16), np.float32), emulate="cuda:90")
    with pytest.raises(CompilationError, match="fp8e4nv not supported in this architecture"):
        converted([1.0], torch.float8_e4m3fn, emulate="cuda:80")
    with pytest.raises(AssertionError, match="num_warps must be a power of 2"):
        multiply(numbers(), ONES, emulate="cuda:90", num_warps=3)
    with pytest.raises(ValueError, match=r"num_ctas > 1 requires NVIDIA SM90"):
        multiply(numbers(), ONES, emulate="cuda:80", num_ctas=2)


def test_unknown_targets_raise() -> None:
    with pytest.raises(ValueError, match="is not a target; targets are cuda:CAPABILITY"):
        multiply(numbers(), ONES, emulate="gpu")
    with pytest.raises(ValueError, match="how it computes is not known here"):
        multiply(numbers(), ONES, emulate="hip:gfx1201")


def test_each_target_has_a_key_of_its_own_in_the_cache() -> None:
    x = torch.zeros(4).to("mtia")
    hashes = {convert[(1,)](x, x, 4, emulate=target).hash for target in ("", "cuda:80", "cuda:90", "hip:gfx942")}
    assert len(hashes) == 4


def test_the_setting_is_for_all_kernels(run_script: RunScript, tmp_path: Any) -> None:
    (tmp_path / "launch.py").write_text("""
import torch, triton, triton.language as tl
@triton.jit
def product(a, b, c):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))
a = torch.full((16, 16), 1 + 2.0 ** -12, device="mtia")
c = torch.empty_like(a)
product[(1,)](a, torch.eye(16, device="mtia"), c)
print(bool((c == 1).all()))
""")
    assert run_script("import launch", TORCH_MTIA_EMULATE="cuda:90").output() == "True\n"
    assert run_script("import launch").output() == "False\n"
    assert "is not a target" in run_script("import torch", TORCH_MTIA_EMULATE="h100").stderr
