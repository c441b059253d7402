"""Code for every feature level of x86-64 gives the same results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from scipy import special
from triton_language import tensors_on_mtia  # noqa: F401

from torch_mtia.triton import machine
from torch_mtia.triton.architecture import usable

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")


@pytest.fixture(params=usable())
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@triton.jit
def conversions_kernel(x, half, brain, back, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(half + i, v.to(tl.float16), mask=i < n)
    tl.store(brain + i, v.to(tl.bfloat16), mask=i < n)
    tl.debug_barrier()
    tl.store(back + i, tl.load(half + i, mask=i < n).to(tl.float32) + tl.floor(v), mask=i < n)


def test_conversions_masks_and_rounding(level: str) -> None:
    x = torch.randn(1000) * 100
    half, brain, back = torch.zeros(1000).half(), torch.zeros(1000).bfloat16(), torch.zeros(1000)
    compiled = conversions_kernel[(8,)](x, half, brain, back, 1000, N=128, arch=level)
    assert compiled.metadata.arch == level
    assert torch.equal(half, x.half())
    assert torch.equal(brain, x.bfloat16())
    assert torch.equal(back, half.float() + x.floor())


@triton.jit
def narrowing_kernel(x, z, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(z + i, tl.load(x + i).to(z.dtype.element_ty))


@pytest.mark.parametrize("block", [8, 1024])
@pytest.mark.parametrize("mixed", [False, True], ids=["neighbours", "mixed"])
def test_every_bfloat16_and_what_lies_between_rounds_to_the_nearest_even(level: str, mixed: bool, block: int) -> None:
    high, low = np.arange(1 << 16, dtype=np.uint32), np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    bits = (high << 16 | low[:, None]).ravel()
    if mixed:  # subnormal numbers, infinities and NaNs among others
        np.random.default_rng(0).shuffle(bits)
    numbers = bits.view(np.float32)
    expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    expected[np.isnan(numbers)] = (bits[np.isnan(numbers)] >> 16 | 0x40).astype(np.uint16)  # quiet, with its sign
    x = torch.from_numpy(numbers).to("mtia")
    z = torch.zeros(bits.size, dtype=torch.bfloat16)
    narrowing_kernel[(bits.size // block,)](x, z, N=block, arch=level)
    np.testing.assert_array_equal(z.cpu().view(torch.int16).numpy().view(np.uint16), expected)


@triton.jit
def error_function_kernel(x, z, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(z + i, tl.erf(tl.load(x + i)))


@pytest.mark.parametrize("block", [8, 1024])
def test_the_error_function(level: str, block: int) -> None:
    magnitudes = np.concatenate([np.linspace(0, 4.5, 1 << 15), np.geomspace(1e-38, 1e38, 1 << 15)]).astype(np.float32)
    numbers = np.concatenate([magnitudes, -magnitudes])
    numbers[:4] = [0.0, np.nan, np.inf, 1e-45]
    numbers[magnitudes.size :][:4] = [-0.0, -np.nan, -np.inf, -1e-45]
    z = torch.zeros(numbers.size)
    error_function_kernel[(numbers.size // block,)](torch.from_numpy(numbers).to("mtia"), z, N=block, arch=level)
    actual, exact = z.cpu().numpy(), special.erf(numbers.astype(np.float64))
    known = ~np.isnan(numbers)
    np.testing.assert_array_equal(np.isnan(actual), ~known)
    unit = np.maximum(np.abs(exact) * 2.0**-23, 2.0**-149)
    assert np.max(np.abs(actual - exact)[known] / unit[known]) < 1.2
    positive, negative = np.split(actual.view(np.uint32), 2)
    np.testing.assert_array_equal(negative[known[: magnitudes.size]], positive[known[: magnitudes.size]] | 1 << 31)
    assert np.abs(actual[known]).max() == 1.0
    assert (actual[numbers > 4] == 1.0).all()


@triton.jit
def attention_kernel(q, k, v, o, T: tl.constexpr, D: tl.constexpr):
    t, d = tl.arange(0, T), tl.arange(0, D)
    i = t[:, None] * D + d[None, :]
    s = tl.dot(tl.load(q + i), tl.trans(tl.load(k + i))) * 0.25
    s = tl.where(t[:, None] >= t[None, :], s, float("-inf"))
    p = tl.exp(s - tl.max(s, 1)[:, None])
    tl.store(o + i, tl.dot(p / tl.sum(p, 1)[:, None], tl.load(v + i)))


def test_products_reductions_and_exponentials(level: str) -> None:
    q, k, v = (torch.randn(32, 16) for _ in range(3))
    o = torch.zeros(32, 16)
    attention_kernel[(1,)](q, k, v, o, T=32, D=16, arch=level)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(o, expected, atol=1e-5)


@triton.jit
def product_kernel(x, y, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, left: tl.constexpr, right: tl.constexpr):
    """`left` and `right`: how the operands lie in memory."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    if left == "rows":
        left = tl.load(x + m[:, None] * K + k[None, :])
    else:
        left = tl.load(x + k[None, :] * M + m[:, None])
    if right == "rows":
        right = tl.load(y + k[:, None] * N + n[None, :])
    elif right == "columns":
        right = tl.load(y + n[None, :] * K + k[:, None])
    else:
        right = tl.trans(tl.load(y + n[:, None] * K + k[None, :]))
    product = tl.dot(left, right, out_dtype=z.dtype.element_ty)
    tl.store(z + m[:, None] * N + n[None, :], product + tl.sum(right.to(z.dtype.element_ty), 0)[None, :])


