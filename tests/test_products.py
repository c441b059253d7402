"""Products of fp32, which one of two libraries computes: Note [Products of fp32] in csrc/aten/MatMul.cpp."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional as F

from torch_mtia.backend import device_module, device_type

if TYPE_CHECKING:
    from tests.conftest import RunScript

Tensor = torch.Tensor

# Rows, columns, depth: what oneDNN computes where it is the quicker one, and what is too small or too narrow for it.
LARGE = [(128, 256, 160), (8, 1024, 600), (2000, 32, 129), (1024, 1024, 8)]
# One row, which a loop of the device's own multiplies there.
ROW = [(1, 256, 64), (1, 1, 1), (1, 7, 31), (1, 33, 129), (1, 300, 500), (1, 5, 16), (1, 1, 47), (1, 700, 731)]
SMALL = [(7, 4096, 512), (2048, 31, 300), (1500, 1500, 7), (64, 64, 64), (1, 8, 0), (0, 256, 512), (128, 256, 0)]

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.t().contiguous().t(),
    "rows with gaps": lambda x: torch.cat([x, x], 1)[:, : x.size(1)],
    "columns with gaps": lambda x: torch.cat([x.t(), x.t()], 1)[:, : x.size(0)].t(),
    "every second number": lambda x: torch.stack([x, x], -1).flatten(1)[:, ::2],
    "negated": lambda x: torch._neg_view(x.neg()),
}


def close(result: Tensor, left: Tensor, right: Tensor, bias: Tensor | None = None) -> None:
    """To what fp32 can be wrong by."""
    exact = left.double() @ right.double()
    error = 1e-6 * (left.double().abs() @ right.double().abs()) + 1e-6
    if bias is not None:
        exact, error = exact + bias.double(), error + 1e-6 * bias.double().abs()
    assert result.shape == exact.shape
    assert ((result.cpu().double() - exact).abs() <= error).all()


@pytest.mark.parametrize("sizes", [*LARGE, *ROW, *SMALL], ids=str)
def test_sizes(sizes: tuple[int, int, int]) -> None:
    rows, columns, depth = sizes
    left, right, bias = torch.randn(rows, depth), torch.randn(depth, columns), torch.randn(columns)
    a, b, c = (x.to(device_type()) for x in (left, right, bias))
    close(a @ b, left, right)
    close(torch.addmm(c, a, b), left, right, bias)
    close(F.linear(a, b.t().contiguous(), c), left, right, bias)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize(("one", "other"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_layouts(one: str, other: str, rows: int) -> None:
    left, right, bias = torch.randn(rows, 160), torch.randn(160, 256), torch.randn(256)
    a, b = LAYOUTS[one](left.to(device_type())), LAYOUTS[other](right.to(device_type()))
    close(a @ b, left, right)
    close(torch.addmm(bias.to(device_type()), a, b), left, right, bias)


def test_operands_that_repeat() -> None:
    left, right = torch.randn(1, 160).expand(128, 160), torch.randn(160, 1).expand(160, 256)
    close(left.to(device_type())[:1].expand(128, 160) @ right.to(device_type())[:, :1].expand(160, 256), left, right)
    x = torch.randn(160, 160)
    close(x.to(device_type()) @ x.to(device_type()), x, x)
    y = x.to(device_type())
    close(y @ y.t(), x, x.t())


@pytest.mark.parametrize("shape", [(256,), (1, 256), (1,), (128, 1), (128, 256), ()], ids=str)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (0.5, 1), (1, -2)])
def test_what_is_added(shape: tuple[int, ...], beta: float, alpha: float) -> None:
    left, right, bias = torch.randn(128, 160), torch.randn(160, 256), torch.randn(shape)
    a, b, c = (x.to(device_type()) for x in (left, right, bias))
    close(torch.addmm(c, a, b, beta=beta, alpha=alpha), alpha * left, right, beta * bias)
    close(torch.addmm(c.expand(128, 256), a, b, beta=beta, alpha=alpha), alpha * left, right, beta * bias)


def test_what_is_added_may_be_a_part_of_something() -> None:
    left, right, bias = torch.randn(128, 160), torch.randn(160, 256), torch.randn(512)
    a, b, c = (x.to(device_type()) for x in (left, right, bias))
    close(torch.addmm(c[::2], a, b), left, right, bias[::2])
    close(torch.addmm(c[3:259], a, b), left, right, bias[3:259])
    close(c[:256].expand(128, 256).clone().addmm_(a, b), left, right, bias[:256])


def test_what_is_added_may_be_a_row_of_the_result() -> None:
    left, right, bias = torch.randn(512, 160), torch.randn(160, 256), torch.randn(256)
    a, b, out = (x.to(device_type()) for x in (left, right, bias.repeat(512, 1)))
    for row in (0, 300, 511):
        out.copy_(bias.to(device_type()))
        close(torch.addmm(out[row], a, b, out=out), left, right, bias)


@pytest.mark.parametrize("layout", ["rows", "columns", "rows with gaps"])
def test_results_go_where_they_belong(layout: str) -> None:
    left, right, bias = torch.randn(128, 160), torch.randn(160, 256), torch.randn(256)
    a, b, c = (x.to(device_type()) for x in (left, right, bias))
    around = torch.full((128, 512), 7.0, device=device_type())
    out = {
        "rows": around[:, :256].clone(),
        "columns": around[:, :256].t().clone().t(),
        "rows with gaps": around[:, :256],
    }
    given, strides = out[layout], out[layout].stride()
    assert torch.mm(a, b, out=given) is given
    close(given, left, right)
    torch.addmm(c, a, b, out=given)
    close(given, left, right, bias)
    assert given.stride() == strides
    assert (around[:, 256:] == 7).all()


def test_operands_of_the_size_of_the_result() -> None:
    """oneDNN is offered the memory of the result, and copies operands of this size meanwhile."""
    left, right, bias = torch.randn(256, 256), torch.randn(256, 256), torch.randn(256)
    for one, other in itertools.product(LAYOUTS, LAYOUTS):
        a, b = LAYOUTS[one](left.to(device_type())), LAYOUTS[other](right.to(device_type()))
        close(torch.addmm(bias.to(device_type()), a, b), left, right, bias)


def test_values_that_are_no_numbers() -> None:
    left, right = torch.randn(128, 160), torch.randn(160, 256)
    left[3, 5], left[4, 6], right[7, 9] = float("nan"), float("inf"), float("-inf")
    result, expected = (left.to(device_type()) @ right.to(device_type())).cpu(), left @ right
    torch.testing.assert_close(result, expected, equal_nan=True, rtol=1e-4, atol=1e-4)
    result = torch.full((128, 256), float("nan"), device=device_type())
    close(torch.addmm(result, torch.ones(128, 160, device=device_type()), right.clamp(-3, 3).to(device_type()), beta=0),
          torch.ones(128, 160), right.clamp(-3, 3))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64])
def test_other_dtypes_are_as_on_the_cpu(dtype: torch.dtype) -> None:
    left, right = torch.randn(128, 160).mul(9).to(dtype), torch.randn(160, 256).mul(9).to(dtype)
    assert torch.equal((left.to(device_type()) @ right.to(device_type())).cpu(), left @ right)


SUMMANDS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda x: x[0],
    "row of a matrix": lambda x: x[1:2],
    "row, expanded": lambda x: x[0].expand(x.shape),
    "row, negated": lambda x: torch._neg_view(x[0].neg()),
    "row with gaps": lambda x: torch.stack([x[0], x[0]], -1).flatten()[::2],
    "number": lambda x: x[0, 0],
    "column": lambda x: x[:, :1],
    "matrix": lambda x: x,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("summand", SUMMANDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("sizes", [(3, 5, 4), (5, 256, 64), (1, 64, 20), (4, 3, 0)], ids=str)
def test_sums_of_few_numbers(sizes: tuple[int, int, int], dtype: torch.dtype, summand: str) -> None:
    """Of small integers, so that they are exact."""
    rows, columns, depth = sizes
    left, right, matrix = (
        torch.randint(-1, 2, shape).to(dtype) for shape in ((rows, depth), (depth, columns), (max(rows, 2), columns))
    )

    def summand_of(x: Tensor) -> Tensor:
        chosen = SUMMANDS[summand](x)
        return chosen[:rows] if chosen.dim() == 2 and chosen.size(0) != 1 else chosen

    bias, around = summand_of(matrix), torch.full((rows, columns + 3), 7, dtype=dtype)
    a, b, ours = (x.to(device_type()) for x in (left, right, around))
    c = summand_of(matrix.to(device_type()))
    for beta, alpha in ((1, 1), (0, 1), (2, -1)):
        expected = torch.addmm(bias, left, right, beta=beta, alpha=alpha)
        assert torch.equal(torch.addmm(c, a, b, beta=beta, alpha=alpha).cpu(), expected)
        around[:, :columns] = expected
        torch.addmm(c, a, b, beta=beta, alpha=alpha, out=ours[:, :columns])
        assert torch.equal(ours.cpu(), around)


def test_a_row_is_added_to_a_result_that_it_is_part_of() -> None:
    left, right, matrix = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5)
    a, b, out = (x.to(device_type()) for x in (left, right, matrix))
    torch.addmm(out[1], a, b, out=out)
    close(out, left, right, matrix[1])


def test_a_row_times_a_matrix_on_a_busy_stream_and_captured() -> None:
    left, right, bias = torch.randn(1, 100), torch.randn(300, 100), torch.randn(300)
    a, b, c = (x.to(device_type()) for x in (left, right, bias))
    large = torch.randn(1024, 1024, device=device_type())
    large @ large
    close(F.linear(a, b, c), left, right.t(), bias)
    close(a @ b.t(), left, right.t())
    out = torch.full((1, 600), 7.0, device=device_type())
    torch.mm(a, b.t(), out=out[:, ::2])
    close(out[:, ::2], left, right.t())
    assert (out[:, 1::2] == 7).all()
    graph = device_module().MTIAGraph()
    with device_module().graph(graph):
        result = F.linear(a, b, c)
    for factor in (1, -2):
        a.copy_(left * factor)
        graph.replay()
        close(result, left * factor, right.t(), bias)


@pytest.mark.parametrize("sizes", [*LARGE, *ROW], ids=str)
def test_without_onednn(sizes: tuple[int, int, int]) -> None:
    """Not compared by bits: MKL's depend on its number of threads and on the alignment of operands."""
    rows, columns, depth = sizes
    left, right, bias = torch.randn(rows, depth), torch.randn(depth, columns), torch.randn(columns)
    a, b, c = (x.to(device_type()) for x in (left, right, bias))
    with torch.backends.mkldnn.flags(enabled=False):
        result, with_bias = a @ b, torch.addmm(c, a, b)
    close(result, left, right)
    close(with_bias, left, right, bias)


