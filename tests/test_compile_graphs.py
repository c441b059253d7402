"""torch.compile(mode="reduce-overhead") records graphs and replays them, with the results of eager calls."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from tests.capturing import is_capturing
from torch_mtia.inductor.graphs import Model, Traits, forget_recordings, graphify

if TYPE_CHECKING:
    pass

Function = Callable[..., torch.Tensor]
reinterpret = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined] # of generated code


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


def test_a_result_in_use_is_not_overwritten_by_a_graph_that_used_its_memory_before() -> None:
    w = torch.eye(64, device="mtia")
    earlier, later = compiled(lambda x: (x @ w) @ w), compiled(lambda x: x * 2)
    ones = torch.ones(64, 64, device="mtia")
    for function in (earlier, later):
        for _ in range(2):
            function(ones)
    assert recorded() == 2
    result = later(ones)
    view = result[1:]
    earlier(ones * 5)
    assert result.unique().tolist() == view.unique().tolist() == [2.0]


def test_a_result_outlives_its_graph_while_others_are_replayed() -> None:
    ones = torch.ones(64, 64, device="mtia")
    traits = Traits(frozenset(), frozenset())
    earlier = graphify(lambda inputs: [(inputs[0] + 1) * 2], traits)
    later = graphify(lambda inputs: [inputs[0] * 2], traits)
    for function in (earlier, later):
        for _ in range(2):
            function([ones])
    result = later([ones])[0]
    del later, function
    gc.collect()
    earlier([ones * 5])
    assert result.unique().tolist() == [2.0]


def test_a_loop_between_graphs_gives_its_results() -> None:
    def double_thrice(x: torch.Tensor) -> torch.Tensor:
        start = torch.zeros((), dtype=torch.long, device=x.device)
        loop = torch._higher_order_ops.while_loop
        results = loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 2), (start, x))  # type: ignore[no-untyped-call]
        return results[1]  # type: ignore[no-any-return]

    call = compiled(double_thrice)
    for value in range(4):
        assert call(torch.full((3,), float(value), device="mtia")).tolist() == [8.0 * value] * 3


def test_what_other_threads_do_during_a_recording_is_not_recorded() -> None:
    counter = torch.zeros(4, device="mtia")
    seen: list[list[float]] = []

    def count() -> None:
        counter.add_(1)
        seen.append(counter.tolist())

    def model(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()
        return [inputs[0] * 2]

    call = graphify(model, Traits(frozenset(), frozenset()))
    for value in range(5):
        assert call([torch.full((3,), float(value), device="mtia")])[0].tolist() == [2.0 * value] * 3
    assert seen == [[1.0] * 4, [2.0] * 4]  # of the call without a graph, and of the recording
    assert (recorded(), skipped()) == (1, 0)


def test_no_stream_of_a_program_is_one_that_is_recorded_in() -> None:
    streams = [torch.Stream("mtia", priority=priority) for priority in (0, -1) for _ in range(40)]
    current: list[int] = []

    def model(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        current.append(torch.mtia.current_stream().stream_id)
        return [inputs[0] * 2]

    call = graphify(model, Traits(frozenset(), frozenset()))
    for _ in range(3):
        call([torch.ones(3, device="mtia")])
    assert recorded() == 1
    assert current[-1] not in {0, *(stream.stream_id for stream in streams)}


def test_a_lazy_clone_of_a_result_is_a_clone() -> None:
    function = compiled(lambda x: x * 2 + 1)
    for value in range(5):
        result = function(torch.full((4,), float(value), device="mtia"))
        clone = torch._lazy_clone(result)
        result.add_(1)
        function(torch.zeros(4, device="mtia"))
        assert (result.tolist(), clone.tolist()) == ([value * 2 + 2.0] * 4, [value * 2 + 1.0] * 4)


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


def test_what_cannot_be_captured_runs_between_graphs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[y > 1].sum() + 1

    call = compiled(function)
    for value in (1.0, 2.0, 3.0, 4.0):
        assert call(torch.full((4,), value, device="mtia")).item() == 8 * value + 1
    assert (recorded(), skipped()) == (2, 0)  # before the number of elements is known, and after


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


def test_a_network_trains_on_slices_of_its_data() -> None:
    data = torch.randn(64, 16)
    on_device = data.to("mtia")
    ours = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4))
    theirs = copy.deepcopy(ours)
    call = compiled(ours.to("mtia"))
    for step in range(6):
        ours.zero_grad()
        theirs.zero_grad()
        call(on_device[8 * step : 8 * step + 8]).square().sum().backward()
        theirs(data[8 * step : 8 * step + 8]).square().sum().backward()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert one.grad is not None
            torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-4)
    assert skipped() == 0


# What generated code returns of an input x of 4 x 6 elements.
VIEWS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "the input": lambda x: [x],
    "a part": lambda x: [reinterpret(x, (2, 3), (6, 1), 8)],
    "transposed": lambda x: [reinterpret(x, (6, 4), (1, 6), 0)],
    "a view of a view": lambda x: [reinterpret(reinterpret(x, (3, 6), (6, 1), 6), (2, 2), (6, 2), 7)],
    "another dtype of one size": lambda x: [torch.ops.aten.view.dtype(x, torch.int32)],
    "another dtype of half the size": lambda x: [torch.ops.aten.view.dtype(x, torch.int16)[1:, 3:]],
    "several": lambda x: [reinterpret(x, (5,), (4,), 1), x, reinterpret(x, (5,), (4,), 2)],
    "no elements": lambda x: [reinterpret(x, (0, 6), (6, 1), 6)],
}


def assert_alias(output: torch.Tensor, expected: torch.Tensor) -> None:
    assert output.untyped_storage().data_ptr() == expected.untyped_storage().data_ptr()
    assert output.storage_offset() == expected.storage_offset()
    assert (output.shape, output.stride(), output.dtype) == (expected.shape, expected.stride(), expected.dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("static", [False, True])
def test_outputs_over_an_input_lie_in_the_input_of_the_call(name: str, static: bool) -> None:
    model: Model = lambda inputs: (inputs[0] + 1, *VIEWS[name](inputs[0]))  # noqa: E731
    call = graphify(model, Traits(frozenset({0} if static else ()), frozenset()))
    for offset in (4, 4, 0, 12, 5, 40, 40):
        x = torch.arange(100.0, device="mtia")[offset:][:24].view(4, 6)
        result, *views = call([x])
        assert torch.equal(result, x + 1)
        for view, expected in zip(views, VIEWS[name](x), strict=True):
            assert_alias(view, expected)
    assert 0 < recorded() <= 2
    assert skipped() == 0


def test_a_view_of_another_dtype_where_it_cannot_be_is_refused() -> None:
    call = graphify(
        lambda inputs: [torch.ops.aten.view.dtype(inputs[0], torch.int64)], Traits(frozenset(), frozenset())
    )
    data = torch.arange(20.0, device="mtia")
    for _ in range(2):
        assert call([data[4:8]])[0].shape == (2,)
    with pytest.raises(RuntimeError, match="must be divisible by 2"):
        call([data[5:9]])


def test_outputs_over_static_inputs_of_one_storage_lie_where_they_should() -> None:
    """Parameters that are pieces of one flat tensor."""
    flat = torch.arange(30.0, device="mtia")
    model: Model = lambda inputs: [inputs[1], inputs[0], reinterpret(inputs[0], (2,), (3,), 1)]  # noqa: E731
    call = graphify(model, Traits(frozenset({0, 1}), frozenset()))
    for _ in range(3):
        one, other = flat[3:10], flat[8:20]
        for view, expected in zip(call([one, other]), model([one, other]), strict=True):
            assert_alias(view, expected)
    assert recorded() == 1


def producer() -> Callable[[float], torch.Tensor]:
    """A function whose results lie where its graph writes them."""
    call = graphify(lambda inputs: [inputs[0] * 2], Traits(frozenset(), frozenset()))
    for _ in range(2):
        call([torch.zeros(16, device="mtia")])
    return lambda value: call([torch.full((16,), value, device="mtia")])[0]


def test_inputs_that_overlapped_when_recorded_may_be_apart() -> None:
    produce = producer()
    call = graphify(lambda inputs: [inputs[0] - inputs[1], inputs[1]], Traits(frozenset(), frozenset()))
    for apart in (False, False, True, False, True):
        result = produce(3.0)
        x, y = result[:8], torch.ones(8, device="mtia") if apart else result[4:12]
        difference, view = call([x, y])
        assert difference.tolist() == [5.0 if apart else 0.0] * 8
        assert_alias(view, y)


def test_inputs_that_were_apart_when_recorded_may_overlap() -> None:
    produce = producer()
    call = graphify(lambda inputs: [inputs[0] - inputs[1], inputs[1]], Traits(frozenset(), frozenset()))
    for first in (8, 8, 3, 0, 7):
        result = produce(3.0)
        result.add_(torch.arange(16.0, device="mtia"))
        x, y = result[:8], result[first : first + 8]
        difference, view = call([x, y])
        assert difference.tolist() == [-float(first)] * 8
        assert_alias(view, y)


@pytest.mark.parametrize("traits", [Traits(frozenset(), frozenset({0})), Traits(frozenset(), frozenset(), None)])
def test_an_input_that_is_written_and_returned_is_written(traits: Traits) -> None:
    """Whether it is said to be written or is memory that the function may use again; wherever it lies."""

    def model(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        inputs[0].add_(1)
        return [inputs[0], reinterpret(inputs[0], (4,), (2,), 1), inputs[0] * 2]

    produce = producer()
    call = graphify(model, traits)
    for calls, is_result in enumerate((False, True, True, False, True, False)):
        x = (produce(3.0) if is_result else torch.full((16,), 6.0, device="mtia"))[4:12]
        version = x._version
        same, view, result = call([x])
        assert x.tolist() == [7.0] * 8
        assert result.tolist() == [14.0] * 8
        assert_alias(same, x)
        assert_alias(view, x[1::2])
        assert calls == 0 or version == x._version  # as if a kernel had written it


def test_what_a_part_of_a_function_reuses_reaches_the_next() -> None:
    """Inductor computes in place of an intermediate result that is not read again."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        z = uncapturable(y)
        w = z + 1
        return (w @ w).cos(), uncapturable(w), w * y

    call = torch.compile(function, mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(8, 8)
        for result, expected in zip(call(x.to("mtia")), function(x), strict=True):
            torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert recorded() == 2


@torch.library.custom_op("test_compile_graphs::uncapturable", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def uncapturable(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@uncapturable.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_conjugates_are_conjugates() -> None:
    def model(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = inputs
        return [x + 1, (x * 2).conj(), x.conj(), x.conj().imag]

    produce = graphify(model, Traits(frozenset(), frozenset()))
    consume = graphify(lambda inputs: [inputs[0] * 3], Traits(frozenset(), frozenset()))
    for value in (1 + 2j, 3 - 1j, 2 + 2j, 4j):
        x = torch.full((4,), value, device="mtia", dtype=torch.complex64)
        outputs = produce([x])
        for output, expected in zip(outputs, model([x]), strict=True):
            assert torch.equal(output.cpu(), expected.cpu())
        assert consume([outputs[1]])[0].tolist() == [6 * value.conjugate()] * 4


@pytest.mark.parametrize("calls", [1, 3])
def test_a_capture_of_the_program_takes_in_the_work_of_a_function(calls: int) -> None:
    """Whether the function has been recorded or not; it is recorded once it is called outside again."""
    function = compiled(lambda x: (x * 2).sin() + 1)
    x = torch.zeros(16, device="mtia")
    for _ in range(calls):
        function(x)
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        result = function(x)
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        torch.testing.assert_close(result.cpu(), (x.cpu() * 2).sin() + 1)
        torch.testing.assert_close(function(-x).cpu(), (x.cpu() * -2).sin() + 1)
    assert (recorded(), skipped()) == (1, 0)


def test_integers_are_part_of_what_is_recorded_for() -> None:
    call = graphify(lambda inputs: [inputs[1] * inputs[0], inputs[0]], Traits(frozenset(), frozenset()))
    for factor in (2, 2, 3, 2.5, 3, 2.5, 2):
        result, returned = call([factor, torch.ones(3, device="mtia")])
        assert result.tolist() == [float(factor)] * 3
        assert returned == factor


def test_strides_are_part_of_what_is_recorded_for() -> None:
    def model(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = inputs
        return [x + 1, reinterpret(x, (x.numel(),), (1,), 0)]

    call = graphify(model, Traits(frozenset(), frozenset()))
    for step in range(6):
        x = torch.randn(4, 4, device="mtia")
        x = x.t() if step % 2 else x
        result, flat = call([x])
        assert torch.equal(result, x + 1)
        assert_alias(flat, reinterpret(x, (16,), (1,), 0))
    assert recorded() == 2


def test_an_output_without_elements_is_a_tensor_of_its_own() -> None:
    call = graphify(lambda inputs: [inputs[0] + 1, torch.empty(0, 3, device="mtia")], Traits(frozenset(), frozenset()))
    results = [call([torch.ones(3, device="mtia")])[1] for _ in range(3)]
    assert [result.shape for result in results] == [(0, 3)] * 3
    assert len({id(result) for result in results}) == 3


def test_a_misaligned_slice_is_written_where_kernels_rely_on_alignment() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    call = compiled(function)
    data = torch.arange(300.0)
    on_device = data.to("mtia")
    for offset in (0, 4, 5, 0, 7, 2):
        expected = function(data[offset:][:96], data[150 + offset :][:96])
        assert torch.equal(call(on_device[offset:][:96], on_device[150 + offset :][:96]).cpu(), expected)
        assert torch.equal(on_device.cpu(), data)


def test_what_two_forwards_saved_is_read_in_place_or_copied() -> None:
    """By a recording each, so that no call writes over what another thread may be reading."""
    given = torch.randn(2, 100, device="mtia")
    double = graphify(lambda inputs: [inputs[0] * 2], Traits(frozenset(), frozenset()))
    negate = graphify(lambda inputs: [-inputs[0]], Traits(frozenset(), frozenset()))
    for _ in range(2):
        negate([*double([given[0]])])
    for _ in range(2):
        (first,) = double([given[0]])
        (second,) = double([given[1]])  # moves the first away
        address = second.data_ptr()
        (from_first,) = negate([first])
        assert second.data_ptr() == address
        (from_second,) = negate([second])
        assert torch.equal(from_first, given[0] * -2)
        assert torch.equal(from_second, given[1] * -2)


def test_a_first_call_that_raises_warms_nothing_up() -> None:
    captured = []

    def model(_inputs: list[object]) -> list[torch.Tensor]:
        captured.append(torch.mtia.is_current_stream_capturing())  # type: ignore[attr-defined]
        if len(captured) == 1:
            raise RuntimeError("the first call")
        return [torch.ones(2, device="mtia")]

    function = graphify(model, Traits(frozenset(), frozenset()))
    with pytest.raises(RuntimeError, match="the first call"):
        function([])
    for _ in range(3):
        assert function([])[0].tolist() == [1, 1]
    assert captured == [False, False, True]
    assert skipped() == 0


def test_memory_that_ran_out_once_does_not_refuse_graphs_for_ever(device: torch.device) -> None:
    shortages = [1, 2]

    def model(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if is_capturing() and shortages:
            shortages.pop()
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        return [inputs[0] + 1]

    function = graphify(model, Traits(frozenset(), frozenset()))
    for value in range(6):
        (result,) = function([torch.full((3,), float(value), device=device)])
        assert result.tolist() == [value + 1.0] * 3
    assert (recorded(), skipped()) == (1, 2)


def test_a_refusal_that_a_function_swallows_is_one(device: torch.device) -> None:
    def model(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with contextlib.suppress(RuntimeError):
            inputs[0].sum().item()
        return [inputs[0] + 1]

    function = graphify(model, Traits(frozenset(), frozenset()))
    for value in range(4):
        (result,) = function([torch.full((3,), float(value), device=device)])
        assert result.tolist() == [value + 1.0] * 3
    assert (recorded(), skipped()) == (0, 1)
