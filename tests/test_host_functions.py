"""Host functions run in stream order, on a thread of the driver."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

import torch_mtia

if TYPE_CHECKING:
    from tests.conftest import RunScript


def test_a_host_function_runs_behind_what_was_submitted_before() -> None:
    stream = torch.mtia.current_stream()
    x = torch.zeros(2**20, device="mtia")
    host = torch.zeros(2**20).pin_memory()
    seen = []
    for step in range(5):
        x.add_(1)
        host.copy_(x, non_blocking=True)
        torch_mtia.launch_host_function(stream, lambda step=step: seen.append((step, host[-1].item())))  # type: ignore[misc]
    stream.synchronize()
    assert seen == [(step, step + 1.0) for step in range(5)]


def test_the_caller_does_not_wait_and_later_work_does() -> None:
    stream = torch.mtia.Stream()
    release = threading.Event()
    threads = []

    def wait() -> None:
        release.wait(60)
        threads.append(threading.get_ident())

    torch_mtia.launch_host_function(stream, wait)
    assert not stream.query()
    release.set()
    stream.synchronize()
    assert threads != [threading.get_ident()]


def test_what_it_raises_is_raised_at_the_next_synchronization() -> None:
    stream = torch.mtia.Stream()
    torch_mtia.launch_host_function(stream, lambda: [][1])
    with pytest.raises(RuntimeError, match="a host function raised IndexError: list index out of range"):
        stream.synchronize()
    stream.synchronize()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="stream must be of an mtia device, not of cpu"):
        torch_mtia.launch_host_function(torch.Stream("cpu"), print)
    with pytest.raises(TypeError, match="function must be callable, not int"):
        torch_mtia.launch_host_function(torch.mtia.current_stream(), 3)  # type: ignore[arg-type]


def test_it_is_not_kept_once_it_has_run() -> None:
    class Function:
        def __call__(self) -> None:
            pass

    function = Function()
    kept = weakref.ref(function)
    torch_mtia.launch_host_function(torch.mtia.current_stream(), function)
    del function
    torch.mtia.synchronize()
    gc.collect()
    assert kept() is None


def test_it_may_use_other_streams() -> None:
    stream, other = torch.mtia.Stream(), torch.mtia.Stream()
    results = []

    def work() -> None:
        with torch.mtia.stream(other):
            results.append((torch.ones(3, device="mtia") + 1).sum().item())

    torch_mtia.launch_host_function(stream, work)
    stream.synchronize()
    assert results == [6.0]


def test_those_still_queued_run_before_the_process_ends(run_script: RunScript) -> None:
    script = """
        import torch, torch_mtia
        x = torch.zeros(2**22, device="mtia")
        for _ in range(30):
            x.add_(1)
        torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: print("done", flush=True))
    """
    assert run_script(script).output() == "done\n"


def test_what_a_function_launches_runs_before_the_process_ends(run_script: RunScript) -> None:
    script = """
        import atexit, threading, torch, torch_mtia
        ends = threading.Event()
        numbers = iter(range(20))

        def launch_another():
            ends.wait()
            number = next(numbers, None)
            if number is not None:
                torch_mtia.launch_host_function(torch.mtia.current_stream(number % 2), launch_another)
            else:
                print("done", flush=True)

        torch_mtia.launch_host_function(torch.mtia.current_stream(1), launch_another)
        atexit.register(ends.set)  # registered last, it runs before the handler that waits for functions
    """
    assert run_script(script, TORCH_MTIA_DEVICES="2").output() == "done\n"


def test_a_function_gets_no_memory_that_queued_work_still_reads() -> None:
    stream = torch.mtia.current_stream()
    numel = 2**18
    started, release = threading.Event(), threading.Event()
    kept = []

    def hold() -> None:
        started.set()
        release.wait(60)

    def allocate() -> None:
        kept.append(torch.zeros(numel, device="mtia"))

    x = torch.full((numel,), 7.0, device="mtia")
    torch_mtia.launch_host_function(stream, hold)
    started.wait(60)
    torch_mtia.launch_host_function(stream, allocate)
    y = x + 1
    del x
    release.set()
    stream.synchronize()
    assert y.eq(8).all().item()


def test_a_replayed_function_gets_no_memory_that_work_behind_the_replay_reads() -> None:
    stream = torch.mtia.current_stream()
    numel = 2**18
    started, release = threading.Event(), threading.Event()
    kept = []

    def allocate() -> None:
        kept.append(torch.zeros(numel, device="mtia"))

    def hold() -> None:
        started.set()
        release.wait(60)

    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        torch_mtia.launch_host_function(torch.mtia.current_stream(), allocate)
    x = torch.full((numel,), 7.0, device="mtia")
    torch_mtia.launch_host_function(stream, hold)
    started.wait(60)
    graph.replay()
    y = x + 1
    del x
    release.set()
    stream.synchronize()
    assert y.eq(8).all().item()


def test_memory_that_a_function_frees_waits_for_the_work_of_other_streams() -> None:
    default, side = torch.mtia.current_stream(), torch.mtia.Stream()
    numel = 2**18
    go, freed, release = threading.Event(), threading.Event(), threading.Event()
    x = [torch.full((numel,), 7.0, device="mtia")]
    x[0].record_stream(side)
    side.wait_stream(default)

    def free() -> None:
        go.wait(60)
        x.clear()

    def hold() -> None:
        freed.set()
        release.wait(60)

    torch_mtia.launch_host_function(side, free)
    torch_mtia.launch_host_function(side, hold)
    with torch.mtia.stream(side):
        y = x[0] + 1
    go.set()
    freed.wait(60)
    other = torch.zeros(numel, device="mtia")
    default.synchronize()
    release.set()
    side.synchronize()
    assert y.eq(8).all().item()
    del other


def test_pinned_memory_that_a_function_frees_waits_for_the_copies_behind_it() -> None:
    stream = torch.mtia.Stream()
    numel = 2**16
    go, freed, release = threading.Event(), threading.Event(), threading.Event()
    source = [torch.full((numel,), 7.0).pin_memory()]
    target = torch.zeros(numel, device="mtia")
    stream.wait_stream(torch.mtia.current_stream())

    def free() -> None:
        go.wait(60)
        source.clear()

    def hold() -> None:
        freed.set()
        release.wait(60)

    with torch.mtia.stream(stream):
        torch_mtia.launch_host_function(stream, free)
        torch_mtia.launch_host_function(stream, hold)
        target.copy_(source[0], non_blocking=True)
    go.set()
    freed.wait(60)
    other = torch.zeros(numel, pin_memory=True)
    release.set()
    stream.synchronize()
    assert target.eq(7).all().item()
    assert other.eq(0).all()


def test_waiting_for_the_whole_device_inside_a_function_is_refused() -> None:
    stream, waiting = torch.mtia.Stream(), torch.mtia.Stream()
    go = threading.Event()

    def synchronize() -> None:
        go.wait(60)
        torch.mtia.synchronize()

    torch_mtia.launch_host_function(stream, synchronize)
    waiting.wait_stream(stream)
    go.set()
    with pytest.raises(RuntimeError, match="a host function cannot wait for the whole device"):
        stream.synchronize()


def test_emptying_the_cache_inside_a_function_leaves_what_queued_work_uses() -> None:
    default, side = torch.mtia.current_stream(), torch.mtia.Stream()
    numel = 2**23
    started, go, emptied, release = (threading.Event() for _ in range(4))

    def empty() -> None:
        started.set()
        go.wait(60)
        torch.accelerator.empty_cache()
        emptied.set()

    torch.accelerator.empty_cache()
    with torch.mtia.stream(side):
        y = torch.zeros(numel, device="mtia")
        x = torch.full((numel,), 7.0, device="mtia")
        side.synchronize()
        torch_mtia.launch_host_function(side, lambda: release.wait(60))
        torch.add(x, 1, out=y)
        del x
    idle = torch.zeros(numel, device="mtia")
    default.synchronize()
    del idle
    reserved = torch.accelerator.memory_reserved()
    torch_mtia.launch_host_function(default, empty)
    go.set()
    emptied.wait(60)
    given_back = reserved - torch.accelerator.memory_reserved()
    default.synchronize()
    release.set()
    side.synchronize()
    assert given_back == 4 * numel
    assert y.eq(8).all().item()


OUT_OF_MEMORY = """
    import threading, torch, torch_mtia
    default, side = torch.mtia.current_stream(), torch.mtia.Stream()
    quarter = 2**24
    started, go, raised = threading.Event(), threading.Event(), []

    def function():
        started.set()
        go.wait(60)
        try:
            torch.empty(3 * quarter, device="mtia")
        except torch.OutOfMemoryError:
            raised.append(True)

    cached = torch.zeros(quarter, device="mtia")
    with torch.mtia.stream(side):
        live = torch.zeros(quarter, device="mtia")
    torch.mtia.synchronize()
    torch_mtia.launch_host_function(default, function)
    started.wait()
    del cached
