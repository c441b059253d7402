"""Limits on the buffers of a kernel: Inductor's own options, and the one that holds for every kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch._higher_order_ops import while_loop
from torch._inductor import config as inductor_config
from torch.utils import _pytree as pytree

from tests.compiled import buffers, generated, kernels
from torch_mtia.inductor import config
from torch_mtia.inductor.guardrails import TooManyBuffersError

LIMITS = (2, 3, 4, 8, 16)


def sum_of_eight(*tensors: torch.Tensor) -> torch.Tensor:
    return sum(tensors[1:], tensors[0])


def sum_of_ten_rows(*tensors: torch.Tensor) -> torch.Tensor:
    return sum(tensors[1:], tensors[0]).sum(1)


def sums(a: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple((a + other).sum(1) for other in others)


def in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.add_(b).mul_(2)


def horizontal(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a + b, a - b, a * b, a / b, a.sin(), b.cos()


def lists(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch._foreach_add(list(tensors[:5]), list(tensors[5:]))


PROGRAMS: dict[str, tuple[Callable[..., Any], int, int]] = {  # with operands, and buffers without a limit
    "sum of eight": (sum_of_eight, 8, 9),
    "reduction": (sum_of_ten_rows, 10, 11),
    "reductions": (sums, 6, 11),
    "in place": (in_place, 2, 3),
    "horizontal": (horizontal, 2, 8),
    "lists": (lists, 10, 15),
    "where": (lambda a, b, c: torch.where(a > 0, b * 2, c + 1), 3, 4),
    "cat": (lambda *tensors: torch.cat([x * 2 for x in tensors]).sin(), 12, 2),
    "softmax": (lambda a, b: torch.softmax(a + b, -1), 2, 3),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_kernel_has_more_buffers_than_the_limit(name: str) -> None:
    function, count, unlimited = PROGRAMS[name]
    operands = [torch.randn(30, 40) for _ in range(count)]
    expected = function(*[operand.clone() for operand in operands])

    def run() -> list[int]:
        result, code = generated(function, *(operand.to("mtia") for operand in operands))
        torch.testing.assert_close(pytree.tree_map(torch.Tensor.cpu, result), expected)
        return buffers(code)

    assert max(run()) == unlimited
    for limit in LIMITS if name == "sum of eight" else (2, unlimited - 1, unlimited):
        with config.patch(max_kernel_io_buffers=max(limit, 2)):
            most = max(run(), default=0)
        assert most == unlimited if limit >= unlimited else most <= max(limit, 2)


def test_the_limit_is_part_of_the_cache_key() -> None:
    from torch._inductor.codegen.common import custom_backend_codegen_configs, init_backend_registration

    init_backend_registration()
    assert custom_backend_codegen_configs["mtia"] is config


def test_a_limit_that_no_kernel_can_keep_is_refused() -> None:
    with config.patch(max_kernel_io_buffers=1), pytest.raises(Exception, match="use 2 or more"):
        generated(torch.sin, torch.ones(3, device="mtia"))


@triton.jit
def add_kernel(x, y, out, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(out + offsets, tl.load(x + offsets, mask) + tl.load(y + offsets, mask), mask)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    add_kernel[(1,)](x, y, out, x.numel(), BLOCK=64)
    return out


def test_a_kernel_of_the_program_itself_that_has_too_many_raises() -> None:
    x, y = torch.randn(50).to("mtia"), torch.randn(50).to("mtia")
    with config.patch(max_kernel_io_buffers=3):
        torch.testing.assert_close(generated(add, x, y)[0], x + y)
    with (
        config.patch(max_kernel_io_buffers=2),
        pytest.raises(TooManyBuffersError, match=r"add_kernel.* 3 buffers.*allows 2"),
    ):
        generated(add, x, y)


@torch.compiler.nested_compile_region
def add_in_region(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return add(x, y)


def add_in_branch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, add, torch.sub, (x, y))  # type: ignore[no-any-return]


def add_in_loop(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    count = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, add(x, y)), (count, x))[1]  # type: ignore[no-any-return]


SUBGRAPHS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "parts between what no graph can capture": (add, {"mode": "reduce-overhead"}),
    "a branch": (add_in_branch, {}),
    "a branch in such a part": (add_in_branch, {"mode": "reduce-overhead"}),
    "a loop": (add_in_loop, {}),
    "a region compiled once": (lambda x, y: add_in_region(x, y) * add_in_region(y, x), {}),
    "combined kernels": (lambda x, y: (x.sin(), add(x, y), y.cos()), {"options": {"combo_kernels": True}}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SUBGRAPHS)
def test_the_limit_holds_in_subgraphs(name: str) -> None:
    function, options = SUBGRAPHS[name]
    x, y = torch.rand(50), torch.rand(50)
    with config.patch(max_kernel_io_buffers=3):
        assert max(buffers(generated(function, x.to("mtia"), y.to("mtia"), **options)[1])) == 3
    with (
        config.patch(max_kernel_io_buffers=2),
        pytest.raises(RuntimeError, match=r"add_kernel.* 3 buffers.*allows 2") as raised,
    ):
        generated(function, x.to("mtia"), y.to("mtia"), **options)
    # Inductor wraps every error of a graph that it cannot cache, such as one with a loop.
    assert isinstance(getattr(raised.value, "inner_exception", raised.value), TooManyBuffersError)


@pytest.mark.parametrize("limit", [2, 3])
def test_kernels_in_subgraphs_are_divided(limit: int) -> None:
    def branch(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.cond(tensors[0].sum() > 0, sum_of_eight, lambda *tensors: tensors[0] * 2, tensors)  # type: ignore[no-any-return]

    def loop(*tensors: torch.Tensor) -> torch.Tensor:
        count = torch.zeros((), dtype=torch.int64, device=tensors[0].device)
        body = lambda i, x: (i + 1, sum_of_eight(x, *tensors[1:]))  # noqa: E731
        return while_loop(lambda i, _: i < 2, body, (count, tensors[0]))[1]  # type: ignore[no-any-return]

    operands = [torch.rand(20) for _ in range(8)]
    for function in (branch, loop):
        with config.patch(max_kernel_io_buffers=limit):
            result, code = generated(function, *(operand.to("mtia") for operand in operands))
        torch.testing.assert_close(pytree.tree_map(torch.Tensor.cpu, result), function(*operands))
        assert max(buffers(code)) <= limit


def test_a_template_takes_no_epilogue_beyond_the_limit() -> None:
    a, b, c, d = (torch.randn(64, 64).to("mtia") for _ in range(4))
    options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "benchmark_epilogue_fusion": False}
    for limit, most in ((None, 5), (5, 5), (4, 4), (3, 3)):
        with config.patch(max_kernel_io_buffers=limit), inductor_config.patch(autotune_fallback_to_aten=True):
            result, code = generated(lambda a, b, c, d: F.relu(a @ b) * c + d, a, b, c, d, options=options)
        torch.testing.assert_close(result, F.relu(a @ b) * c + d, rtol=1e-4, atol=1e-4)
        assert any("triton_tem_" in name for name in kernels(code))
        assert max(buffers(code)) <= most


def test_fusion_stops_at_inductors_own_limit() -> None:
    operands = [torch.randn(30, 40).to("mtia") for _ in range(6)]
    for limit, expected in ((None, [11]), (8, [7, 5]), (4, [3]), (3, [3])):
        _, code = generated(sums, *operands, options={"max_fusion_unique_io_buffers": limit})
        assert buffers(code) == expected


def test_combination_stops_at_inductors_own_limit() -> None:
    operands = [torch.randn(10 + i).to("mtia") for i in range(8)]
    for limit, count in ((None, 1), (4, 4), (1, 8)):
        options = {"combo_kernels": True} | ({} if limit is None else {"combo_kernel_max_num_args": limit})
        results, code = generated(lambda *tensors: [x.sin() for x in tensors], *operands, options=options)
        assert len(kernels(code)) <= count
        assert code.count(".run(") == count
        torch.testing.assert_close(results, [x.sin() for x in operands])
