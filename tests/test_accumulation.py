"""Sums and products of many 16-bit numbers are accumulated in float32 and rounded once. Many of PyTorch's CPU kernels
accumulate in 16 bits, so float64 judges here and not the CPU device.
"""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db

from tests.capturing import capture
from torch_mtia.backend import device_module
from torch_mtia.conformance.suites.accumulation import CASES, DTYPES, MANY, Case, faults, indices, normal, positive, put

EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=["bfloat16", "float16"])
NAMES = {case.name: case for case in CASES}


@EACH_DTYPE
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_result_is_rounded_once(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    assert not faults(case, dtype, case.results(device, dtype, dtype))


@EACH_DTYPE
@pytest.mark.parametrize("name", ["embedding", "lookup", "index_put", "prod", "fold", "replication_pad2d"])
def test_compiled_code_rounds_once(name: str, dtype: torch.dtype, device: torch.device) -> None:
    case = NAMES[name]
    torch._dynamo.reset()
    compiled = Case(name, torch.compile(case.function), case.operands)
    assert not faults(case, dtype, compiled.results(device, dtype, dtype))


@EACH_DTYPE
def test_compiled_layer_norm_rounds_once_more(dtype: torch.dtype, device: torch.device) -> None:
    """PyTorch hands the mean and rstd to a compiled backward in 16 bits on mtia, as on the CPU."""
    case = NAMES["layer_norm"]
    torch._dynamo.reset()
    actual = Case(case.name, torch.compile(case.function), case.operands).results(device, dtype, dtype)
    for ours, exact in zip(actual, case.results("cpu", torch.float64, dtype), strict=True):
        assert (ours.cpu().double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("sample", range(30))
def test_samples_of_grid_sample(sample: int, device: torch.device) -> None:
    """PyTorch's CPU kernel computes coordinates in 16 bits, so another cell is read near its border."""
    (info,) = (info for info in op_db if info.name == "nn.functional.grid_sample")
    given = next(islice(info.sample_inputs("cpu", torch.bfloat16), sample, None))

    def function(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return info.op(x, grid, *given.args[1:], **given.kwargs)  # type: ignore[no-any-return]

    case = Case(info.name, function, (given.input.float(), given.args[0].float()))
    for ours, exact in zip(
        case.results(device, torch.bfloat16, torch.bfloat16),
        case.results("cpu", torch.float64, torch.bfloat16),
        strict=True,
    ):
        assert (ours.cpu().double() - exact).abs().max() <= torch.finfo(torch.bfloat16).eps * exact.abs().max()


@pytest.mark.in_tree("graphs are torch.mtia's")
def test_a_graph_accumulates_anew_in_each_replay(device: torch.device) -> None:
    rows = normal(MANY, 64).bfloat16().to(device)
    weight = positive(64).bfloat16().to(device).requires_grad_()
    bias = torch.zeros_like(weight, requires_grad=True)
    table = normal(4, 64).bfloat16().to(device).requires_grad_()
    index = indices(4, MANY).to(device)

    def train() -> tuple[torch.Tensor, ...]:
        output = F.layer_norm(rows + F.embedding(index, table), (64,), weight, bias)
        image = F.pad(bias.view(1, 1, 8, 8), (32,) * 4, "replicate")
        return torch.autograd.grad(output.sum() + image.sum(), [weight, bias, table])

    train()
    graph, results = capture(train)
    for seed in (1, 2):
        rows.copy_(normal(MANY, 64, seed=seed))
        graph.replay()
        for replayed, eager in zip(results, train(), strict=True):
            torch.testing.assert_close(replayed, eager, rtol=0, atol=0)
        assert results[1].sum().item() == pytest.approx(MANY * 64 + 72 * 72, rel=2**-8)


@EACH_DTYPE
def test_threads_do_not_change_the_bits(dtype: torch.dtype, device: torch.device) -> None:
    names = [
        "embedding",
        "embedding, wide",
        "lookup of columns",
        "index_put",
        "layer_norm",
        "index_add",
        "bags, weights",
    ]

    def results() -> list[torch.Tensor]:
        return [each.cpu() for name in names for each in NAMES[name].results(device, dtype, dtype)]

    threads = torch.get_num_threads()
    expected = results()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            for actual, first in zip(results(), expected, strict=True):
                torch.testing.assert_close(actual, first, rtol=0, atol=0)
    finally:
        torch.set_num_threads(threads)


def test_operands_of_two_dtypes_are_refused(device: torch.device) -> None:
    x = torch.zeros(4, dtype=torch.bfloat16, device=device)
    index = torch.zeros(3, dtype=torch.long, device=device)
    with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
        x.index_put_((index,), torch.ones(3, dtype=torch.float16, device=device), accumulate=True)
    with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
        x.index_add_(0, index, torch.ones(3, dtype=torch.float16, device=device))


@EACH_DTYPE
def test_masks_beside_indices(dtype: torch.dtype, device: torch.device) -> None:
    """How many elements a mask has is not known when the operator is first asked about the dtype."""
    mask, label = torch.tensor([True, False, True]), torch.tensor([1, 0, 3])

    def gradients(device: torch.device | str) -> list[torch.Tensor]:
        x = torch.ones(3, 4, device=device, dtype=dtype, requires_grad=True)
        m, i = mask.to(device), label.to(device)
        lookups = (x[m, i[m]], x[m, i[m].int()], x[m])
        return [torch.autograd.grad(lookup.sum(), x)[0] for lookup in lookups]

    for actual, expected in zip(gradients(device), gradients("cpu"), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


def test_values_and_indices_that_do_not_fit_are_refused_as_on_the_cpu(device: torch.device) -> None:
    def refusals(device: torch.device | str) -> list[Exception]:
        x = torch.zeros(4, 4, dtype=torch.bfloat16, device=device)
        two, three = torch.tensor([0, 1], device=device), torch.tensor([0, 1, 2], device=device)
        found = []
        for index, count in (((two, three), 2), ((two, two), 3)):
            with pytest.raises((RuntimeError, IndexError)) as raised:
                x.index_put_(index, x[0, :count].clone(), accumulate=True)
            found.append(raised.value)
        return found

    for actual, expected in zip(refusals(device), refusals("cpu"), strict=True):
        assert (type(actual), str(actual)) == (type(expected), str(expected))


@pytest.mark.parametrize("scatter", ["index_put", "put", "index_add"])
def test_an_index_out_of_range_is_an_error(scatter: str, device: torch.device) -> None:
    x = torch.zeros(4, dtype=torch.bfloat16, device=device)
    index = torch.tensor([1, 4], device=device)
    values = torch.ones(2, dtype=torch.bfloat16, device=device)
    scatters = {
        "index_put": lambda: put(x, index, values),
        "put": lambda: x.put_(index, values, accumulate=True),
        "index_add": lambda: x.index_add_(0, index, values),
    }

    def run() -> None:
        scatters[scatter]()
        device_module().synchronize()

    with pytest.raises(IndexError, match=r"out of (bounds|range)"):
        run()
    assert (x + 1).sum().item() in (4, 5)  # the stream is usable


def test_rows_without_a_summand_stay(device: torch.device) -> None:
    x = torch.tensor([[-0.0, torch.nan], [torch.inf, 1], [2, 3]], dtype=torch.float16, device=device)
    x[0].view(torch.int16)[1] = 0x7D01  # a NaN with bits of its own
    before = x.view(torch.int16).cpu()
    index = torch.tensor([2, 2, -1], device=device)
    x.index_put_((index,), torch.ones(3, 2, dtype=torch.float16, device=device), accumulate=True)
    assert torch.equal(x.view(torch.int16).cpu()[:2], before[:2])
    assert x[2].tolist() == [5, 6]


def test_masks_empty_indices_and_numbers(device: torch.device) -> None:
    x = torch.ones(4, 3, dtype=torch.bfloat16)
    mask = torch.tensor([True, False, True, False])
    number = torch.tensor(2.0, dtype=torch.bfloat16)
    empty = torch.zeros(0, dtype=torch.long)

    def scattered(device: torch.device | str) -> list[torch.Tensor]:
        y = x.to(device)
        return [
            y.index_put((mask.to(device),), number.to(device), accumulate=True),
            y.index_put((mask.to(device),), number, accumulate=True),
            y.index_put((torch.tensor(1, device=device),), number.to(device), accumulate=True),
            y.index_put((empty.to(device),), number.to(device), accumulate=True),
            y.index_put((torch.tensor([[0], [3]], device=device), torch.tensor([0, 2], device=device)),
                        number.to(device), accumulate=True),
            y.index_add(0, empty.to(device), x[:0].to(device)),
            F.embedding(empty.to(device), y),
        ]  # fmt: skip

    for actual, expected in zip(scattered(device), scattered("cpu"), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


@EACH_DTYPE
def test_parameters_of_a_layer_norm_may_be_float32(dtype: torch.dtype, device: torch.device) -> None:
    rows, weight, bias = (normal(MANY, 64) + 4).to(dtype), positive(64), normal(64)

    def gradients(device: torch.device | str, wide: torch.dtype | None) -> tuple[torch.Tensor, ...]:
        x, w, b = (each.to(device, wide).requires_grad_() for each in (rows, weight, bias))
        return torch.autograd.grad(
            F.layer_norm(x, (64,), w, b), [x, w, b], positive(MANY, 64).to(dtype).to(device, wide)
        )

    actual, exact = gradients(device, None), gradients("cpu", torch.float64)
    assert [each.dtype for each in actual] == [dtype, torch.float32, torch.float32]
    for ours, expected in zip(actual, exact, strict=True):
        error = (ours.cpu().double() - expected).abs().max() / expected.abs().max()
        assert error < (torch.finfo(dtype).eps if ours.dtype == dtype else 1e-4)