"""


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "entry",
    [
        "torch.empty(3 * quarter, device='mtia')",
        "torch_mtia._C._empty_strided((3 * quarter,), (1,), torch.float32)",
        "torch.UntypedStorage(12 * quarter, device='mtia')",
        "torch.UntypedStorage(4, device='mtia').resize_(12 * quarter)",
        "torch.accelerator.empty_cache()",
    ],
)
def test_a_function_and_its_waiter_may_both_be_out_of_memory(run_script: RunScript, entry: str) -> None:
    script = f"""{OUT_OF_MEMORY}
    threading.Thread(target=lambda: go.set()).start()
    try:
        {entry}
    except torch.OutOfMemoryError:
        pass
    default.synchronize()
    print(raised)
    """
    assert run_script(script, TORCH_MTIA_MEMORY="256M").output() == "[True]\n"


def test_with_launch_blocking_a_call_waits_without_the_interpreter_lock(run_script: RunScript) -> None:
    finished = run_script(
        """
        import threading, torch, torch_mtia
        x = torch.zeros(1 << 20, device="mtia")
        y = torch.zeros(1 << 20)
        stream = torch.mtia.current_stream()
        entered, go = threading.Event(), threading.Event()

        def function():
            entered.set()
            go.wait()

        for call in (lambda: x.__setitem__(slice(1, None), 7), lambda: x.copy_(y), lambda: x.add_(1)):
            entered.clear()
            go.clear()
            thread = threading.Thread(target=torch_mtia.launch_host_function, args=(stream, function))
            thread.start()
            entered.wait()
            go.set()
            call()  # with the interpreter lock, behind the function, which wants it to return
            thread.join()
        print(x[0].item())
        """,
        TORCH_MTIA_LAUNCH_BLOCKING="1",
        timeout=120,
    )
    assert finished.output() == "1.0\n"


def test_a_function_drops_a_lazy_clone_while_another_thread_waits_for_memory_to_copy_it(run_script: RunScript) -> None:
    finished = run_script(
        """
        import threading, torch, torch_mtia
        size = 24 << 20
        side = torch.Stream("mtia")
        for _ in range(10):
            torch.accelerator.empty_cache()
            x = torch.zeros(size, dtype=torch.uint8, device="mtia")
            with torch.mtia.stream(side):
                torch.zeros(size, dtype=torch.uint8, device="mtia")  # and to the cache
            entered, go = threading.Event(), threading.Event()

            def function(clone=torch._lazy_clone(x)):
                entered.set()
                go.wait()

            torch_mtia.launch_host_function(side, function)
            del function
            entered.wait()
            go.set()
            x[1:] = 7  # gets what is cached, behind the function
            torch.mtia.synchronize()
            assert x[:2].tolist() == [0, 7]
        """,
        TORCH_MTIA_MEMORY="64M",
        timeout=120,
    )
    assert finished.output() == ""


@pytest.mark.parametrize("mode", ["", "TORCH_MTIA_DELAY", "TORCH_MTIA_LAUNCH_BLOCKING"])
def test_a_replayed_function_that_waits_does_not_hold_back_a_parallel_branch(run_script: RunScript, mode: str) -> None:
    script = """
        import threading
        import torch, torch_mtia
        stream, side = torch.mtia.current_stream(), torch.mtia.Stream()
        x, y = torch.zeros(1000, device="mtia"), torch.zeros(1000, device="mtia")
        opened, seen = threading.Semaphore(0), []
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph, stream=stream):
            side.wait_stream(stream)
            torch_mtia.launch_host_function(side, opened.acquire)
            with torch.mtia.stream(side):
                y.add_(1)
            torch_mtia.launch_host_function(side, lambda: seen.append("side"))
            x.add_(1)
            torch_mtia.launch_host_function(stream, lambda: seen.append("main"))
            torch_mtia.launch_host_function(stream, opened.release)
            stream.wait_stream(side)
            y.add_(x)
        for _ in range(3):
            graph.replay()
        torch.mtia.synchronize()
        print(seen, x[0].item(), y[0].item())
    """
    finished = run_script(script, timeout=120, **({mode: "1"} if mode else {}))
    assert finished.output().strip() == f"{['main', 'side'] * 3} 3.0 9.0"


def test_a_function_cannot_replay_its_own_graph(run_script: RunScript) -> None:
    script = """
        import torch, torch_mtia
        errors = []
        graph = torch.mtia.MTIAGraph()
        def again():
            try:
                graph.replay()
            except RuntimeError as error:
                errors.append(str(error))
        with torch.mtia.graph(graph):
            torch_mtia.launch_host_function(torch.mtia.current_stream(), again)
        graph.replay()
        torch.mtia.synchronize()
        print(len(errors), "cannot launch the same graph in the stream that it runs in" in errors[0])
    """
    assert run_script(script, timeout=120).output().split() == ["1", "True"]


@pytest.mark.parametrize("death", ["del", "collected"])
@pytest.mark.parametrize("kind", ["mtia", "accelerator"])
def test_a_graph_may_die_in_a_function_that_its_replay_waits_for(run_script: RunScript, death: str, kind: str) -> None:
    script = f"""
        import gc, threading
        import torch, torch_mtia
        one, other = torch.Stream("mtia"), torch.Stream("mtia")
        x = torch.zeros(1000, device="mtia")
        torch.mtia.synchronize()
        with one:
            graph = torch.accelerator.Graph() if "{kind}" == "accelerator" else torch.mtia.MTIAGraph()
            with graph if "{kind}" == "accelerator" else torch.mtia.graph(graph, stream=one):
                x.add_(1)
                y = x * 2
        gc.disable()
        box = [graph]
        del graph
        started, go = threading.Event(), threading.Event()
        def function():
            started.set()
            go.wait()
            if "{death}" == "del":
                box.clear()
            else:
                gc.collect()
        torch_mtia.launch_host_function(other, function)
        started.wait()
        one.wait_stream(other)
        with one:
            box[0].replay()
        if "{death}" == "collected":
            cycle = [box.pop()]
            cycle.append(cycle)
            del cycle
        go.set()
        torch.mtia.synchronize()
        print(x[0].item(), y[0].item())
        del y
        torch.mtia.empty_cache()
        x = x.cpu()
        torch.mtia.empty_cache()
        print(torch.accelerator.memory_reserved())
    """
    assert run_script(script, timeout=120).output().split() == ["1.0", "2.0", "0"]
