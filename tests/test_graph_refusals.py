"""What cannot be captured raises where it is called, says what to do, and leaves everything sound."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.capturing import capture, is_capturing

if TYPE_CHECKING:
    from tests.conftest import RunScript


def recorded_event() -> torch.Event:
    event = torch.Event("mtia", enable_timing=True)
    event.record()
    return event


REFUSED: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "item": (lambda x: x.sum().item(), "aten::_local_scalar_dense.*Keep it on the device"),
    "if": (lambda x: 1 if x.sum() > 0 else 2, "aten::_local_scalar_dense"),
    "tolist": (lambda x: x.tolist(), "aten::copy_.*Pin the host tensor"),
    "to host": (lambda x: x.cpu(), "aten::copy_.*Pin the host tensor"),
    "from host": (lambda _: torch.ones(16).to("mtia"), "aten::copy_.*Pin the host tensor"),
    "a tensor of numbers": (lambda _: torch.tensor([1.0, 2.0], device="mtia"), "aten::copy_"),
    "pinned, but waiting": (lambda x: x.copy_(torch.ones(16).pin_memory()), "aten::copy_.*non_blocking=True"),
    "device synchronize": (
        lambda _: torch.mtia.synchronize(),
        r"synchronize\(\).*before the capture or after a replay",
    ),
    "accelerator synchronize": (lambda _: torch.accelerator.synchronize(), r"synchronize\(\)"),
    "stream synchronize": (lambda _: torch.mtia.current_stream().synchronize(), r"Stream.synchronize\(\)"),
    "stream query": (lambda _: torch.mtia.current_stream().query(), r"Stream.query\(\)"),
    "event query": (lambda _: recorded_event().query(), "event_query.*a point in that graph"),
    "event synchronize": (lambda _: recorded_event().synchronize(), "event_query.*a point in that graph"),
    "elapsed_time": (lambda _: recorded_event().elapsed_time(recorded_event()), "event_elapsed_time"),
    "get_rng_state": (lambda _: torch.mtia.get_rng_state(), "neither read nor set"),
    "manual_seed": (lambda _: torch.mtia.manual_seed(1), "neither read nor set"),
    "a generator's state": (lambda _: torch.Generator("mtia").manual_seed(1), "neither read nor set"),
    "another capture": (lambda _: torch.mtia.MTIAGraph().capture_begin((0, 0)), "captured in another graph already"),
    "empty_cache": (lambda _: torch.accelerator.empty_cache(), r"empty_cache\(\)"),
    "nonzero": (lambda x: x.nonzero(), "aten::nonzero cannot be captured.*falls back to the CPU"),
    "masked_select": (lambda x: x[x > 0], "aten::nonzero|aten::masked_select|aten::index"),
    "unique": (lambda x: x.unique(), "aten::_unique2"),
    "an operator without a kernel": (lambda x: torch.linalg.eig(x.view(4, 4)), "aten::linalg_eig.*falls back"),
}


def broken(call: Callable[[torch.Tensor], object], x: torch.Tensor, message: str) -> torch.mtia.MTIAGraph:
    """A graph whose capture met a call that is refused."""
    graph = torch.mtia.MTIAGraph()
    calls = 0
    with pytest.raises(RuntimeError, match=message), torch.mtia.graph(graph):  # noqa: PT012 - as programs write it
        x.add_(1)
        calls += 1
        call(x)
        calls += 1
    assert calls == 1
    return graph


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", REFUSED)
def test_the_call_raises_and_names_itself(name: str) -> None:
    call, message = REFUSED[name]
    gc.collect()  # what other tests have left is not freed within this one
    x = torch.ones(16, device="mtia")
    torch.mtia.synchronize()
    stream, allocated = torch.mtia.current_stream(), torch.accelerator.memory_allocated()
    graph = broken(call, x, message)
    assert torch.mtia.current_stream() == stream
    assert not is_capturing()
    with pytest.raises(RuntimeError, match=f"the graph is incomplete.*({message})"):
        graph.replay()
    del graph
    gc.collect()
    assert torch.accelerator.memory_allocated() == allocated
    assert x.tolist() == [1] * 16  # nothing ran
    again, _ = capture(lambda: x.add_(1))
    again.replay()
    assert x.tolist() == [2] * 16


def test_a_refusal_that_is_caught_still_spoils_the_graph() -> None:
    x = torch.ones(16, device="mtia")
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        with pytest.raises(RuntimeError, match="cannot be captured"):
            x.sum().item()
        x.add_(1)
    with pytest.raises(RuntimeError, match="the graph is incomplete: aten::_local_scalar_dense"):
        graph.replay()
    graph.reset()
    with torch.mtia.graph(graph):
        x.add_(1)
    graph.replay()
    assert x[0].item() == 2


class Stop(Exception):
    pass


@pytest.mark.parametrize("operations", range(6))
def test_an_exception_at_any_point_leaves_the_context_as_it_came(operations: int) -> None:
    x = torch.ones(8, device="mtia", requires_grad=True)
    side = torch.mtia.Stream()
    before = torch.mtia.current_stream()

    def steps() -> None:
        main = torch.mtia.current_stream()
        y = x * 2
        yield_point(1)
        side.wait_stream(main)
        yield_point(2)
        with torch.mtia.stream(side):
            z = y + 1
            yield_point(3)
        main.wait_stream(side)
        z.sum().backward()
        yield_point(4)
        torch.rand(3, device="mtia")
        yield_point(5)

    def yield_point(number: int) -> None:
        if number == operations:
            raise Stop

    stream = torch.mtia.Stream()
    graph = torch.mtia.MTIAGraph()
    if operations == 0:
        with torch.mtia.graph(graph, stream=stream):
            steps()
    else:
        with pytest.raises(Stop), torch.mtia.graph(graph, stream=stream):
            steps()
    assert torch.mtia.current_stream() == before
    for one in (before, stream, side):
        with torch.mtia.stream(one):
            assert not is_capturing()
            assert (torch.ones(2, device="mtia") + 1).sum().item() == 4


def fails_with(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


LEFT_BY: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "an exception of the program": (fails_with(KeyError("key")), KeyError, "KeyError: 'key'"),
    "a wrong argument": (
        lambda: torch.ones(2, device="mtia") + torch.ones(3, device="mtia"),
        RuntimeError,
        "RuntimeError: The size",
    ),
    "memory that is used up": (
        lambda: torch.empty(1 << 50, dtype=torch.uint8, device="mtia"),
        torch.OutOfMemoryError,
        "OutOfMemoryError: .*Tried to allocate",
    ),
}


@pytest.mark.parametrize("case", LEFT_BY)
@pytest.mark.parametrize("accelerator", [False, True])
def test_a_capture_that_an_exception_left_is_not_replayed(case: str, accelerator: bool) -> None:
    call, error, message = LEFT_BY[case]
    x = torch.zeros(4, device="mtia")
    graph: Any = torch.accelerator.Graph() if accelerator else torch.mtia.MTIAGraph()
    with pytest.raises(error), graph if accelerator else torch.mtia.graph(graph):  # noqa: PT012 - as programs write it
        x.add_(1)
        call()
    with pytest.raises(RuntimeError, match=f"incomplete: an exception ended the capture before its time: {message}"):
        graph.replay()
    assert x.tolist() == [0] * 4


def test_an_exception_that_is_handled_in_a_capture_does_not_spoil_the_graph() -> None:
    x = torch.zeros(4, device="mtia")
    graph = torch.mtia.MTIAGraph()
    try:
        raise KeyError
    except KeyError:  # a capture in a handler is as good as any
        with torch.mtia.graph(graph):
            x.add_(1)
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(1 << 50, dtype=torch.uint8, device="mtia")
            x.add_(1)
    graph.replay()
    assert x.tolist() == [2] * 4


def test_memory_that_lazy_clones_share_is_not_captured() -> None:
    uses: tuple[Callable[[torch.Tensor], object], ...] = (
        lambda x: x.add_(1),
        lambda x: x + 1,
        lambda x: x[2:].clone(),
    )
    for use in uses:
        x = torch.full((1000,), 5.0, device="mtia")
        clone = torch._lazy_clone(x)
        for tensor in (x, clone):
            graph = torch.mtia.MTIAGraph()
            with pytest.raises(RuntimeError, match="memory that lazily cloned tensors share"), torch.mtia.graph(graph):
                use(tensor)
            with pytest.raises(RuntimeError, match="the graph is incomplete"):
                graph.replay()
            assert x.eq(5).all().item()
            assert clone.eq(5).all().item()


def test_memory_that_lazy_clones_no_longer_share_is_captured() -> None:
    x = torch.full((1000,), 5.0, device="mtia")
    clone = torch._lazy_clone(x)
    clone.add_(1)
    y = torch.full((1000,), 5.0, device="mtia")
    torch._lazy_clone(y)  # dies at once
    graph, results = capture(lambda: (x + clone, y + 1))
    graph.replay()
    assert [result[0].item() for result in results] == [11, 6]
    x.fill_(1)
    y.fill_(2)
    graph.replay()
    assert [result[0].item() for result in results] == [7, 3]


@pytest.mark.parametrize("write", ["x", "clone"])
def test_a_lazy_clone_of_what_a_graph_reads_is_a_clone(write: str) -> None:
    x = torch.full((1000,), 1.0, device="mtia")
    graph, y = capture(lambda: x + 1)
    clone = torch._lazy_clone(x)
    (x if write == "x" else clone).fill_(5)
    graph.replay()
    assert y[0].item() == (6 if write == "x" else 2)
    assert (x[0].item(), clone[0].item()) == ((5, 1) if write == "x" else (1, 5))
    del graph, y
    gc.collect()


def test_lazy_clones_in_a_capture_are_clones() -> None:
    x = torch.zeros(6, 4, device="mtia")

    def steps() -> tuple[torch.Tensor, torch.Tensor]:
        before = torch._lazy_clone(x.t()[1:])
        x.add_(1)
        after = torch._lazy_clone(x)
        after.mul_(2)
        return before, after

    graph, (before, after) = capture(steps)
    for count in range(3):
        graph.replay()
        assert before.shape == (3, 6)
        assert before.stride() == x.t()[1:].stride()
        assert before.eq(count).all().item()
        assert after.eq(2 * (count + 1)).all().item()
        assert x.eq(count + 1).all().item()


def test_a_lazy_clone_reads_nothing_too_early_while_there_is_a_graph(run_script: RunScript) -> None:
    script = """
        import torch, torch_mtia
        one, other = torch.Stream("mtia"), torch.Stream("mtia")
        with one:
            x = torch.ones(1000, device="mtia")
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph, stream=torch.mtia.Stream()):
            torch.ones(3, device="mtia")
        with one:
            x.add_(1)
        with other:
            clone = torch._lazy_clone(x)  # reads nothing, so it need not wait
        with one:
            x.add_(1)
            values = x.cpu(), clone.cpu()
        print([value.unique().tolist() for value in values])
    """
    for seed in ("1", "2", "3"):
        assert run_script(script, TORCH_MTIA_DELAY=seed).output().strip() == "[[3.0], [2.0]]"


def test_a_capture_does_not_wait_for_streams_outside_it() -> None:
    other = torch.mtia.Stream()
    graph = torch.mtia.MTIAGraph()
    with pytest.raises(RuntimeError, match="outside the capture; let the other stream join"), torch.mtia.graph(graph):
        torch.mtia.current_stream().wait_stream(other)


def test_an_event_of_a_capture_tells_no_time() -> None:
    event = torch.Event("mtia", enable_timing=True)
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        event.record()
        with pytest.raises(RuntimeError, match="a point in that graph"):
            event.query()
    with pytest.raises(RuntimeError, match="a point in that graph"):
        event.synchronize()
    event.record()
    event.synchronize()


def test_a_graph_cannot_be_replayed_in_a_capture() -> None:
    inner, _ = capture(lambda: torch.ones(2, device="mtia"))
    outer = torch.mtia.MTIAGraph()
    with pytest.raises(RuntimeError, match="the replay of another one"), torch.mtia.graph(outer):
        inner.replay()


def test_the_state_of_a_generator_is_out_of_reach_in_a_capture() -> None:
    torch.mtia.get_rng_state()
    for call in (
        lambda: torch.mtia.manual_seed(1),
        torch.mtia.get_rng_state,
        lambda: torch.mtia.set_rng_state(torch.zeros(16, dtype=torch.uint8)),
    ):
        graph = torch.mtia.MTIAGraph()
        with (
            pytest.raises(RuntimeError, match="neither read nor set while a graph is captured"),
            torch.mtia.graph(graph),
        ):
            call()


def test_other_threads_go_on_while_one_captures() -> None:
    def eager() -> float:
        with torch.mtia.stream(torch.mtia.Stream()):
            return float((torch.ones(100, device="mtia") * 2).sum().item())

    graph = torch.mtia.MTIAGraph()
    x = torch.zeros(3, device="mtia")
    with ThreadPoolExecutor(1) as other, torch.mtia.graph(graph, stream=torch.mtia.Stream()):
        x.add_(1)
        assert other.submit(eager).result() == 200
    graph.replay()
    assert x.tolist() == [1] * 3