def test_without_onednn_nothing_runs_there(run_script: RunScript) -> None:
    """Decided by the call, whenever the work is done."""
    script = f"""
        import torch
        large = torch.randn(1024, 1024, device="{device_type()}")
        with torch.backends.mkldnn.flags(enabled=False):
            for rows, columns, depth in {[*LARGE, *ROW]}:
                a, b = torch.randn(rows, depth).to(large.device), torch.randn(depth, columns).to(large.device)
                large.sin_()  # the products wait for it
                a @ b, torch.addmm(b[0], a, b), torch.nn.functional.linear(a, b.t().contiguous())
        torch.accelerator.synchronize()
    """
    printed = run_script(script, ONEDNN_VERBOSE="1").output()
    assert "matmul" not in printed
    assert "inner_product" not in printed


def test_gradients() -> None:
    left, right, bias = torch.randn(128, 160), torch.randn(160, 256), torch.randn(256)
    a, b, c = (x.to(device_type()).requires_grad_() for x in (left, right, bias))
    gradient = torch.randn(128, 256)
    torch.addmm(c, a, b).backward(gradient.to(device_type()))
    assert a.grad is not None
    assert b.grad is not None
    assert c.grad is not None
    close(a.grad, gradient, right.t())
    close(b.grad, left.t(), gradient)
    torch.testing.assert_close(c.grad.cpu(), gradient.sum(0))


