"""Graphs: the interface of torch.mtia and of torch.accelerator, from capture to destruction."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import torch_mtia
from tests.capturing import capture, is_capturing

if TYPE_CHECKING:
    from tests.conftest import RunScript


def test_a_capture_runs_nothing_and_each_replay_runs_all() -> None:
    x = torch.ones(4, device="mtia")
    count = torch.zeros(4, device="mtia")

    def step() -> torch.Tensor:
        count.add_(1)
        return x * 2 + 1

    graph, y = capture(step)
    assert count.tolist() == [0] * 4
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [value * 2 + 1] * 4
    assert count.tolist() == [2] * 4


@pytest.mark.parametrize("elements", [16, 2**21])
def test_ten_thousand_replays_give_the_bits_of_eager(elements: int) -> None:
    replays = 10_000 if elements == 16 else 20
    x = torch.rand(elements, device="mtia")
    expected = x.clone()

    def step(z: torch.Tensor) -> None:
        z.mul_(1.0001).add_(torch.sin(z), alpha=0.01).clamp_(-2, 2)

    graph, _ = capture(lambda: step(x))
    for _ in range(replays):
        graph.replay()
        step(expected)
    assert torch.equal(x.cpu(), expected.cpu())


def test_a_replay_does_not_wait() -> None:
    x = torch.zeros(4, device="mtia")
    graph, _ = capture(lambda: x.add_(1))
    gate, opened = threading.Event(), []
    torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: opened.append(gate.wait(60)))
    graph.replay()
    assert not opened
    gate.set()
    assert x[0].item() == 1
    assert opened == [True]


def test_work_around_a_replay_is_in_order() -> None:
    x = torch.zeros(2**20, device="mtia")
    graph, _ = capture(lambda: x.add_(1))
    for _ in range(10):
        x.mul_(2)
        graph.replay()
    assert x[0].item() == 2**10 - 1


def test_kept_graphs_are_instantiated_on_request_or_by_the_first_replay() -> None:
    x = torch.zeros(1, device="mtia")
    for instantiations in (0, 1, 2):
        graph = torch.mtia.MTIAGraph(keep_graph=True)
        with torch.mtia.graph(graph):
            x.add_(1)
        for _ in range(instantiations):
            graph.instantiate()
        graph.replay()
    assert x.item() == 3


def test_only_kept_graphs_can_be_instantiated_again() -> None:
    graph, _ = capture(lambda: None)
    with pytest.raises(RuntimeError, match="keep_graph=True"):
        graph.instantiate()


def test_calls_out_of_order_say_what_is_missing() -> None:
    graph = torch.mtia.MTIAGraph()
    with pytest.raises(RuntimeError, match=r"replay\(\) was called without a finished capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match=r"without capture_begin\(\)"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match=r"without capture_begin\(\)"):
        graph.pool()
    graph.capture_begin((0, 0))
    with pytest.raises(RuntimeError, match="captured already"):
        graph.capture_begin((0, 0))
    with pytest.raises(RuntimeError, match="another graph already"):
        torch.mtia.MTIAGraph().capture_begin((0, 0))
    graph.capture_end()
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        graph.capture_begin((0, 0))


def test_a_graph_is_captured_again_after_a_reset() -> None:
    x = torch.zeros(1, device="mtia")
    graph = torch.mtia.MTIAGraph()
    for step in (1, 10):
        with torch.mtia.graph(graph):
            x.add_(step)
        graph.replay()
        graph.reset()
        with pytest.raises(RuntimeError, match="without a finished capture"):
            graph.replay()
    assert x.item() == 11


def test_the_default_stream_can_be_captured() -> None:
    x = torch.ones(1, device="mtia")
    graph, y = capture(lambda: x + 1, stream=torch.mtia.default_stream())
    graph.replay()
    assert y.item() == 2


def test_a_stream_of_its_own_can_be_captured() -> None:
    x = torch.ones(1, device="mtia")
    stream = torch.mtia.Stream()
    before = torch.mtia.current_stream()
    graph, y = capture(lambda: x + 1, stream=stream)
    assert torch.mtia.current_stream() == before
    graph.replay()
    assert y.item() == 2


def test_capturing_is_asked_of_the_current_stream() -> None:
    assert not is_capturing()
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        assert is_capturing()
        with torch.mtia.stream(torch.mtia.Stream()):
            assert not is_capturing()
    assert not is_capturing()


def test_streams_join_and_come_back() -> None:
    x = torch.ones(1000, device="mtia")
    side = torch.mtia.Stream()

    def fork_and_join() -> torch.Tensor:
        main = torch.mtia.current_stream()
        y = x * 2
        side.wait_stream(main)
        with torch.mtia.stream(side):
            left = y + 1
        right = y * 3
        main.wait_stream(side)
        left.record_stream(main)
        return left + right

    graph, total = capture(fork_and_join)
    for value in (1.0, 4.0):
        x.fill_(value)
        graph.replay()
        assert total[0].item() == 2 * value + 1 + 6 * value
    with torch.mtia.stream(side):
        assert (x + 1)[0].item() == 5  # it runs again


def test_a_replay_ends_when_streams_that_were_not_joined_back_have_ended() -> None:
    x = torch.zeros(2**20, device="mtia")
    side = torch.mtia.Stream()

    def body() -> None:
        side.wait_stream(torch.mtia.current_stream())
        with torch.mtia.stream(side):
            for _ in range(10):
                x.add_(1)

    graph, _ = capture(body)
    graph.replay()
    assert x[-1].item() == 10


def test_events_order_streams_of_a_capture() -> None:
    x = torch.ones(8, device="mtia")
    side = torch.mtia.Stream()
    forked, done = torch.Event("mtia"), torch.Event("mtia")

    def body() -> torch.Tensor:
        main = torch.mtia.current_stream()
        y = x + 1
        forked.record(main)
        side.wait_event(forked)
        with torch.mtia.stream(side):
            y.mul_(10)
        done.record(side)
        main.wait_event(done)
        return y + 1

    graph, z = capture(body)
    graph.replay()
    assert z.tolist() == [21.0] * 8
    forked.record()
    assert forked.query()  # an ordinary event again


# torch.accelerator.Graph ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "global", "thread_local", "relaxed"])
def test_the_graph_of_any_accelerator_works(mode: str) -> None:
    x = torch.ones(4, device="mtia")
    graph = torch.accelerator.Graph(capture_error_mode=mode)  # type: ignore[arg-type]
    with torch.Stream("mtia"), graph:
        x += 1
    assert x.tolist() == [1] * 4
    graph.replay()
    graph.replay()
    assert x.tolist() == [3] * 4
    assert len(graph.pool()) == 2
    graph.reset()
    with graph:
        x += 10
    graph.replay()
    assert x.tolist() == [13] * 4


@pytest.mark.parametrize(
    ("mode", "refused"), [("default", True), ("thread_local", True), ("global", True), ("relaxed", False)]
)
def test_modes_say_who_may_wait_for_the_device(mode: str, refused: bool) -> None:
    def may(wait: Callable[[], object]) -> bool:
        try:
            wait()
        except RuntimeError as error:
            return "captured" not in str(error)
        return True

    graph = torch.accelerator.Graph(capture_error_mode=mode)  # type: ignore[arg-type]
    with torch.Stream("mtia"), graph, ThreadPoolExecutor(1) as other:
        for wait in (torch.mtia.synchronize, torch.accelerator.empty_cache):
            assert may(wait) is not refused
            assert other.submit(may, wait).result() is (mode != "global")


def test_the_dump_is_a_graph_of_operators(tmp_path: Path) -> None:
    x = torch.ones(4, device="mtia")
    side = torch.Stream("mtia")
    graph = torch.accelerator.Graph()
    graph.enable_debug_mode()
    with torch.Stream("mtia") as stream, graph:
        y = torch.exp(x)
        side.wait_stream(stream)
        with side:
            z = torch.sin(y)
        w = torch.cos(y)
        stream.wait_stream(side)
        torch.atan2(z, w)
    path = tmp_path / "graph.dot"
    graph.debug_dump(str(path))
    text = path.read_text()
    names = re.findall(r'n(\d+) \[label="(\w+::\w+|\w+)\\n\w+:0 stream \d+"\];', text)
    assert [name.removeprefix("aten::").split("_")[0].split(".")[0] for _, name in names] == [
        "exp",
        "sin",
        "cos",
        "atan2",
    ]
    assert re.findall(r"n(\d) -> n(\d);", text) == [("0", "1"), ("0", "2"), ("1", "3"), ("2", "3")]
    assert text.startswith("digraph mtia_graph {")
    assert text.endswith("}\n")


def test_a_dump_has_to_be_asked_for_before_the_capture(tmp_path: Path) -> None:
    graph = torch.accelerator.Graph()
    with torch.Stream("mtia"), graph:
        torch.ones(1, device="mtia")
    with pytest.raises(RuntimeError, match=r"enable_debug_mode\(\) before the capture"):
        graph.debug_dump(str(tmp_path / "graph.dot"))


# Destruction ---------------------------------------------------------------------------------------------------------


def test_destroying_waits_for_replays_under_way() -> None:
    x = torch.zeros(2**21, device="mtia")
    graph, _ = capture(lambda: [x.add_(1) for _ in range(20)])
    for _ in range(5):
        graph.replay()
    del graph
    gc.collect()
    assert x[-1].item() == 100


def test_destroying_twice_and_after_a_reset_does_nothing() -> None:
    gc.collect()
    before = torch.mtia.memory_allocated()
    graph, ones = capture(lambda: torch.ones(3, device="mtia"))
    graph.reset()
    graph.reset()
    del graph, ones
    gc.collect()
    assert torch.mtia.memory_allocated() == before
    graph, ones = capture(lambda: torch.ones(3, device="mtia"))
    graph.replay()
    assert ones.tolist() == [1, 1, 1]


def test_a_graph_that_is_dropped_in_its_capture_gives_the_stream_back() -> None:
    x = torch.zeros(1, device="mtia")
    graph = torch.mtia.MTIAGraph()
    graph.capture_begin((0, 0))
    x.add_(1)
    del graph
    gc.collect()
    assert not is_capturing()
    x.add_(5)
    assert x.item() == 5


def test_threads_capture_on_streams_of_their_own() -> None:
    def work(number: int) -> float:
        x = torch.zeros(100, device="mtia")
        stream = torch.mtia.Stream()
        stream.wait_stream(torch.mtia.current_stream())
        with torch.mtia.stream(stream):
            for _ in range(5):
                graph = torch.accelerator.Graph()
                graph.capture_begin()
                y = x + number
                x.copy_(y)
                graph.capture_end()
                for _ in range(4):
                    graph.replay()
                stream.synchronize()
                del graph, y
        return float(x[0].item())

    torch.mtia.synchronize()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(1, 5))) == [20.0 * number for number in range(1, 5)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("devices", ["1", "3"])
def test_a_process_may_end_in_any_state_of_a_graph(run_script: RunScript, devices: str) -> None:
    script = """
        import torch
        x = torch.zeros(2**20, device="mtia")
        replayed = torch.mtia.MTIAGraph()
        with torch.mtia.graph(replayed):
            x.add_(1)
        for _ in range(10):
            replayed.replay()
        capturing = torch.mtia.MTIAGraph()
        capturing.capture_begin((0, 0))
        x.add_(1)
        print("end")
    """
    assert run_script(script, TORCH_MTIA_DEVICES=devices).output() == "end\n"


def test_a_forked_child_may_drop_its_parents_graphs(run_script: RunScript) -> None:
    script = """
        import os
        import torch
        x = torch.zeros(4, device="mtia")
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph):
            x.add_(1)
        child = os.fork()
        if child == 0:
            del graph
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        graph.replay()
        print(x[0].item())
    """
    assert run_script(script).output() == "1.0\n"
