"""Numbers of 8 and 4 bits: conversions to fp8, products of fp8 and int8, products with weights of 8 and 4 bits, and the
models that torchao makes of them. Operators, their graphs and compiled code compute the same.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

import torch_mtia
from tests.capturing import capture
from tests.compiled import generated
from torch_mtia import torch_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import RunScript

Tensor = torch.Tensor
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FLOAT8 = (E4M3, E5M2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
TEMPLATES = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}


@pytest.fixture(autouse=True)
def _no_fallback_and_no_gradients() -> Iterator[None]:
    with torch_mtia.fallback.forbid(), torch.no_grad():
        yield


def bits(x: Tensor) -> Tensor:
    """Of which there is one for NaN."""
    codes = x.view(torch.uint8) if x.dtype.itemsize == 1 else x
    return torch.where(x.float().isnan().cpu(), 0, codes.cpu())


def digits(*shape: int, dtype: torch.dtype) -> Tensor:
    """Small numbers, of which sums of products are exact."""
    return torch.randint(-4, 5, shape).to(dtype)


# Conversions ---------------------------------------------------------------------------------------------------------

TOO_LARGE = [2.0**power * digit for power in (7, 8, 9, 14, 15, 16, 20, 100) for digit in (1, 1.75, 1.8125, 1.875, 1.99)]
NUMBERS = torch.tensor([0.0, 1e-9, 2e-3, 0.3, 1.0, torch.nan, torch.inf, *TOO_LARGE])
NUMBERS = torch.cat([NUMBERS, -NUMBERS])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("narrow", FLOAT8, ids=str)
def test_compiled_conversions_are_those_of_operators_also_of_what_is_too_large(
    device: torch.device, wide: torch.dtype, narrow: torch.dtype
) -> None:
    def convert(x: Tensor) -> Tensor:
        return (x * 1).to(narrow)

    numbers = NUMBERS.to(wide)
    result, code = generated(convert, numbers.to(device))
    assert "tl.float8" in code
    assert torch.equal(bits(result), bits(numbers.to(narrow)))
    assert torch.equal(bits(convert(numbers.to(device))), bits(numbers.to(narrow)))


def test_a_kernel_of_the_program_saturates_compiled_or_not(device: torch.device) -> None:
    import triton

    @triton.jit
    def to_fp8(x, y, N: triton.language.constexpr):
        i = triton.language.arange(0, N)
        triton.language.store(y + i, triton.language.load(x + i).to(triton.language.float8e5))

    def convert(x: Tensor) -> Tensor:
        y = torch.empty_like(x, dtype=E5M2)
        to_fp8[(1,)](x, y, N=4)
        return y

    x = torch.tensor([1.0, 60000.0, 1e9, -torch.inf], device=device)
    expected = torch.tensor([1.0, 57344.0, 57344.0, -57344.0])
    assert torch.equal(convert(x).float().cpu(), expected)
    assert torch.equal(torch.compile(convert, fullgraph=True)(x).float().cpu(), expected)


# Products of fp8 -----------------------------------------------------------------------------------------------------

M, N, K = 24, 40, 64
SCALES = {
    "tensor-wise": (torch.tensor(0.5), torch.tensor([[4.0]])),
    "row-wise": (2.0 ** torch.randint(-2, 3, (M, 1)), 2.0 ** torch.randint(-2, 3, (1, N))),
}
RESULTS = (torch.float32, torch.bfloat16, torch.float16, E4M3, E5M2)
by_scales = pytest.mark.parametrize("scales", SCALES)
by_dtypes = pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E5M2)], ids=str)


def operands(dtypes: tuple[torch.dtype, torch.dtype], scales: str) -> tuple[Tensor, ...]:
    return digits(M, K, dtype=dtypes[0]), digits(N, K, dtype=dtypes[1]).t(), *SCALES[scales]


def exact(inputs: tuple[Tensor, ...], bias: Tensor | None = None) -> Tensor:
    a, b, scale_a, scale_b = inputs
    product = (a.double() @ b.double()) * scale_a.double() * scale_b.double()
    return (product if bias is None else product + bias.double()).float()


def on(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    return [tensor.to(device) for tensor in tensors]


@by_dtypes
@by_scales
def test_scaled_products(device: torch.device, dtypes: tuple[torch.dtype, torch.dtype], scales: str) -> None:
    inputs = operands(dtypes, scales)
    for bias, out_dtype in itertools.product((None, digits(N, dtype=torch.bfloat16)), (None, *RESULTS)):
        expected = exact(inputs, bias).to(out_dtype or dtypes[0])
        a, b, scale_a, scale_b = on(device, *inputs)
        arguments: dict[str, Any] = {"bias": None if bias is None else bias.to(device), "out_dtype": out_dtype}
        result = torch._scaled_mm(a, b, scale_a, scale_b, **arguments)
        assert result.dtype == expected.dtype
        assert torch.equal(bits(result), bits(expected))
        out = torch.empty(M, N, dtype=expected.dtype, device=device)
        assert torch._scaled_mm(a, b, scale_a, scale_b, **arguments, out=out) is out
        assert torch.equal(bits(out), bits(expected))
        recipe = [F.ScalingType.TensorWise if scales == "tensor-wise" else F.ScalingType.RowWise]
        second = F.scaled_mm(
            a, b, [scale_a], recipe, [scale_b], recipe, bias=arguments["bias"], output_dtype=out_dtype or dtypes[0]
        )
        assert torch.equal(bits(second), bits(expected))


def test_the_result_of_a_scaled_product_has_a_scale(device: torch.device) -> None:
    inputs = operands((E4M3, E4M3), "tensor-wise")
    expected = (exact(inputs) / 8).to(E4M3)

    def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, scale_result: Tensor) -> Tensor:
        return torch._scaled_mm(a, b, scale_a, scale_b, scale_result=scale_result, out_dtype=E4M3)

    moved = on(device, *inputs, torch.tensor(8.0))
    assert torch.equal(bits(product(*moved)), bits(expected))
    assert torch.equal(bits(torch.compile(product)(*moved)), bits(expected))


def test_scaled_products_of_nothing(device: torch.device) -> None:
    one = torch.ones(1, device=device)
    for m, n, k in ((0, 8, 16), (4, 0, 16), (4, 8, 0)):
        a, b = torch.zeros(m, k, device=device).to(E4M3), torch.zeros(k, n, device=device).to(E4M3)
        assert torch.equal(torch._scaled_mm(a, b, one, one, out_dtype=torch.float32).cpu(), torch.zeros(m, n))


def second_version(recipe: F.ScalingType, **options: Any) -> Callable[..., Tensor]:
    return lambda a, b, s, t: F.scaled_mm(a, b, [s], [recipe], [t], [recipe], **options)


WRONG_PRODUCTS: dict[str, tuple[Callable[..., Any], str]] = {
    "shapes": (lambda a, b, s, t: torch._scaled_mm(a, b.t(), s, t), "cannot be multiplied"),
    "dtypes": (lambda a, b, s, t: torch._scaled_mm(a, b.float(), s, t), "fp8"),
    "bias": (lambda a, b, s, t: torch._scaled_mm(a, b, s, t, bias=s.reshape(1)), "Bias must be size"),
    "scales of other rows": (lambda a, b, s, t: torch._scaled_mm(a, b, s.expand(3, 1).contiguous(), t), "scaling"),
    "scales of rows only": (lambda a, b, s, t: torch._scaled_mm(a, b, s.expand(M, 1).contiguous(), t), "scaling"),
    "scales of float64": (lambda a, b, s, t: torch._scaled_mm(a, b, s.double(), t.double()), "scaling"),
    "dtype of out": (
        lambda a, b, s, t: torch._scaled_mm(a, b, s, t, out_dtype=torch.float32, out=torch.empty_like(a)),
        "out_dtype",
    ),
    "blocks of 32": (second_version(F.ScalingType.BlockWise1x32), "recipe"),
    "swizzled": (second_version(F.ScalingType.TensorWise, swizzle_a=[F.SwizzleType.SWIZZLE_32_4_4]), "swizzle"),
}


@pytest.mark.parametrize("name", WRONG_PRODUCTS)
def test_wrong_scaled_products_raise_at_the_call(device: torch.device, name: str) -> None:
    function, message = WRONG_PRODUCTS[name]
    with pytest.raises(ValueError, match=message):
        function(*on(device, *operands((E4M3, E4M3), "tensor-wise")))


# What all these products do -------------------------------------------------------------------------------------------


def int4_weight(device: torch.device) -> tuple[Tensor, Tensor]:
    """A packed weight (48, 128), and its scales and zero points, of groups of 32."""
    packed = torch._convert_weight_to_int4pack(torch.randint(256, (48, 64), dtype=torch.uint8).to(device), 4)
    return packed, torch.rand(4, 48, 2).bfloat16().to(device)


def int8(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def products(device: torch.device) -> dict[str, tuple[Callable[..., Tensor], Callable[[], Tensor], tuple[Tensor, ...]]]:
    """By name: the product, what makes its first operand, the others."""
    b, *scales = on(device, *operands((E4M3, E4M3), "row-wise")[1:])
    a_scale, b_scale = on(device, *SCALES["tensor-wise"])
    tensor_wise, none = [F.ScalingType.TensorWise.value], [F.SwizzleType.NO_SWIZZLE.value]
    recipes = (*([a_scale], tensor_wise, none, [b_scale], tensor_wise, none), None, torch.bfloat16)
    packed, scales_and_zeros = int4_weight(device)
    weight, weight_scales = on(device, int8(48, K), torch.rand(48))
    few, many = 3, 70  # rows

    def fp8() -> Tensor:
        return digits(M, K, dtype=E4M3)

    return {
        "_scaled_mm": (lambda a, b, s, t: torch._scaled_mm(a, b, s, t, out_dtype=torch.bfloat16), fp8, (b, *scales)),
        "_scaled_mm_v2": (lambda a, b: torch.ops.aten._scaled_mm_v2(a, b, *recipes), fp8, (b,)),
        "_int_mm": (torch._int_mm, lambda: int8(M, K), (int8(K, N).to(device),)),
        "_weight_int8pack_mm, few rows": (
            *(torch._weight_int8pack_mm, lambda: torch.randn(few, K).bfloat16()),
            (weight, weight_scales.bfloat16()),
        ),
        "_weight_int8pack_mm, many rows": (
            *(torch._weight_int8pack_mm, lambda: torch.randn(many, K)),
            (weight, weight_scales),
        ),
        "_weight_int4pack_mm": (
            lambda x, w, s: torch._weight_int4pack_mm(x, w, 32, s),
            *(lambda: torch.randn(5, 128).bfloat16(), (packed, scales_and_zeros)),
        ),
    }


by_name = pytest.mark.parametrize(
    "name",
    [
        "_scaled_mm",
        "_scaled_mm_v2",
        "_int_mm",
        "_weight_int8pack_mm, few rows",
        "_weight_int8pack_mm, many rows",
        "_weight_int4pack_mm",
    ],
)


@by_name
def test_products_do_not_wait_for_the_device(device: torch.device, name: str) -> None:
    product, first, others = products(device)[name]
    x = first().to(device)
    product(x, *others)
    torch.mtia.synchronize()
    gate = threading.Event()
    opened: list[bool] = []
    torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: opened.append(gate.wait(30)))
    result = product(x, *others)
    gate.set()
    torch.mtia.synchronize()
    assert opened == [True]
    assert torch.equal(result.cpu(), product(x, *others).cpu())


@by_name
def test_kernels_are_not_asked_which_dtypes_they_take(device: torch.device, name: str) -> None:
    """Which they would answer by computing a product of zeros."""
    product, first, others = products(device)[name]
    x = first().to(device)
    torch_mtia._C._take_kernel_answers()
    torch_mtia._C._record_kernel_answers(True)
    try:
        product(x, *others)
    finally:
        torch_mtia._C._record_kernel_answers(False)
    assert torch_mtia._C._take_kernel_answers() == []


@by_name
def test_graphs_record_products(device: torch.device, name: str) -> None:
    product, first, others = products(device)[name]
    x = first().to(device)
    product(x, *others)
    graph, result = capture(lambda: product(x, *others))
    for _ in range(2):
        x.copy_(first())
        graph.replay()
        assert torch.equal(result.cpu(), product(x, *others).cpu())


@by_name
def test_compiled_products_are_those_of_operators(device: torch.device, name: str) -> None:
    product, first, others = products(device)[name]
    x = first().to(device)
    result, _ = generated(product, x, *others, fullgraph=True)
    assert torch.equal(result.cpu(), product(x, *others).cpu())


# Products of int8 and with weights of 8 bits --------------------------------------------------------------------------


def test_products_of_integers(device: torch.device) -> None:
    for left in (int8(37, 70), torch.randint(256, (37, 70), dtype=torch.uint8)):
        right = int8(45, 70).t()
        expected = left.int() @ right.int()
        assert torch.equal(torch._int_mm(*on(device, left, right)).cpu(), expected)
        out = torch.empty(37, 45, dtype=torch.int32, device=device)
        assert torch.equal(torch._int_mm(*on(device, left, right), out=out).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_products_with_weights_of_8_bits(device: torch.device, dtype: torch.dtype, rows: int) -> None:
    x, weight, scales = torch.randn(rows, 64).to(dtype), int8(48, 64), torch.rand(48).to(dtype) / 64
    expected = (x.double() @ weight.double().t()) * scales.double()
    result = torch._weight_int8pack_mm(*on(device, x, weight, scales)).cpu()
    tolerance = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), expected, rtol=2 * tolerance, atol=2 * tolerance)


# As on a processor without VNNI, where oneDNN, and so the CPU device, cuts sums to 16 bits.
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_products_of_integers_are_exact_without_vnni(run_script: RunScript, dtype: torch.dtype) -> None:
    run_script(
        f"""
        import torch
        largest = torch.full((70, 1100), torch.iinfo({dtype}).max, dtype={dtype}, device="mtia")
        least = torch.full((1100, 40), -128, dtype=torch.int8, device="mtia")
        with torch.backends.mkldnn.flags(enabled=False):
            torch._int_mm(largest, least)
        product = torch._int_mm(largest, least)
        assert product.dtype == torch.int32 and product.shape == (70, 40)
        assert (product == torch.iinfo({dtype}).max * -128 * 1100).all()
        out = torch.zeros(40, 70, dtype=torch.int32, device="mtia").t()
        assert torch.equal(torch._int_mm(largest, least, out=out), product)
        """,
        ONEDNN_MAX_CPU_ISA="AVX2",
    ).output()


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (0, 0), (1, 1), (2, 1), (9, 1), (1, 20), (18, 2), (2, 40)])
def test_products_of_int8_take_any_strides(device: torch.device, strides: tuple[int, int]) -> None:
    base, other = int8(1, 400), int8(9, 5)
    x, wanted_x = (b.as_strided((20, 9), strides) for b in (base.to(device), base))
    expected = (wanted_x.long() @ other.long()).int()
    assert torch.equal(torch._int_mm(x, other.to(device)).cpu(), expected)
    assert torch.equal(torch._int_mm(other.t().to(device), x.t()).cpu(), expected.t())
    out = torch.zeros(20, 5, dtype=torch.int32, device=device)
    assert torch.equal(torch._int_mm(x, other.to(device), out=out).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [0, 1, 3, 16, 31, 100])
def test_weights_of_8_bits_of_any_length(device: torch.device, dtype: torch.dtype, length: int) -> None:
    for rows, columns in ((1, 1), (1, 16), (4, 3), (17, 33)):
        x = torch.randint(-2, 3, (rows, length)).to(dtype)
        weight = torch.randint(-4, 5, (columns, length), dtype=torch.int8)
        scales = torch.tensor([0.5, 2.0, 1.0]).repeat(11)[:columns].to(dtype)
        expected = ((x.double() @ weight.double().t()) * scales.double()).to(dtype)
        assert torch.equal(torch._weight_int8pack_mm(*on(device, x, weight, scales)).cpu(), expected)


# Each makes operands that lie otherwise than others do: their base, how much longer its rows are, and where it begins.
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("which", "gap", "offset"),
    [
        *(("rows", *each) for each in ((0, 1), (0, 8), (3, 0), (16, 0), (3, 3))),
        ("weight", 0, 1),
        ("weight", 0, 8),
        ("scales", 1, 0),
    ],
)
def test_operands_of_8_bits_lie_anywhere(device: torch.device, which: str, gap: int, offset: int, rows: int) -> None:
    def anywhere(tensor: Tensor) -> Tensor:
        shape = (*tensor.shape[:-1], tensor.shape[-1] + gap)
        base = torch.zeros(torch.Size(shape).numel() + offset, dtype=tensor.dtype, device=device)[offset:].view(shape)
        return base[..., : tensor.shape[-1]].copy_(tensor)

    length = 64
    x, weight = torch.randn(rows, length).bfloat16(), int8(5, length)
    scales = torch.rand(5).bfloat16() / 64
    expected = torch._weight_int8pack_mm(*on(device, x, weight, scales))
    if which == "rows":
        result = torch._weight_int8pack_mm(anywhere(x), *on(device, weight, scales))
    elif which == "weight":
        result = torch._weight_int8pack_mm(x.to(device), anywhere(weight), scales.to(device))
    else:
        strided = torch.zeros(5, gap + 1, dtype=scales.dtype, device=device)[:, 0].copy_(scales)
        result = torch._weight_int8pack_mm(x.to(device), weight.to(device), strided)
    torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)


def test_one_scale_of_8_bits_may_stand_for_all(device: torch.device) -> None:
    x, weight = torch.randn(2, 64).bfloat16(), int8(48, 64)
    scale = torch.tensor([0.01]).bfloat16()
    result, _ = generated(
        lambda x, w, s: (x @ w.to(x.dtype).t()) * s, *on(device, x, weight), scale.to(device).expand(48)
    )
    expected = (x.double() @ weight.double().t()) * scale.double()
    torch.testing.assert_close(result.cpu().double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shape", [(1, 17, 1), (1, 300, 5), (5, 300, 1), (1, 1, 1)])
def test_lines_of_int8_take_any_strides(device: torch.device, shape: tuple[int, int, int]) -> None:
    rows, length, columns = shape
    for dtype in (torch.int8, torch.uint8):
        a, b = int8(length, rows).to(dtype).t(), int8(columns, length).t()
        expected = (a.long() @ b.long()).int()
        x, y = int8(length, rows).to(device, dtype).copy_(a.t()).t(), int8(columns, length).to(device).copy_(b.t()).t()
        for left in (x, x.contiguous()):
            assert torch.equal(torch._int_mm(left, y).cpu(), expected)
            out = torch.empty(columns, rows, dtype=torch.int32, device=device).t()
            assert torch.equal(torch._int_mm(left, y, out=out).cpu(), expected)


def test_a_bias_of_a_scaled_product_is_of_its_columns(device: torch.device) -> None:
    a, b, one = torch.eye(16).to(torch.float8_e4m3fn), torch.eye(16).to(torch.float8_e4m3fn).t(), torch.tensor(1.0)
    bias = torch.arange(16.0).bfloat16()
    scaled_mm: Any = torch._scaled_mm
    for each in (bias, bias[:, None], bias[None]):
        result = scaled_mm(*on(device, a, b, one, one), bias=each.to(device), out_dtype=torch.bfloat16)
        assert torch.equal(result.cpu(), (torch.eye(16) + torch.arange(16.0)).bfloat16())


@pytest.mark.parametrize("rows", [1, 32])
def test_scales_of_8_bits_make_sums_fit(device: torch.device, rows: int) -> None:
    x, weight = torch.full((rows, 256), 64.0).half(), torch.full((4, 256), 127, dtype=torch.int8)
    arguments = x, weight, torch.full((4,), 2.0**-10).half()
    assert torch.equal(torch._weight_int8pack_mm(*on(device, *arguments)).cpu(), torch._weight_int8pack_mm(*arguments))


WRONG: dict[str, Callable[..., Any]] = {
    "int8 by float": lambda _x, w, _s: torch._int_mm(w.float(), w.t()),
    "shapes": lambda _x, w, _s: torch._int_mm(w, w),
    "vector": lambda _x, w, _s: torch._int_mm(w[0], w),
    "scales": lambda x, w, s: torch._weight_int8pack_mm(x, w, s[:1]),
    "float64": lambda x, w, s: torch._weight_int8pack_mm(x.double(), w, s.double()),
    "transposed weight": lambda x, w, s: torch._weight_int8pack_mm(x, w.t(), s),
    "weight of float": lambda x, w, s: torch._weight_int8pack_mm(x, w.float(), s),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_products_raise_at_the_call_what_the_cpu_raises(device: torch.device, name: str) -> None:
    arguments = torch.randn(100, 64), int8(48, 64), torch.rand(48)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        WRONG[name](*arguments)
    with pytest.raises(RuntimeError) as actual:
        WRONG[name](*on(device, *arguments))
    if name in ("shapes", "vector") and torch_version.TORCH >= (2, 15):  # with other words, of an index for a vector
        assert str(actual.value).startswith("int_mm_out_cpu: ")
    else:
        assert str(actual.value) == str(expected.value)


# Templates ------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@by_scales
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, E4M3, E5M2], ids=str)
def test_the_template_of_scaled_products_computes_what_the_operator_does(
    device: torch.device, scales: str, out_dtype: torch.dtype
) -> None:
    def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor) -> Tensor:
        return torch._scaled_mm(a, b, scale_a, scale_b, bias=bias, out_dtype=out_dtype)

    a, b, scale_a, scale_b = operands((E4M3, E5M2), scales)
    inputs = on(device, a, b, scale_a * 2**12, scale_b, digits(N, dtype=torch.bfloat16))  # too large for fp8
    result, code = generated(product, *inputs, options=TEMPLATES)
    assert "triton_tem_fused__scaled_mm" in code
    assert "extern_kernels._scaled_mm" not in code
    assert torch.equal(bits(result), bits(product(*inputs)))


def test_the_template_of_products_of_integers_and_its_epilogue(device: torch.device) -> None:
    def product(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        return torch._int_mm(a, b).float() * scale

    inputs = on(device, int8(M, K), int8(N, K).t(), torch.rand(N))
    result, code = generated(product, *inputs, options=TEMPLATES)
    assert "triton_tem_fused__int_mm" in code
    assert "extern_kernels._int_mm" not in code
    assert code.count("def triton_") == 1, "the epilogue is not fused"
    assert torch.equal(result.cpu(), product(*inputs).cpu())


def test_a_product_with_a_converted_weight_is_one_operator(device: torch.device) -> None:
    def linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        return F.linear(x, weight.to(x.dtype)) * scales

    inputs = torch.randn(2, 3, 64).bfloat16(), int8(48, 64), torch.rand(48).bfloat16() / 64
    counters.clear()
    result, code = generated(linear, *on(device, *inputs))
    assert counters["inductor"]["woq_matcher_count"] == 1
    assert "_weight_int8pack_mm" in code
    assert " at 0x" not in code, "the code is not the same in each process"
    torch.testing.assert_close(result.cpu(), linear(*inputs), rtol=2e-2, atol=2e-2)


# torchao --------------------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(128, 256), torch.nn.Linear(256, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)))  # type: ignore[no-any-return]


def configurations() -> dict[str, Callable[[], Any]]:
    """By name, what makes one for torchao.quantization.quantize_. They leave Inductor's settings alone."""

    def make(name: str, **options: Any) -> Any:
        from torchao import quantization

        return getattr(quantization, name)(set_inductor_config=False, **options)

    def groups(size: int) -> Any:
        from torchao.quantization import granularity

        return granularity.PerGroup(size)

    def scales(name: str) -> Any:
        from torchao.quantization import granularity

        return getattr(granularity, name)()

    def float8(name: str) -> Callable[[], Any]:
        return lambda: make("Float8DynamicActivationFloat8WeightConfig", granularity=scales(name))

    def int4(algorithm: str) -> Callable[[], Any]:
        packing = {"int4_packing_format": "tile_packed_to_4d", "int4_choose_qparams_algorithm": algorithm}
        return lambda: make("Int4WeightOnlyConfig", group_size=32, **packing)

    return {
        "int8 weights": lambda: make("Int8WeightOnlyConfig"),
        "int8": lambda: make("Int8DynamicActivationInt8WeightConfig"),
        "int4 weights": int4("tinygemm"),
        "int4 weights, hqq": int4("hqq"),
        "float8 weights": lambda: make("Float8WeightOnlyConfig"),
        "float8, tensor-wise": float8("PerTensor"),
        "float8, row-wise": float8("PerRow"),
    }


