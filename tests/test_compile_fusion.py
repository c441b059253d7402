"""What Inductor fuses, pads and lowers in forms of its own: each asked for where it is not the default, and seen in the
code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import config, metrics, select_algorithm
from torch._inductor import utils as inductor_utils
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.utils import fresh_cache

from tests.compiled import generated, kernels
from torch_mtia import torch_version

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16


@pytest.fixture(autouse=True)
def _counts_start_at_zero() -> Any:
    counters.clear()
    metrics.reset()
    with fresh_cache():
        yield


def compiled(function: Callable[..., Any], *operands: Tensor, **options: Any) -> tuple[Any, str]:
    """Its result on the device, which is that of eager operators there, and the code."""
    on_device = [operand.to("mtia") for operand in operands]
    with config.patch(options):
        result, code = generated(function, *on_device, fullgraph=True)
    torch.testing.assert_close(result, function(*on_device), rtol=2e-3, atol=2e-3)
    return result, code


# Reductions -----------------------------------------------------------------------------------------------------------


def set_processors(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    create = DeviceProperties.create
    monkeypatch.setattr(DeviceProperties, "create", lambda device: create(device)._replace(multi_processor_count=count))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fused", "processors", "tuned"),
    [(True, 2, False), (True, 64, False), (False, 2, False), (False, 64, False), (True, 2, True)],
)
def test_reductions_of_rows_and_columns_are_one_kernel(
    fused: bool, processors: int, tuned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_processors(monkeypatch, processors)
    x = torch.randn(8192, 768)
    options = {"triton.mix_order_reduction": fused, "max_autotune": tuned}
    _, code = compiled(lambda x: (x.sum(0), (x * x).sum(1)), x, **options)
    assert metrics.codegen_mix_order_reduction == fused
    assert (len(kernels(code)) == 1) == fused


def test_the_gradient_of_a_norm_reads_its_rows_once() -> None:
    def gradients(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        y = torch.nn.functional.rms_norm(x, (768,), weight)
        return torch.autograd.grad(y.square().sum(), (x, weight))

    x, weight = torch.randn(8192, 768), torch.randn(768)
    expected = gradients(x.requires_grad_(), weight.requires_grad_())
    operands = [value.detach().to("mtia").requires_grad_() for value in (x, weight)]
    torch._dynamo.reset()
    norm = torch.compile(lambda x, weight: torch.nn.functional.rms_norm(x, (768,), weight).square().sum())
    results = torch.autograd.grad(norm(*operands), operands)
    assert metrics.codegen_mix_order_reduction == 1
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_a_softmax_of_long_rows_reads_them_twice(dtype: torch.dtype, online: bool) -> None:
    x = torch.randn(3, 100_000).to(dtype)
    x[1] = -torch.inf
    x[2, 7] = torch.inf
    with config.patch(online_softmax=online):
        result, code = generated(lambda x: x.softmax(1), x.to("mtia"))
    assert ("prepare_softmax_online" in code) == online
    torch.testing.assert_close(result.cpu(), x.softmax(1), equal_nan=True)


# Products -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [True, False])
def test_operands_are_padded_where_that_is_asked_for(padded: bool) -> None:
    _, code = compiled(torch.mm, torch.randn(67, 133), torch.randn(133, 77), force_shape_pad=padded)
    assert len(kernels(code)) == (2 if padded else 0)
    assert counters["inductor"]["pattern_matcher_count"] == padded


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (torch.mm, ((16, 32), (32, 8))),
        (torch.bmm, ((2, 16, 32), (2, 32, 8))),
        (torch.addmm, ((16, 8), (16, 32), (32, 8))),
        (torch.baddbmm, ((2, 16, 8), (2, 16, 32), (2, 32, 8))),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("tuned", [False, True])
def test_products_may_have_another_dtype(
    operator: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...], tuned: bool
) -> None:
    *bias, a, b = (torch.randn(shape) for shape in shapes)
    scales = {"beta": 2.0, "alpha": 0.5} if bias else {}
    operands = (*bias, a.to(BFLOAT16), b.to(BFLOAT16))
    result, _ = compiled(lambda *values: operator(*values, out_dtype=FLOAT32, **scales), *operands, max_autotune=tuned)
    assert result.dtype == FLOAT32
    exact = operator(*(value.double() for value in operands), **scales)
    torch.testing.assert_close(result.cpu().double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_a_product_of_another_dtype_that_nobody_computes_is_refused(dtype: torch.dtype) -> None:
    a, b = torch.randn(16, 32).to(dtype), torch.randn(32, 8).to(dtype)
    products: tuple[Callable[..., Tensor], ...] = (torch.mm, torch.compile(torch.mm))
    for product in products:
        with pytest.raises(RuntimeError, match="out_dtype must be the"):
            product(a.to("mtia"), b.to("mtia"), out_dtype=torch.float64)


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_generated_products_may_have_another_dtype(batch: tuple[int, ...]) -> None:
    operands = (torch.randn(*batch, 32, 64).to(BFLOAT16), torch.randn(*batch, 64, 16).to(BFLOAT16))
    product = torch.bmm if batch else torch.mm
    result, _ = compiled(lambda a, b: product(a, b, out_dtype=FLOAT32), *operands, **{"triton.native_matmul": True})
    assert result.dtype == FLOAT32
    torch.testing.assert_close(result.cpu(), product(*(each.float() for each in operands)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tuned", [False, True])
def test_what_a_factor_of_0_leaves_out_may_be_nan(tuned: bool) -> None:
    nan, a, b = torch.full((2, 8, 8), torch.nan), torch.ones(2, 8, 8), torch.ones(2, 8, 8)
    for operands, factors, expected in (
        ((nan, a, b), {"beta": 0}, 8.0),
        ((a, nan, b), {"alpha": 0}, 1.0),
        ((nan[0], a[0], b[0]), {"beta": 0}, 8.0),
        ((a[0], nan[0], b[0]), {"alpha": 0}, 1.0),
    ):
        operator: Any = torch.baddbmm if operands[0].dim() == 3 else torch.addmm
        result, _ = compiled(lambda *values: operator(*values, **factors), *operands, max_autotune=tuned)  # noqa: B023
        assert (result == expected).all()


def test_what_is_scaled_down_may_be_too_large_before() -> None:
    operands = torch.zeros(4).half(), torch.full((2, 512), 100.0).half(), torch.full((512, 4), 100.0).half()
    result, _ = compiled(lambda bias, a, b: torch.addmm(bias, a, b, beta=0, alpha=1e-3), *operands)
    assert (result == 5120).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backends", ["ATEN", "TRITON", "ATEN,TRITON"])
@pytest.mark.parametrize("bias", [(), (1,), (8,), (16, 1), (1, 8), (16, 8)], ids=str)
def test_a_bias_of_any_shape_is_added(bias: tuple[int, ...], backends: str) -> None:
    options = {"max_autotune": True, "max_autotune_gemm_backends": backends}
    operands = torch.randn(bias), torch.randn(16, 32), torch.randn(32, 8)
    compiled(lambda *values: torch.addmm(*values, beta=0.3, alpha=2), *operands, **options)


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("alpha", [1, 0.5])
def test_a_bias_that_is_left_out_may_be_nan(alpha: float, tuned: bool) -> None:
    options = {"max_autotune": tuned, "max_autotune_gemm_backends": "TRITON"}
    operands = torch.full((8,), torch.nan), torch.randn(16, 32), torch.randn(32, 8)
    result, _ = compiled(lambda *values: torch.addmm(*values, beta=0, alpha=alpha), *operands, **options)
    assert not result.isnan().any()


def test_a_product_over_one_number_is_pointwise() -> None:
    _, code = compiled(torch.mm, torch.randn(64, 1), torch.randn(1, 32))
    assert "extern_kernels." not in code
    assert len(kernels(code)) == 1


def test_a_batch_of_dot_products_fuses_with_what_follows() -> None:
    _, code = compiled(lambda a, b: torch.bmm(a, b) + 1, torch.randn(64, 1, 16), torch.randn(64, 16, 1))
    assert "extern_kernels." not in code
    assert len(kernels(code)) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_products_are_generated_where_that_is_asked_for(batch: tuple[int, ...]) -> None:
    operands = torch.randn(*batch, 64, 128), torch.randn(*batch, 128, 32)
    _, code = compiled(lambda a, b: (a @ b).relu(), *operands, **{"triton.native_matmul": True})
    assert "tl.dot(" in code
    assert "extern_kernels." not in code


def rig(monkeypatch: pytest.MonkeyPatch, winners: str) -> None:
    """Choices with such names are the quickest."""

    def time(_cls: object, choice: Any, _arguments: object) -> float:
        return 1.0 if choice.name.startswith(winners) else 2.0

    monkeypatch.setattr(select_algorithm.AlgorithmSelectorCache, "benchmark_choice", classmethod(time))


def test_two_products_in_a_row_may_be_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    rig(monkeypatch, "triton_b2b_gemm")
    operands = torch.randn(256, 32), torch.randn(32, 256), torch.randn(256, 32)
    options = {"b2b_gemm_pass": True, "max_autotune": True}
    _, code = compiled(lambda a, b, c: torch.mm(torch.mm(a, b).relu(), c), *operands, **options)
    assert counters["inductor"]["b2b_gemm"] == 1
    assert "B2B_GEMM_LEFT_TRITON_ENTRANCE" in code
    assert len(kernels(code)) == 1
    assert "extern_kernels." not in code


def test_a_sum_of_two_products_may_be_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    rig(monkeypatch, "triton_mm_plus_mm")
    operands = torch.randn(72, 64), torch.randn(64, 136), torch.randn(72, 64), torch.randn(64, 136)
    _, code = compiled(
        lambda a, b, c, d: (a @ b + c @ d).relu(), *operands, max_autotune=True, benchmark_epilogue_fusion=False
    )
    assert len(kernels(code)) == 1
    assert "extern_kernels." not in code


@pytest.mark.parametrize("pixels", [1, 3])
def test_a_convolution_may_be_generated(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rig(monkeypatch, "triton_")
    operands = torch.randn(2, 8, 10, 10), torch.randn(16, 8, pixels, pixels), torch.randn(16)
    _, code = compiled(lambda x, w, b: torch.conv2d(x, w, b, padding=1).relu(), *operands, max_autotune=True)
    assert [name for name in kernels(code) if name.startswith("triton_tem_")]
    assert "extern_kernels." not in code


@pytest.mark.parametrize("fused", [True, False])
def test_what_computes_an_operand_may_be_part_of_the_products_kernel(fused: bool) -> None:
    options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "benchmark_epilogue_fusion": False}
    operands = torch.randn(64, 64), torch.randn(64, 64)
    _, code = compiled(lambda a, b: a.sin().exp() @ b, *operands, prologue_fusion=fused, **options)
    assert len(kernels(code)) == (1 if fused else 2)
    (product,) = (kernel for kernel in code.split("@triton") if "tl.dot(" in kernel)
    assert ("tl_math.sin(" in product) == fused


def test_what_two_kernels_read_is_computed_in_both() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin().exp()
        return y.sum(1), y.t().cumsum(1)

    _, code = compiled(function, torch.randn(300, 200))
    assert len(kernels(code)) == 2
    assert code.count("tl_math.sin(") == 2


def test_groups_of_products_run_as_the_operator() -> None:
    ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32)
    operands = torch.randn(64, 64).to(BFLOAT16), torch.randn(4, 64, 64).to(BFLOAT16), ends
    _, code = compiled(lambda a, b, ends: torch._grouped_mm(a, b, offs=ends), *operands, max_autotune=True)
    assert "extern_kernels._grouped_mm" in code


def forget_divisions() -> None:
    """Of long sums: upstream remembers what it said of a length."""
    for name in ("use_decompose_k_choice", "get_k_splits"):
        getattr(getattr(inductor_utils, name, None), "cache_clear", lambda: None)()


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"triton.num_decompose_k_splits": 0}, 0),
        ({"triton.num_decompose_k_splits": 2}, 2),
        ({"triton.num_decompose_k_splits": 2, "triton.decompose_k_threshold": 256}, 2),
        ({"triton.num_decompose_k_splits": 2, "triton.decompose_k_threshold": 257}, 0),
    ],
    ids=str,
)
def test_knobs_say_which_long_sums_are_divided(
    options: dict[str, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig(monkeypatch, "mm")
    choices: list[str] = []

    def seen(measured: dict[Any, float], *_args: Any) -> None:
        choices.extend(choice.name for choice in measured)

    forget_divisions()
    select_algorithm.add_feedback_saver(seen)
    try:
        compiled(torch.mm, torch.randn(16, 4096) / 64, torch.randn(4096, 16), max_autotune=True, **options)
    finally:
        select_algorithm.clear_feedback_savers()
        forget_divisions()
    assert sum("decompose_k" in name for name in choices) == count


def test_a_sum_of_unknown_length_is_not_divided() -> None:
    a, b = torch.randn(16, 8192, device="mtia"), torch.randn(8192, 16, device="mtia")
    torch._dynamo.mark_dynamic(a, 1)
    torch._dynamo.mark_dynamic(b, 0)
    with config.patch(max_autotune=True, max_autotune_gemm_backends="TRITON"):
        result, code = generated(torch.mm, a, b)
    assert "decompose_k" not in code
    torch.testing.assert_close(result, a @ b, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("exact", [False, True])
def test_16_bits_are_rounded_as_eager_operators_round_where_that_is_asked_for(exact: bool) -> None:
    x = torch.randn(4096).to(BFLOAT16).to("mtia")

    def function(x: Tensor) -> Tensor:
        return (x * 1.1 + 0.3) * x

    with config.patch(emulate_precision_casts=exact):
        result, _ = generated(function, x)
    # From 2.15 on Inductor rounds the scalars too, which no device's operators do.
    assert torch.equal(result, function(x)) == (exact and torch_version.TORCH < (2, 15))
    torch.testing.assert_close(result, function(x), rtol=1.6e-2, atol=1e-2)


# Transposed operands --------------------------------------------------------------------------------------------------


@pytest.mark.sampled(5)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, FLOAT32, BFLOAT16, torch.int8, torch.bool])
@pytest.mark.parametrize("shape", [(3, 300), (129, 33), (160, 96), (1000, 77)])
def test_a_transposed_operand_is_added_bit_for_bit(shape: tuple[int, int], dtype: torch.dtype, threads: int) -> None:
    x, y = (torch.randint(-100, 100, size).to(dtype) for size in (shape, shape[::-1]))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        result, _ = compiled(lambda x, y: x.t() + y, x, y)
        assert torch.equal(result.cpu(), x.t() + y)
    finally:
        torch.set_num_threads(before)


def test_a_large_result_with_a_transposed_operand_is_written_past_the_caches() -> None:
    x, y = torch.randn(2049, 2080), torch.randn(2080, 2049)
    result, _ = compiled(lambda x, y: x.t() + y, x, y)
    assert torch.equal(result.cpu(), x.t() + y)
    in_place = y.to("mtia")
    torch.compile(lambda x, y: y.add_(x.t()))(x.to("mtia"), in_place)
    assert torch.equal(in_place.cpu(), x.t() + y)