def test_captured_and_compiled() -> None:
    left, right, bias = torch.randn(128, 160), torch.randn(160, 256), torch.randn(256)
    a, b, c = (x.to(device_type()) for x in (left, right, bias))
    graph = device_module().MTIAGraph()
    with device_module().graph(graph):
        result = torch.addmm(c, a, b)
    for factor in (1, 3):
        a.copy_(left * factor)
        graph.replay()
        close(result, left * factor, right, bias)
    compiled = torch.compile(lambda a, b, c: torch.addmm(c, a, b) * 2)
    close(compiled(a, b, c) / 2, left * 3, right, bias)


def test_a_small_product_starts_no_threads() -> None:
    """torch.set_num_threads gives MKL a number of its own, which goes before OpenMP's for the launching thread."""
    a, b = torch.randn(64, 10).to(device_type()), torch.randn(10, 512).to(device_type())
    device_module().synchronize()
    before = torch.get_num_threads()
    counts: list[int] = []

    def multiply() -> None:
        for _ in range(2):
            counts.append(len(os.listdir("/proc/self/task")))
            _ = a @ b

    torch.set_num_threads(2)
    try:
        thread = threading.Thread(target=multiply)
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(before)
    assert len(set(counts)) == 1


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("layout", ["plain", "gap", "transposed"])
def test_a_result_goes_into_a_lazy_conjugate(layout: str, dtype: torch.dtype) -> None:
    left, right, bias = (torch.randn(size, dtype=dtype) for size in ((8, 7), (7, 5), (5,)))

    def results(device: str) -> list[torch.Tensor]:
        a, b, c = (tensor.to(device) for tensor in (left, right, bias))
        storage = {"plain": (8, 5), "gap": (8, 7), "transposed": (5, 8)}[layout]

        def out() -> torch.Tensor:
            whole = torch.ones(storage, dtype=dtype, device=device)
            return {"plain": whole, "gap": whole[:, 1:6], "transposed": whole.t()}[layout].conj()

        single = c.expand(8, 5).contiguous()
        return [
            torch.mm(a, b, out=out()),
            torch.addmm(c, a, b, out=out()),
            torch.addmm(single, a, b, out=out()),
            out().addmm_(a, b),
            out().addmm_(a, b, beta=0),
            torch.mv(b, c, out=out()[:7, 0]),
        ]

    for ours, expected in zip(results("mtia"), results("cpu"), strict=True):
        assert ours.is_conj() == expected.is_conj()
        torch.testing.assert_close(ours.cpu(), expected)
