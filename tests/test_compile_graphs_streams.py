"""Recordings of torch.compile(mode="reduce-overhead") beside other devices, streams and threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

if TYPE_CHECKING:
    from tests.conftest import RunScript

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


@pytest.mark.wide
def test_a_graph_is_of_the_device_of_its_tensors_whichever_is_the_current_one(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        from torch._dynamo.utils import counters

        function = torch.compile(lambda x: (x * 2 + 1).sin(), mode="reduce-overhead")
        for step in range(8):
            device = step % 4 // 2
            torch.accelerator.set_device_index(step % 2)
            x = torch.full((100,), float(step), requires_grad=True)
            on_device = x.detach().to(f"mtia:{device}").requires_grad_()
            for each, call in ((x, lambda x: (x * 2 + 1).sin()), (on_device, function)):
                call(each).sum().backward()
            result = function(on_device)
            assert result.device.index == device and torch.accelerator.current_device_index() == step % 2
            torch.testing.assert_close(result.detach().cpu(), (x.detach() * 2 + 1).sin())
            torch.testing.assert_close(on_device.grad.cpu(), x.grad)
        print(counters["inductor"]["mtia_graphs_recorded"] > 0, counters["inductor"]["cudagraph_skips"])
        """,
        TORCH_MTIA_DEVICES="2",
        TORCH_MTIA_MEMORY="256M",
    )
    assert finished.output() == "True 0\n"


@pytest.mark.wide
def test_calls_on_several_streams_do_not_get_in_each_others_way(run_script: RunScript) -> None:
    """Their recordings share memory."""
    finished = run_script(
        """
        import torch

        square = torch.compile(lambda x: x @ x, mode="reduce-overhead")
        cube = torch.compile(lambda x: x @ x @ x, mode="reduce-overhead")
        numbers = [torch.randn(64, 64, dtype=torch.float64) for _ in range(12)]
        on_device = [x.to("mtia") for x in numbers]
        streams = [torch.mtia.Stream() for _ in range(3)]
        for call in (square, cube):
            for _ in range(2):
                call(on_device[0])
        torch.mtia.synchronize()
        results = []
        for x, stream in zip(on_device, streams * 4):
            with torch.mtia.stream(stream):
                results.append((square(x) * 2, cube(x), square(x)))
        torch.mtia.synchronize()
        for x, found in zip(numbers, results):
            for result, expected in zip(found, (x @ x * 2, x @ x @ x, x @ x)):
                torch.testing.assert_close(result.cpu(), expected)
        """,
        TORCH_MTIA_DELAY="1",
    )
    finished.output()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("afterwards", ["pass", "result.record_stream(side); del result"])
def test_another_stream_may_read_a_result_while_the_graph_is_replayed(run_script: RunScript, afterwards: str) -> None:
    finished = run_script(
        f"""
        import torch

        function = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
        for _ in range(2):
            function(torch.zeros(1000, device="mtia"))
        main, side = torch.mtia.current_stream(), torch.mtia.Stream()
        torch.mtia.synchronize()
        for step in range(5):
            result = function(torch.full((1000,), float(step), device="mtia"))
            side.wait_stream(main)
            with torch.mtia.stream(side):
                tripled = result * 3
            {afterwards}
            function(torch.full((1000,), -5.0, device="mtia"))
            main.wait_stream(side)
            assert tripled.tolist() == [6.0 * step + 3] * 1000
        """,
        TORCH_MTIA_DELAY="1",
    )
    finished.output()


@pytest.mark.wide
def test_a_result_that_has_moved_may_be_read_in_its_stream_and_dropped(run_script: RunScript) -> None:
    """Another stream's call moved it, and its memory goes to nobody before the read is done."""
    finished = run_script(
        """
        import torch

        function = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
        for _ in range(2):
            function(torch.zeros(1000, device="mtia"))
        one, other = torch.mtia.Stream(), torch.mtia.Stream()
        inputs = [torch.full((1000,), float(step), device="mtia") for step in range(5)]
        torch.mtia.synchronize()
        for step, x in enumerate(inputs):
            with torch.mtia.stream(one):
                result = function(x)
            with torch.mtia.stream(other):
                function(torch.full((1000,), -5.0, device="mtia"))
            with torch.mtia.stream(one):
                tripled = result * 3
            del result
            with torch.mtia.stream(other):
                others = [torch.full((1000,), -7.0, device="mtia") for _ in range(3)]
                torch.mtia.synchronize()
            assert tripled.tolist() == [6.0 * step + 3] * 1000
        """,
        TORCH_MTIA_DELAY="1",
    )
    finished.output()


@pytest.mark.wide
def test_calls_on_one_device_leave_results_on_another_alone(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch

        function = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
        inputs = [[torch.full((1000,), float(step), device=f"mtia:{device}") for step in range(5)] for device in (0, 1)]
        for values in inputs:
            for _ in range(2):
                function(values[0])
        side = torch.mtia.Stream(device=1)
        for device in (0, 1):
            torch.mtia.synchronize(device)
        for step in range(5):
            with torch.mtia.stream(side):
                result = function(inputs[1][step])
            address = result.data_ptr()
            function(inputs[0][step])
            assert result.data_ptr() == address
            with torch.mtia.stream(side):
                assert result.tolist() == [2.0 * step + 1] * 1000
        """,
        TORCH_MTIA_DEVICES="2",
        TORCH_MTIA_MEMORY="256M",
        TORCH_MTIA_DELAY="1",
    )
    finished.output()


def test_threads_train_one_network_in_streams_of_their_own() -> None:
    """Autograd runs the backwards of all of them in one thread, beside their forwards."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)).to("mtia")
    parameters = list(network.parameters())
    batches = [torch.randn(8, 16, device="mtia") for _ in range(20)]

    def gradients(call: Function, batch: torch.Tensor) -> list[torch.Tensor]:
        return [gradient.cpu() for gradient in torch.autograd.grad(call(batch).square().mean(), parameters)]

    expected = [gradients(network, batch) for batch in batches]
    fast = torch.compile(network, mode="reduce-overhead")
    for batch in batches[:3]:
        gradients(fast, batch)
    found: list[list[list[torch.Tensor]]] = [[], [], []]

    def train(results: list[list[torch.Tensor]]) -> None:
        with torch.mtia.stream(torch.mtia.Stream()):
            results += [gradients(fast, batch) for batch in batches]

    torch.mtia.synchronize()
    threads = [threading.Thread(target=train, args=(results,)) for results in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in found:
        torch.testing.assert_close(results, expected)
    assert skipped() == 0


def test_streams_of_recordings_take_no_part_in_replays() -> None:
    """Nothing is done there that a replay could wait for, nor do they wait for replays."""
    fast = compiled(lambda x: (x @ x).relu())
    x = torch.rand(64, 64, device="mtia")
    kept = [fast(x) for _ in range(4)]  # results in use move away
    torch.mtia.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.MTIA]) as profile:
        kept += [fast(x) for _ in range(4)]
        torch.mtia.synchronize()
    names = [event.name for event in profile.events()]
    assert any("mm" in name for name in names)
    assert "mtia::stream_wait_event" not in names
    for result in kept:
        torch.testing.assert_close(result.cpu(), (x.cpu() @ x.cpu()).relu())
    assert skipped() == 0
