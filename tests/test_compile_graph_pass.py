"""What graphs on the device are rewritten for: upstream's lowering is wrong without, and the rewritten graph right."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.select_algorithm import AlgorithmSelectorCache, ExternKernelCaller
from torch._inductor.utils import fresh_cache

from tests.compiled import generated
from torch_mtia import torch_version
from torch_mtia.inductor import graph_pass

aten = torch.ops.aten
D = "mtia"
LEAST = torch.iinfo(torch.int32).min
INT8 = torch.arange(-128, 128, dtype=torch.int8)
BFLOAT16, FLOAT32, FLOAT8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def reversed_and_transposed() -> Tensor:
    return torch.arange(60).view(4, 5, 3).flip(0).permute(2, 0, 1).to(D)


def ones(*sizes: int, dtype: torch.dtype = FLOAT32) -> Tensor:
    return torch.ones(sizes, dtype=dtype, device=D)


def nothing(*sizes: int) -> Tensor:
    return torch.full(sizes, math.nan, device=D)


def scaled(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    return torch._scaled_mm(a, b, scale, scale, None, scale, FLOAT8)


def gradient_of_pool(gradient: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """Of indices with channels last, which only compiled code has."""
    if not torch.compiler.is_compiling():
        indices = indices.contiguous()
    result: Tensor = aten.adaptive_max_pool3d_backward(gradient, x, indices)
    return result


def pooled() -> tuple[Tensor, ...]:
    x = torch.randn(1, 4, 4, 3, 5)
    result, indices = aten.adaptive_max_pool3d(x, x.shape[2:])
    return result.to(D), x.to(D), indices.to(D).to(memory_format=torch.channels_last_3d)


def factors(*batch: int) -> tuple[Tensor, ...]:
    return ones(*batch, 32, 16, dtype=BFLOAT16), ones(*batch, 16, 32, dtype=BFLOAT16)


def sum_and_factors(*batch: int) -> tuple[Tensor, ...]:
    return ones(*batch, 32, 32), *factors(*batch)


def nothing_and_factors(*batch: int) -> tuple[Tensor, ...]:
    return nothing(*batch, 32, 32), ones(*batch, 32, 16), ones(*batch, 16, 32)


Program = tuple[Any, Callable[..., Tensor], Callable[[], tuple[Tensor, ...]], dict[str, Any]]
TRITON = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
ATEN = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN"}

PROGRAMS: dict[str, Program] = {
    "quotients of int8": (
        aten.div.Tensor_mode,
        lambda x, y: (x // y).to(torch.int32),
        lambda: (INT8.to(D), torch.full_like(INT8, -1).to(D)),
        {},
    ),
    "quotients of the least number": (
        aten.div.Tensor_mode,
        lambda x, y: x // y,
        lambda: (torch.full((4,), LEAST, dtype=torch.int32, device=D), torch.tensor([-3, -2, 3, LEAST]).int().to(D)),
        {},
    ),
    "the scale of a result": (
        aten._scaled_mm.default,
        scaled,
        lambda: (ones(16, 16).to(FLOAT8), ones(16, 16).t().to(FLOAT8), torch.tensor(2.0, device=D)),
        {},
    ),
    "a bias without dimensions": (aten.addmm.default, torch.addmm, lambda: (ones(), ones(2, 3), ones(3, 4)), ATEN),
    "alpha": (
        aten.addmm.default,
        lambda bias, a, b: torch.addmm(bias, a, b, alpha=0),
        lambda: (ones(32), nothing(32, 16), ones(16, 32)),
        TRITON,
    ),
    **{
        f"a{generated} product in another dtype": (
            aten.mm.dtype,
            functools.partial(torch.mm, out_dtype=FLOAT32),
            factors,
            {"triton.native_matmul": bool(generated)},
        )
        for generated in ("", " generated")
    },
}
SHAPES: tuple[tuple[tuple[int, ...], Any, str], ...] = (((), aten.addmm, "matrices"), ((2,), aten.baddbmm, "batches"))
for batch, addmm, name in SHAPES:
    PROGRAMS |= {
        f"beta of {name}": (
            addmm.default,
            functools.partial(addmm, beta=0),
            functools.partial(nothing_and_factors, *batch),
            TRITON,
        ),
        f"a sum of {name} in another dtype": (
            addmm.dtype,
            functools.partial(addmm, out_dtype=FLOAT32, beta=2, alpha=3),
            functools.partial(sum_and_factors, *batch),
            {},
        ),
    }
if torch_version.TORCH < (2, 15):
    PROGRAMS["a tensor that is put into itself"] = (
        aten.index_put.default,
        lambda x, index: (lambda y: y.index_put((index,), y))(x * 2),
        lambda: (torch.randn(1 << 16, device=D), torch.arange(1 << 16).flip(0).to(D)),
        {},
    )
    PROGRAMS["indices with channels last"] = (
        aten.adaptive_max_pool3d_backward.default,
        gradient_of_pool,
        pooled,
        {},
    )
    PROGRAMS |= {
        name: (
            getattr(aten, name).default,
            lambda x, name=name: getattr(torch, name)(x.to(torch.int16) * 2),
            lambda: (reversed_and_transposed(),),
            {},
        )
        for name in ("argmax", "argmin")
    }


def is_right(function: Callable[..., Tensor], operands: tuple[Tensor, ...], options: dict[str, Any]) -> bool:
    torch._dynamo.reset()
    expected = function(*operands)
    try:
        with fresh_cache(), config.patch(options):
            result = torch.compile(function, fullgraph=True)(*operands)
    except Exception:
        return False
    return result.dtype == expected.dtype and torch.equal(result.to(torch.float64), expected.to(torch.float64))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rewriter_is_needed_and_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, function, make, options = PROGRAMS[name]
    operands = make()
    assert is_right(function, operands, options)
    monkeypatch.delitem(graph_pass._REWRITERS, operator)
    assert not is_right(function, operands, options), "upstream does this itself now: remove the rewriter"


@pytest.mark.parametrize("options", [{}, {"triton.native_matmul": True}])
def test_products_of_batches_are_of_another_dtype(options: dict[str, Any]) -> None:
    assert is_right(functools.partial(torch.bmm, out_dtype=FLOAT32), factors(2), options)


def test_a_bias_without_dimensions_stays_where_the_operator_is_the_quickest(monkeypatch: pytest.MonkeyPatch) -> None:
    def time(choice: object, *_arguments: object) -> float:
        return 1.0 if isinstance(choice, ExternKernelCaller) else 2.0

    monkeypatch.setattr(AlgorithmSelectorCache, "benchmark_choice", staticmethod(time))
    operands = (ones(), ones(16, 32), ones(32, 8))
    assert is_right(torch.addmm, operands, {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"})


def test_every_rewriter_has_a_program() -> None:
    tested = {operator for operator, *_ in PROGRAMS.values()}
    others = {aten.div.Scalar_mode, aten.floor_divide.default}  # which tracing turns into div.Tensor_mode
    others |= {aten._unsafe_index_put.default} & graph_pass._REWRITERS.keys()  # and index_put
    others |= {aten.mm.default, aten.bmm.default, aten.mul.Tensor}  # what is quicker, not right
    assert graph_pass._REWRITERS.keys() - others == tested


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("divisor", [3, -3, None])
def test_quotients_are_those_of_the_operator(dtype: torch.dtype, divisor: int | None) -> None:
    limits = torch.iinfo(dtype)
    values = torch.tensor([limits.min, limits.min + 1, 0, 5, 7, limits.max - 1, limits.max], dtype=dtype, device=D)
    if divisor is None:
        assert is_right(lambda x, y: x // y, (values, values.flip(0).clamp_min(1)), {})
    elif divisor > limits.min:
        assert is_right(lambda x: x // divisor, (values,), {})


def test_floating_point_quotients_stay_as_they_are() -> None:
    x = torch.randn(33, device=D)
    assert is_right(lambda x: torch.div(x, 0.3, rounding_mode="floor"), (x,), {})


def test_products_of_bytes_are_summed_by_the_operator_for_them() -> None:
    def product(a: Tensor, b: Tensor) -> Tensor:
        summed: Tensor = torch.ops.higher_order.out_dtype(aten.mm.default, torch.int32, a, b)
        return summed

    a, b = (INT8.view(16, 16).to(D), INT8.flip(0).view(16, 16).to(D))
    result, code = generated(product, a, b)
    assert "_int_mm" in code
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        eager = product(a, b)
    assert "aten::_int_mm" in {event.name for event in profile.events()}
    expected = a.cpu().int() @ b.cpu().int()
    assert torch.equal(result.cpu(), expected)
    assert torch.equal(eager.cpu(), expected)