OPERATORS_OF = {
    "int8": "_int_mm",
    "int4 weights": "_weight_int4pack_mm",
    "int4 weights, hqq": "_weight_int4pack_mm",
    "float8, tensor-wise": "_scaled_mm",
    "float8, row-wise": "_scaled_mm",
}


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore")  # torchao's own
@pytest.mark.parametrize("name", configurations())
def test_models_that_torchao_quantizes(device: torch.device, name: str) -> None:
    torchao = pytest.importorskip("torchao", reason="it makes the models")
    plain = Model().bfloat16()
    x = torch.randn(32, 128).bfloat16()
    model = Model().bfloat16().to(device)
    model.load_state_dict(plain.state_dict())
    torchao.quantization.quantize_(model, configurations()[name]())
    with torch.autograd.profiler.profile() as profile:
        result = model(x.to(device))
    expected = plain(x)
    assert (result.cpu() - expected).norm() / expected.norm() < (0.2 if "int4" in name else 0.06)
    operator = OPERATORS_OF.get(name)
    assert operator is None or f"aten::{operator}" in {event.name for event in profile.function_events}
    torch._dynamo.reset()
    # Fused operators do not round between them, unless told to; before numbers are quantized that makes a difference.
    options: Any = {"emulate_precision_casts": True}
    compiled = torch.compile(model, fullgraph=True, options=options)(x.to(device))
    # From 2.15 on Inductor rounds scalars to bfloat16 then, here the reciprocal of the largest float8.
    has_rounded_scales = name == "float8, row-wise" and torch_version.TORCH >= (2, 15)
    if operator is not None and not has_rounded_scales:
        assert torch.equal(compiled.cpu(), result.cpu())
    else:  # without an operator the weights are converted, and their product is scaled in another order
        assert (compiled - result).norm() / result.norm() < (0.06 if has_rounded_scales else 0.006)