OPERANDS = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.float32, torch.float64]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", OPERANDS)
@pytest.mark.parametrize("shape", [(64, 32, 256), (16, 64, 2), (2, 4, 8), (4, 16, 4), (8, 256, 64)])
@pytest.mark.parametrize("left", ["rows", "columns"])
@pytest.mark.parametrize("right", ["rows", "columns", "transposed"])
def test_products_of_operands_in_any_order(
    level: str, dtype: torch.dtype, shape: tuple[int, int, int], left: str, right: str
) -> None:
    m, n, k = shape
    x, y = torch.randint(-4, 5, (m, k)), torch.randint(-4, 5, (k, n))
    z = torch.zeros(m, n, dtype={torch.int8: torch.int32, torch.float64: torch.float64}.get(dtype, torch.float32))
    in_memory = (x if left == "rows" else x.t()).to(dtype), (y if right == "rows" else y.t()).to(dtype)
    given = [operand.contiguous() for operand in in_memory]
    product_kernel[(1,)](*given, z, M=m, N=n, K=k, left=left, right=right, arch=level)
    assert torch.equal(z.double(), x.double() @ y.double() + y.double().sum(0))


def test_products_of_integers_are_exact_at_the_ends_of_their_range(level: str) -> None:
    m, n, k = 8, 32, 1024
    ends = torch.tensor([-128, -127, -1, 0, 1, 127], dtype=torch.int8)
    x, y = (ends[torch.randint(len(ends), shape)] for shape in ((m, k), (k, n)))
    x[:2], y[:, :16] = torch.tensor([[-128], [127]], dtype=torch.int8), -128
    z = torch.zeros(m, n, dtype=torch.int32)
    product_kernel[(1,)](x, y, z, M=m, N=n, K=k, left="rows", right="rows", arch=level)
    assert torch.equal(z.double(), x.double() @ y.double() + y.double().sum(0))


