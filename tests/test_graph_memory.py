"""Memory of graphs: private pools hold it, share it and give it back."""

from __future__ import annotations

import functools
import gc
import threading
from typing import TYPE_CHECKING

import pytest
import torch

import torch_mtia
from tests.capturing import capture, is_capturing

if TYPE_CHECKING:
    from tests.conftest import RunScript

MIB = 2**20


def reserved() -> int:
    gc.collect()
    torch.mtia.synchronize()
    torch.accelerator.empty_cache()
    return torch.accelerator.memory_reserved()


def relu_of(x: torch.Tensor, factor: float) -> torch.Tensor:
    return (torch.relu(x * factor) - x).sum()


def test_destroying_a_graph_returns_every_byte() -> None:
    before = reserved(), torch.accelerator.memory_allocated()
    x = torch.ones(MIB, device="mtia")
    graph, y = capture(functools.partial(relu_of, x, 2))
    graph.replay()
    assert reserved() > before[0] + 2 * 4 * MIB
    del graph, y, x
    assert (reserved(), torch.accelerator.memory_allocated()) == before


def test_what_a_graph_computes_with_is_given_to_nobody_else() -> None:
    x = torch.full((MIB,), 2.0, device="mtia")
    graph, y = capture(lambda: (x * 3) + (x * 5))  # two intermediate results, freed in the capture
    others = [torch.full((MIB,), 7.0, device="mtia") for _ in range(8)]
    graph.replay()
    assert y[0].item() == 16
    assert all(bool((other == 7).all()) for other in others)


def test_memory_of_a_graph_stays_for_work_that_is_queued_behind_a_replay() -> None:
    x = torch.full((MIB,), 2.0, device="mtia")
    graph, y = capture(lambda: x * 3, stream=torch.mtia.Stream())
    graph.replay()
    gate = threading.Event()
    torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: gate.wait(timeout=30))
    z = y + 1
    del graph, y
    other = torch.mtia.Stream()
    torch_mtia.launch_host_function(other, torch.accelerator.empty_cache)  # waits for nothing there
    other.synchronize()
    gate.set()
    assert bool((z == 7).all())


def test_a_result_outlives_its_graph() -> None:
    x = torch.full((MIB,), 2.0, device="mtia")
    graph, y = capture(lambda: x * 3)
    graph.replay()
    del graph
    torch.accelerator.empty_cache()
    others = [torch.full((MIB,), 7.0, device="mtia") for _ in range(4)]
    assert bool((y == 6).all())
    assert len(others) == 4


def test_pool_handles_differ_and_graphs_tell_theirs() -> None:
    first, second = torch.mtia.graph_pool_handle(), torch.mtia.graph_pool_handle()
    assert first != second
    graph, _ = capture(lambda: torch.ones(3, device="mtia"), pool=first)
    other, _ = capture(lambda: torch.ones(3, device="mtia"), pool=first)
    own, _ = capture(lambda: torch.ones(3, device="mtia"))
    shared, _ = capture(lambda: torch.ones(3, device="mtia"), pool=own.pool())
    assert graph.pool() == other.pool() == first
    assert own.pool() == shared.pool()
    assert own.pool() not in (first, second, (0, 0))


def test_graphs_that_share_a_pool_share_memory_until_the_last_one_goes() -> None:
    before = reserved()
    x = torch.ones(8 * MIB, device="mtia")
    with_input = reserved()
    pool = torch.mtia.graph_pool_handle()
    first, y = capture(functools.partial(relu_of, x, 2), pool=pool)
    with_one = reserved()
    second, z = capture(functools.partial(relu_of, x, 3), pool=pool)
    assert reserved() == with_one  # the second graph found the memory of the first
    first.replay()
    assert y.item() == x.numel()
    del first, y
    assert reserved() == with_one
    second.replay()
    assert z.item() == 2 * x.numel()
    del second, z
    assert reserved() == with_input
    del x
    assert reserved() == before


def test_a_pool_is_used_again_after_its_last_graph() -> None:
    pool = torch.mtia.graph_pool_handle()
    x = torch.ones(4, device="mtia")
    for factor in (2, 3):
        graph, y = capture(functools.partial(torch.mul, x, factor), pool=pool)
        graph.replay()
        assert y.tolist() == [float(factor)] * 4
        del graph, y


def test_a_reset_gives_the_memory_back() -> None:
    before = reserved()
    graph, result = capture(lambda: torch.ones(4 * MIB, device="mtia") * 2)
    del result
    assert reserved() > before
    graph.reset()
    assert reserved() == before


def test_statistics_and_snapshot_show_the_pool() -> None:
    graph, y = capture(lambda: torch.ones(4 * MIB, device="mtia"))
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] >= y.nbytes
    pools = {tuple(segment["segment_pool_id"]) for segment in torch.mtia.snapshot()["segments"]}
    assert graph.pool() in pools


def test_memory_shared_with_a_side_stream_is_not_used_again_in_the_capture() -> None:
    x = torch.ones(MIB, device="mtia")
    side = torch.mtia.Stream()

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        main = torch.mtia.current_stream()
        y = x * 2
        side.wait_stream(main)
        with torch.mtia.stream(side):
            total = y.sum()
        y.record_stream(side)
        del y
        z = x * 100  # may run before the sum
        main.wait_stream(side)
        return total, z

    graph, (total, z) = capture(body)
    for _ in range(5):
        graph.replay()
        assert total.item() == 2 * MIB
        assert z[0].item() == 100


# Bytes of the host that the process has allocated.
HOST_BYTES = """
        import ctypes
        import torch

        class Mallinfo2(ctypes.Structure):  # mallinfo2(3)
            names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
            _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

        libc = ctypes.CDLL(None)
        libc.mallinfo2.restype = Mallinfo2

        def in_use():
            info = libc.mallinfo2()
            return info.uordblks + info.hblkhd
"""


def test_a_node_keeps_less_than_two_kibibytes(run_script: RunScript) -> None:
    script = f"""{HOST_BYTES}
        x = torch.rand(16, device="mtia")
        out = torch.rand(16, device="mtia")

        def chain(links):
            for _ in range(links):
                torch.mul(out, 0.5, out=out)
                torch.add(out, x, out=out)
                torch.sin(out, out=out)
                torch.where(out > 0, out, x)

        chain(10)
        torch.mtia.synchronize()
        graph = torch.mtia.MTIAGraph()
        before = in_use()
        with torch.mtia.graph(graph):
            chain(2000)  # 5 nodes each
        print((in_use() - before) / 10_000)
        graph.replay()
        torch.mtia.synchronize()
    """
    assert float(run_script(script).output()) < 2048


def test_a_capture_leaves_nothing_of_the_host_behind(run_script: RunScript) -> None:
    script = f"""{HOST_BYTES}
        x = torch.rand(16, device="mtia")

        def capture():
            graph = torch.mtia.MTIAGraph()
            with torch.mtia.graph(graph):
                x.add_(1)
            graph.reset()

        for _ in range(10):
            capture()
        before = in_use()
        for _ in range(100):
            capture()
        print((in_use() - before) / 100)
    """
    assert float(run_script(script).output()) < 1024


def test_running_out_of_memory_in_a_capture_leaves_all_sound() -> None:
    before = reserved()
    _, total = torch.accelerator.get_memory_info()
    graph = torch.mtia.MTIAGraph()
    with pytest.raises(torch.OutOfMemoryError), torch.mtia.graph(graph):
        torch.empty(total, device="mtia")
    assert not is_capturing()
    del graph
    assert reserved() == before
    assert (torch.ones(2, device="mtia") + 1).tolist() == [2, 2]
