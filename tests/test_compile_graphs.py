"""torch.compile(mode="reduce-overhead") records graphs and replays them, with the results of eager calls."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from torch_mtia.inductor.graphs import forget_recordings

Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    gc.collect()


def recorded() -> int:
    return counters["inductor"]["mtia_graphs_recorded"]


def skipped() -> int:
    return counters["inductor"]["cudagraph_skips"]


def compiled(function: Function, **options: bool) -> Function:
    return torch.compile(function, mode="reduce-overhead", **options)  # type: ignore[call-overload, no-any-return]


def test_calls_replay_one_recording() -> None:
    function = compiled(lambda x, y: torch.softmax(x @ y, -1).sum(0))
    for seed in range(5):
        torch.manual_seed(seed)
        x, y = torch.randn(8, 6), torch.randn(6, 4)
        result = function(x.to("mtia"), y.to("mtia"))
        torch.testing.assert_close(result.cpu(), torch.softmax(x @ y, -1).sum(0))
    assert (recorded(), skipped()) == (1, 0)


def test_a_result_in_use_is_not_overwritten() -> None:
    function = compiled(lambda x: x * 2 + 1)
    results = [function(torch.full((5,), float(value), device="mtia")) for value in range(6)]
    views = [result[1:3] for result in results]
    assert [result.tolist() for result in results] == [[2.0 * value + 1] * 5 for value in range(6)]
    assert [view.tolist() for view in views] == [[2.0 * value + 1] * 2 for value in range(6)]
    assert recorded() == 1


def test_a_result_that_is_put_in_again_is_read_before_it_is_overwritten() -> None:
    function = compiled(lambda x: x * 2 + 1)
    x = torch.ones(4, device="mtia")
    for _ in range(6):
        x = function(x)
    assert x.tolist() == [127.0] * 4


def test_each_shape_has_a_recording() -> None:
    function = compiled(lambda x: (x * 2).cos(), dynamic=True)
    for _ in range(3):
        for size in (4, 7, 9):
            x = torch.rand(size)
            torch.testing.assert_close(function(x.to("mtia")).cpu(), (x * 2).cos())
    assert recorded() == 3


def test_several_functions_alternate() -> None:
    double, negate = compiled(lambda x: x * 2), compiled(lambda x: -x + 1)
    for value in range(5):
        x = torch.full((6,), float(value), device="mtia")
        assert negate(double(x)).tolist() == [1 - 2.0 * value] * 6
    assert recorded() == 2


def train(wrap: Callable[[nn.Module], Function], device: str, steps: int = 6) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = wrap(model)
    losses = []
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(12, 8, generator=generator).to(device)
        y = torch.randint(4, (12,), generator=generator).to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_network_trains() -> None:
    expected = train(lambda model: model, "cpu")
    assert train(lambda model: compiled(model), "mtia") == pytest.approx(expected, rel=1e-4)
    # The forward, and the backward, once more if the batch that the forward saved for it turns out to move.
    assert 2 <= recorded() <= 3
    assert skipped() == 0


def test_two_forwards_before_their_backwards_keep_what_they_saved() -> None:
    function = compiled(lambda x, w: torch.tanh(x @ w).square().sum())
    w = torch.randn(5, 5)
    for _ in range(4):
        inputs = [torch.randn(5, 5) for _ in range(2)]
        ours = [x.to("mtia").requires_grad_() for x in inputs]
        theirs = [x.clone().requires_grad_() for x in inputs]
        ours_results = [function(x, w.to("mtia")) for x in ours]
        for result in ours_results:
            result.backward()
        for x in theirs:
            torch.tanh(x @ w).square().sum().backward()
        for x, y in zip(ours, theirs, strict=True):
            assert x.grad is not None
            torch.testing.assert_close(x.grad.cpu(), y.grad)
    assert skipped() == 0


def test_gradients_accumulate_over_replays() -> None:
    weight = torch.ones(3, device="mtia", requires_grad=True)
    function = compiled(lambda x: (weight * x).sum())
    for _ in range(5):
        function(torch.full((3,), 2.0, device="mtia")).backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [10.0] * 3


def test_an_input_that_is_written_is_written() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    call = compiled(function)
    for _ in range(4):
        x = torch.ones(4, device="mtia")
        assert call(x).tolist() == [4.0] * 4
        assert x.tolist() == [2.0] * 4


def test_buffers_are_updated_at_each_call() -> None:
    model = nn.BatchNorm1d(4).to("mtia")
    reference = nn.BatchNorm1d(4)
    call = compiled(model)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(6, 4)
        torch.testing.assert_close(call(x.to("mtia")).cpu(), reference(x))
    assert model.running_mean is not None
    torch.testing.assert_close(model.running_mean.cpu(), reference.running_mean)
    assert model.num_batches_tracked is not None
    assert model.num_batches_tracked.item() == 4


def test_dropout_is_fresh_in_each_replay() -> None:
    call = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, device="mtia")
    results = [call(x).tolist() for _ in range(4)]
    assert len({tuple(result) for result in results}) == 4


def test_what_cannot_be_captured_runs_between_graphs_or_is_reported() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[y > 1].sum() + 1

    call = compiled(function)
    for value in (1.0, 2.0, 3.0, 4.0):
        assert call(torch.full((4,), value, device="mtia")).item() == 8 * value + 1
    assert recorded() + skipped() > 0


def test_recordings_can_be_forgotten() -> None:
    forget_recordings()  # of other tests
    gc.collect()
    torch.mtia.synchronize()
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved()
    function = compiled(lambda x: torch.relu(x * 2) - 1)
    for _ in range(4):
        function(torch.ones(2**20, device="mtia"))
    assert recorded() == 1
    forget_recordings()
    gc.collect()
    torch.mtia.synchronize()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == before
    assert function(torch.ones(3, device="mtia")).tolist() == [1.0] * 3