@triton.jit
def packed_kernel(
    x,
    weight,
    scale,
    out,
    rows,
    N,
    K,
    M: tl.constexpr,
    BN: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    signed: tl.constexpr,
    high_first: tl.constexpr,
    joined: tl.constexpr,
):
    """A byte has a number of the first half of its group, and one of the second."""
    m, n = tl.arange(0, M)[:, None], tl.program_id(0) * BN + tl.arange(0, BN)[None, :]
    k = tl.arange(0, GROUP // 2)
    total = tl.zeros((M, BN), tl.float32)
    for group in range(K // GROUP):
        both = tl.load(weight + (group * (GROUP // 2) + k)[:, None] * N + n, mask=n < N, other=0)
        if signed:
            low, high = both << 4 >> 4, both >> 4
        else:
            low, high = (both & 15).to(tl.int8) - ZERO, ((both & 240) >> 4).to(tl.int8) - ZERO
        if high_first:
            low, high = high, low
        at = x + m * K + group * GROUP + k[None, :]
        first, second = tl.load(at, mask=m < rows, other=0.0), tl.load(at + GROUP // 2, mask=m < rows, other=0.0)
        if joined:
            product = tl.dot(second, high.to(x.dtype.element_ty), tl.dot(first, low.to(x.dtype.element_ty)))
        else:
            product = tl.dot(first, low.to(x.dtype.element_ty)) + tl.dot(second, high.to(x.dtype.element_ty))
        total += product * tl.load(scale + group * N + n, mask=n < N, other=0.0)
    tl.store(out + m * N + n, total, mask=(m < rows) & (n < N))


def halves_of_bytes(weight: torch.Tensor, group: int, high_first: bool) -> torch.Tensor:
    first, second = (weight & 15).to(torch.uint8).unflatten(0, (-1, 2, group // 2)).unbind(1)
    low, high = (second, first) if high_first else (first, second)
    packed: torch.Tensor = (low | high << 4).flatten(0, 1)
    return packed


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(1, 128, 64), (2, 300, 32), (3, 64, 4), (7, 48, 16), (17, 130, 64)]
)
@pytest.mark.parametrize(
    ("signed", "high_first", "joined"), [(False, False, True), (True, True, True), (True, False, False)]
)
def test_products_with_two_weights_in_a_byte(
    level: str,
    dtype: torch.dtype,
    rows: int,
    columns: int,
    group: int,
    signed: bool,
    high_first: bool,
    joined: bool,
) -> None:
    inner = 3 * group
    weight = torch.randint(-8, 8, (inner, columns))
    packed = halves_of_bytes(weight if signed else weight + 8, group, high_first)
    scale = 2.0 ** torch.randint(-2, 3, (inner // group, columns))
    x, out = torch.randint(-4, 5, (rows, inner)).to(dtype), torch.zeros(rows, columns)
    for block in (32, 128):
        packed_kernel[(triton.cdiv(columns, block),)](
            x,
            packed.view(torch.int8) if signed else packed,
            scale,
            out.zero_(),
            rows,
            columns,
            inner,
            M=triton.next_power_of_2(rows),
            BN=block,
            GROUP=group,
            ZERO=8,
            signed=signed,
            high_first=high_first,
            joined=joined,
            arch=level,
        )
        wide = weight * scale.repeat_interleave(group, 0)
        assert torch.equal(out, (x.double() @ wide.double()).float())


@triton.jit
def decode(word, kind: tl.constexpr):
    """What some few bits mean."""
    if kind == "steps":  # rounded, and in no order
        bits = word & 15
        return tl.exp2(bits.to(tl.float32) * 0.3) * tl.where(bits < 7, -1.0, 0.37)
    if kind == "scattered":
        return ((word & 0x15) * 3).to(tl.float32) - 0.5
    if kind == "five":
        return ((word >> 2) & 31).to(tl.float32) - 16
    if kind == "six":
        return (word & 63).to(tl.float32)
    if kind == "top":
        return (word >> (word.dtype.primitive_bitwidth - 4)).to(tl.float32)
    return (word & 3).to(tl.float32) * ((word >> 2) & 3).to(tl.float32)


@triton.jit
def decoded_product_kernel(
    x, word, out, again, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, kind: tl.constexpr, shifts: tl.constexpr
):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    words = tl.load(word + k[:, None] * N + n)
    if shifts:
        words = words >> (k[:, None] % 2).to(words.dtype)
    right = decode(words, kind).to(tl.bfloat16)
    tl.store(out + m * N + n, tl.dot(tl.load(x + m * K + k[None, :]), right))
    tl.debug_barrier()
    words = tl.load(word + k[:, None] * N + n)
    if shifts:
        words = words >> (k[:, None] % 2).to(words.dtype)
    tl.store(again + k[:, None] * N + n, decode(words, kind).to(tl.bfloat16))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", ["steps", "scattered", "five", "six", "top", "product"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("rows", [1, 8])
def test_numbers_that_depend_on_few_bits_are_the_same_in_a_product(
    level: str, kind: str, dtype: torch.dtype, rows: int
) -> None:
    n, k = 64, 32
    ends = torch.iinfo(dtype)
    words = torch.randint(ends.min, ends.max, (k, n)).to(dtype)
    x = torch.zeros(rows, k).bfloat16()
    for line in range(k):
        x.zero_()
        x[line % rows, line] = 1.0
        out, again = torch.zeros(rows, n), torch.zeros(k, n).bfloat16()
        decoded_product_kernel[(1,)](
            x, words, out, again, M=rows, N=n, K=k, kind=kind, shifts=line % 2 == 1, arch=level
        )
        assert torch.equal(out[line % rows], again[line].float())


@triton.jit
def scaled_kernel(
    x, sx, y, sy, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, kind: tl.constexpr, along_k: tl.constexpr
):
    """Numbers of four bits share bytes along K, or along the other dimension of their operand."""
    MX: tl.constexpr = M if along_k or kind != "e2m1" else M // 2
    KX: tl.constexpr = K // 2 if along_k and kind == "e2m1" else K
    NX: tl.constexpr = N if along_k or kind != "e2m1" else N // 2
    m, n, g = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K // 32)[None, :]
    x = tl.load(x + tl.arange(0, MX)[:, None] * KX + tl.arange(0, KX)[None, :])
    y = tl.load(y + tl.arange(0, KX)[:, None] * NX + tl.arange(0, NX)[None, :])
    sx, sy = tl.load(sx + m * (K // 32) + g), tl.load(sy + n[:, None] * (K // 32) + g)
    z += m * N + n[None, :]
    tl.store(z, tl.dot_scaled(x, sx, kind, y, sy, kind, lhs_k_pack=along_k, rhs_k_pack=along_k))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("kind", "along_k"), [("e4m3", True), ("bf16", True), ("e2m1", True), ("e2m1", False)])
@pytest.mark.parametrize("shape", [(16, 128, 64), (2, 4, 32), (32, 2, 128)])
def test_scaled_products(level: str, kind: str, along_k: bool, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = torch.randint(0, 16, (m, k), dtype=torch.uint8), torch.randint(0, 16, (k, n), dtype=torch.uint8)
    wide = [numbers[code.long()] for code in codes]
    if kind == "e2m1":
        dims = (1, 0) if along_k else (0, 1)
        halves = [code.unflatten(dim, (-1, 2)).unbind(dim + 1) for code, dim in zip(codes, dims, strict=True)]
        given = [(low | high << 4).contiguous() for low, high in halves]
    else:
        given = [value.to({"e4m3": torch.float8_e4m3fn, "bf16": torch.bfloat16}[kind]) for value in wide]
    sx, sy = (torch.randint(125, 130, (rows, k // 32), dtype=torch.uint8) for rows in (m, n))
    sx[1, 0] = 0  # 2 ** -127, of which nothing is left of a sum
    z = torch.zeros(m, n)
    scaled_kernel[(1,)](given[0], sx, given[1], sy, z, M=m, N=n, K=k, kind=kind, along_k=along_k, arch=level)
    left = wide[0].double() * torch.exp2(sx.double() - 127).repeat_interleave(32, 1)
    right = wide[1].double() * torch.exp2(sy.double() - 127).repeat_interleave(32, 1).t()
    assert torch.equal(z, (left @ right).float())
    sx[0, 0] = 255
    scaled_kernel[(1,)](given[0], sx, given[1], sy, z, M=m, N=n, K=k, kind=kind, along_k=along_k, arch=level)
    assert z[0].isnan().all()
    assert not z[1:].isnan().any()


def test_fused_multiply_add_rounds_once_without_the_instruction(level: str) -> None:
    @triton.jit
    def kernel(x, y, z, w, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(w + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))

    x, y = torch.randn(4096), torch.randn(4096)
    z = -(x * y) * torch.rand(4096).round()
    w = torch.zeros(4096)
    kernel[(1,)](x, y, z, w, N=4096, arch=level)
    exact = (x.double() * y.double() + z.double()).float()
    assert (w - exact).abs().max() <= 1e-12 + (exact.abs() * 1e-7).max()
    cancelled = z != 0
    assert torch.equal(w[cancelled], exact[cancelled])


@triton.jit
def corner_kernel(x, z, N: tl.constexpr):
    row, column = tl.arange(0, 2)[:, None], tl.arange(0, N)[None, :]
    value = tl.load(x + row * N + column, mask=(row >= 1) & (column >= N // 2 + 1), other=-7)
    tl.store(z + row * N + column, value.to(z.dtype.element_ty))


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (torch.float64, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.int32),
        (torch.int64, torch.int64),
    ],
)
@pytest.mark.parametrize("columns", [8, 16])
def test_masks_that_are_false_throughout_one_of_several_registers(
    level: str, wide: torch.dtype, narrow: torch.dtype, columns: int
) -> None:
    x = torch.arange(2 * columns, dtype=wide).view(2, columns)
    z = torch.zeros(2, columns, dtype=narrow)
    corner_kernel[(1,)](x, z, N=columns, arch=level)
    expected = torch.full_like(z, -7)
    expected[1, columns // 2 + 1 :] = x[1, columns // 2 + 1 :].to(narrow)
    assert torch.equal(z, expected)


def test_unknown_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="architecture 'sm_90' is not known; valid: x86-64,"):
        attention_kernel.warmup(*[torch.float32] * 4, T=32, D=16, arch="sm_90", grid=(1,))


def test_the_code_can_be_looked_at() -> None:
    compiled = attention_kernel.warmup(*[torch.float32] * 4, T=32, D=16, grid=(1,))
    assert "tt.dot" in compiled.asm["ttir"]
    assert "define void @mtia_entry" in compiled.asm["llir"]
    assert "mtia_entry:" in compiled.asm["asm"]


def test_the_table_of_operations_in_the_documentation_is_up_to_date() -> None:
    from tools.triton_operations import PAGE, updated

    assert PAGE.read_text() == updated(PAGE.read_text())


# Corrections ----------------------------------------------------------------------------------------------------------


@triton.jit
def one_lane_kernel(x, z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(z + i, tl.load(x + i).to(z.dtype.element_ty), i == 0)


@triton.jit
def sign_kernel(x, z, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(z + i, tl.where(value < 0, 5, value * 3).to(z.dtype.element_ty))


@triton.jit
def masked_kernel(x, z, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(z + i, tl.load(x + i, i < n, 0.0))


REFERENCES = {
    "masked_store_of_one_lane": (one_lane_kernel, (torch.int32, torch.int8), "x86-64-v4"),
    "signs_of_upper_registers": (sign_kernel, (torch.int32, torch.int8), "x86-64-v4"),
    "masked_load_of_two_registers": (masked_kernel, (torch.float64, torch.float64, 7), "x86-64-v3"),
}


@pytest.mark.parametrize("correction", machine.CORRECTIONS, ids=lambda correction: correction.issue)
def test_what_is_corrected_of_llvm_still_occurs(
    correction: machine.Correction, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The corrections find their patterns in the text of LLVM's IR, which may change from version to version."""
    texts: list[str] = []
    original = machine.corrected

    def corrected(text: str, architecture: str) -> str:
        texts.append(text)
        return original(text, architecture)

    monkeypatch.setattr(machine, "corrected", corrected)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    kernel, arguments, level = REFERENCES[correction.issue]
    triton.JITFunction(kernel.fn).warmup(*arguments, N=32, grid=(1,), arch=level)
    (text,) = texts
    changed = [match for match in correction.pattern.finditer(text) if correction.replacement(match) != match[0]]
    assert changed, text


def test_each_correction_has_the_text_of_an_issue() -> None:
    upstream = Path(__file__).parent.parent / "docs" / "upstream"
    for correction in machine.CORRECTIONS:
        assert (upstream / f"{correction.issue}.md").exists()
