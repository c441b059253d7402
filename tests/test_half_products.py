"""Products of 16-bit numbers through float32: Note [Products of 16 bits] in csrc/aten/MatMul.cpp.

Whether a processor has instructions for a dtype or not, a result is within one rounding of sums of float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional as F

from tests.capturing import capture
from torch_mtia.backend import device_type

if TYPE_CHECKING:
    from tests.conftest import RunScript

Tensor = torch.Tensor

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
# Rows, columns, depth.
SIZES = [
    (64, 48, 80),
    (1, 300, 500),
    (300, 1, 500),
    (8, 512, 512),
    (33, 65, 129),
    (3, 5, 7),
    (128, 256, 0),
    (0, 256, 512),
]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT.contiguous().mT,
    "gaps": lambda x: torch.cat([x, x], -1)[..., : x.size(-1)],
    "every second number": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
}


def numbers(*sizes: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(sizes).to(dtype)


def close(result: Tensor, exact: Tensor) -> None:
    """`exact`, of double precision, rounded once; sums of float32 may end beyond the middle between two numbers."""
    assert result.shape == exact.shape
    torch.testing.assert_close(result.cpu().double(), exact, rtol=0.51 * torch.finfo(result.dtype).eps, atol=1e-4)


@DTYPES
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, columns, depth = sizes
    left, right = numbers(rows, depth, dtype=dtype), numbers(depth, columns, dtype=dtype)
    bias = numbers(columns, dtype=dtype)
    a, b, c = (x.to(device_type()) for x in (left, right, bias))
    exact = left.double() @ right.double()
    close(a @ b, exact)
    close(torch.addmm(c, a, b), exact + bias.double())
    close(torch.addmm(c, a, b, beta=0.5, alpha=-2), 0.5 * bias.double() - 2 * exact)
    close(torch.addmm(c * torch.inf, a, b, beta=0), exact)
    close(F.linear(a, b.t().contiguous(), c), exact + bias.double())


@DTYPES
@pytest.mark.parametrize(("one", "other"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_layouts(one: str, other: str, dtype: torch.dtype) -> None:
    left, right = numbers(3, 40, 56, dtype=dtype), numbers(3, 56, 72, dtype=dtype)
    a, b = LAYOUTS[one](left.to(device_type())), LAYOUTS[other](right.to(device_type()))
    exact = left.double() @ right.double()
    close(a @ b, exact)
    close(a[1] @ b[2], left[1].double() @ right[2].double())
    out = torch.zeros(3, 72, 40, dtype=dtype, device=device_type()).mT
    close(torch.bmm(a, b, out=out), exact)
    close(torch.baddbmm(out, a, b, beta=2, alpha=0.5), 2 * out.cpu().double() + 0.5 * exact)
    before = out.cpu().double()
    close(out.baddbmm_(a, b), before + exact)


@DTYPES
def test_what_is_added_may_be_the_result_or_part_of_it(dtype: torch.dtype) -> None:
    left, right, start = (numbers(64, 64, dtype=dtype) for _ in range(3))
    a, b, c = (x.to(device_type()) for x in (left, right, start))
    exact = left.double() @ right.double()
    close(torch.addmm(c[3], a, b, out=c), start[3].double() + exact)
    close(torch.mm(a, a.t(), out=torch.empty(0, dtype=dtype, device=device_type())), left.double() @ left.double().t())
    a_before = a.clone()
    close(a.addmm_(a, b), a_before.cpu().double() + exact)


@DTYPES
def test_values_that_are_no_numbers(dtype: torch.dtype) -> None:
    left, right = numbers(64, 64, dtype=dtype), numbers(64, 64, dtype=dtype)
    left[1, 2], left[5, 5], right[7, 7] = torch.nan, torch.inf, -torch.inf
    result = left.to(device_type()) @ right.to(device_type())
    expected = (left.float() @ right.float()).to(dtype)
    assert torch.equal(result.cpu().isnan(), expected.isnan())
    assert torch.equal(result.cpu().isinf(), expected.isinf())


def test_sums_beyond_float16_are_infinite_and_within_it_exact() -> None:
    ones = torch.ones(40, 4096, dtype=torch.float16, device=device_type())
    assert (ones @ ones.t() == 4096).all()
    assert (ones @ (ones * 16).t()).isinf().all()
    assert (ones @ (ones * 15.984375).t() == 65472).all()


@DTYPES
def test_gradients_graphs_and_compiled_code(dtype: torch.dtype) -> None:
    left, right = numbers(40, 56, dtype=dtype), numbers(56, 72, dtype=dtype)
    a, b = (x.to(device_type()).requires_grad_() for x in (left, right))
    (a @ b).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    close(a.grad, right.double().sum(1).expand(40, 56))
    close(b.grad, left.double().sum(0)[:, None].expand(56, 72))
    a, b = a.detach(), b.detach()
    close(torch.compile(lambda a, b: torch.relu(a @ b))(a, b), (left.double() @ right.double()).relu())
    graph, result = capture(lambda: a @ b)
    a.mul_(2)
    graph.replay()
    close(result, 2 * (left.double() @ right.double()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_of_the_cpu_is_not_the_devices(dtype: torch.dtype) -> None:
    left, right = numbers(64, 64, dtype=torch.float16), numbers(64, 64, dtype=torch.float16)
    a, b = left.to(device_type()), right.to(device_type())
    graph, replayed = capture(lambda: a @ b)
    out = torch.zeros(64, 64, device=device_type())
    with torch.autocast("cpu", dtype=dtype):
        close(a @ b, left.double() @ right.double())
        graph.replay()
        torch.addbmm(out, a[None].float(), b[None].float(), out=out)
    close(replayed, left.double() @ right.double())
    torch.testing.assert_close(out.cpu(), left.float() @ right.float())


@pytest.mark.parametrize("factor", [True, False, 2 + 0j, 3], ids=str)
def test_factors_of_other_types(factor: complex) -> None:
    a = torch.ones(64, 64, dtype=torch.float16, device=device_type())
    assert (torch.addmm(a, a, a, beta=factor) == 64 + factor).all()
    assert (torch.addmm(a, a, a, alpha=factor) == 64 * factor + 1).all()
    assert (torch.baddbmm(a[None], a[None], a[None], alpha=factor) == 64 * factor + 1).all()


@pytest.mark.parametrize("factor", [1e300, 1j], ids=str)
def test_factors_that_float32_cannot_hold_raise_at_the_call(factor: complex) -> None:
    a = torch.ones(64, 64, dtype=torch.float16, device=device_type())
    with pytest.raises(RuntimeError, match="cannot be converted to type float"):
        torch.addmm(a, a, a, beta=factor)
    with pytest.raises(RuntimeError, match="cannot be converted to type float"):
        torch.addmm(a, a, a, alpha=factor)


@DTYPES
def test_large_operands_are_converted_in_parts(dtype: torch.dtype) -> None:
    left, right = numbers(16, 1200, dtype=dtype), numbers(1200, 1700, dtype=dtype)
    a, b = left.to(device_type()), right.to(device_type())
    exact = left.double() @ right.double()
    close(a @ b, exact)
    close(torch.addmm(b[:1], a, b, beta=3), exact + 3 * right[:1].double())
    close(b.t() @ a.t(), exact.t())
    close(torch.bmm(a.expand(3, 16, 1200), b.expand(3, 1200, 1700)), exact.expand(3, 16, 1700))
    batch = numbers(9, 70, 300, dtype=dtype)
    close(batch.to(device_type()) @ batch.mT.to(device_type()), batch.double() @ batch.double().mT)
    many = numbers(70, 160, 96, dtype=dtype)
    close(many.to(device_type()) @ many.mT.to(device_type()), many.double() @ many.double().mT)


def test_profilers_see_the_product_once() -> None:
    a = torch.ones(64, 64, dtype=torch.float16, device=device_type())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        a @ a
        torch.accelerator.synchronize()
    assert [event.name for event in profile.events() if event.name in ("aten::mm", "aten::to")] == ["aten::mm"]


def test_without_onednn_results_are_those_of_the_cpu() -> None:
    left, right = numbers(64, 80, dtype=torch.float16), numbers(80, 48, dtype=torch.float16)
    with torch.backends.mkldnn.flags(enabled=False):
        result = left.to(device_type()) @ right.to(device_type())
        assert torch.equal(result.cpu(), left @ right)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this processor")
def test_where_onednn_has_instructions_results_are_those_of_the_cpu() -> None:
    left, right = numbers(64, 80, dtype=torch.bfloat16), numbers(80, 48, dtype=torch.bfloat16)
    assert torch.equal((left.to(device_type()) @ right.to(device_type())).cpu(), left @ right)


def test_on_a_processor_without_avx512(run_script: RunScript) -> None:
    script = """
        import torch
        left, right = torch.randn(2, 64, 80).bfloat16(), torch.randn(2, 80, 48).bfloat16()
        a, b = left.to("mtia"), right.to("mtia")
        expected = (left.float() @ right.float()).bfloat16()
        print(torch.ops.mkldnn._is_mkldnn_bf16_supported(), torch.equal((a @ b).cpu(), expected))
    """
    assert run_script(script, ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2").output() == "False True\n"
