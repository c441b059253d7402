"""The device survives what processes and threads do to it: forks, spawns, and ends at any moment."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import torch_mtia

if TYPE_CHECKING:
    from tests.conftest import RunScript

IN_A_FORK = """
import os, torch
x = torch.ones(3, device="mtia")
torch.mtia.synchronize()
pid = os.fork()
if pid == 0:
    try:
        {operation}
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(17)
    os._exit(18)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert (x + 1).tolist() == [2, 2, 2]
raise SystemExit(0 if status == 17 else f"the child ended with {{status}}")
"""


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "operation",
    [
        "__import__('torch_mtia').memory.host_view(x)",
        "torch.ones(3, device='mtia')",
        "x + x",
        "x.erfinv()",
        "x.cpu()",
        "x.fill_(2)",
        "x[0].item()",
        "print(x)",
        "torch.mtia.synchronize()",
        "torch.Stream('mtia')",
        "x.requires_grad_().mul(2).sum().backward()",
        "x.resize_(9)",
        "x.untyped_storage().resize_(100)",
        "x.normal_()",
        "torch.ones(3).to('mtia')",
        "torch.mtia.init()",
        "torch.mtia.current_stream()",
        "torch.mtia.get_device_properties(0)",
        "torch.mtia.get_rng_state()",
        "torch.Event('mtia').record()",
        "torch.accelerator.memory_stats()",
        "torch.accelerator.get_memory_info()",
        "__import__('pickle').dumps(x)",
    ],
)
def test_a_fork_after_first_use_raises_and_names_spawn(run_script: RunScript, operation: str) -> None:
    finished = run_script(IN_A_FORK.format(operation=operation), timeout=60)
    assert "spawn" in finished.output()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "first_use",
    [
        "torch.empty(3, pin_memory=True)",
        "torch.Stream('mtia')",
        "torch.mtia.get_device_properties(0)",
        "torch.mtia.get_device_capability(0)",
    ],
)
def test_a_forked_process_knows_of_any_first_use(run_script: RunScript, first_use: str) -> None:
    finished = run_script(
        f"""
        import os, torch

        x = {first_use}
        if (pid := os.fork()) == 0:
            assert torch.mtia._is_in_bad_fork()
            assert torch.mtia.device_count() == 1
            try:
                torch.ones(1, device="mtia")
            except RuntimeError as error:
                assert "spawn" in str(error)
                os._exit(0)
            os._exit(1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    finished.output()


def test_a_forked_process_may_use_the_cpu_and_end(run_script: RunScript) -> None:
    finished = run_script(
        """
        import multiprocessing, torch

        x = torch.ones(2**20, device="mtia")

        def work(queue):
            assert torch.mtia._is_in_bad_fork()
            torch.manual_seed(1)
            queue.put((torch.ones(3) + 1).tolist())

        for _ in range(20):
            x = x * 1  # in flight while the process forks
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=work, args=(queue,))
        child.start()
        assert queue.get(timeout=60) == [2, 2, 2]
        child.join()
        assert child.exitcode == 0, child.exitcode
        assert x[-1].item() == 1
        """
    )
    finished.output()


def test_data_loader_workers_may_be_forked_after_first_use(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        x = torch.ones(4, device="mtia")
        data = TensorDataset(torch.arange(32.))
        loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
        assert sum((batch.to("mtia") * x).sum().item() for batch, in loader) == 496
        """
    )
    finished.output()


def test_spawned_processes_use_the_device(run_script: RunScript) -> None:
    finished = run_script(
        """
        import multiprocessing, torch

        def work(queue):
            queue.put((torch.ones(3, device="mtia") + 1).tolist())

        if __name__ == "__main__":
            torch.ones(3, device="mtia")
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            assert queue.get(timeout=60) == [2, 2, 2]
            child.join()
            assert child.exitcode == 0
        """
    )
    finished.output()


def test_what_needs_no_device_works_in_a_fork(run_script: RunScript) -> None:
    finished = run_script(
        """
        import os, torch
        x = torch.ones(4, device="mtia")
        pid = os.fork()
        if pid == 0:
            assert torch.mtia._is_in_bad_fork()
            assert torch.mtia.device_count() == 1 and torch.mtia.is_available()
            assert x.view(2, 2).shape == (2, 2) and x.device.index == 0
            torch.mtia.manual_seed(1)
            torch.mtia.empty_cache()
            del x
            os._exit(0)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    finished.output()


def test_tensors_sent_to_another_process_arrive(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        import torch.multiprocessing as mp

        def work(argument, inbox, outbox):
            assert argument.tolist() == [5] * 7
            whole, part, parameter, empty, transposed, nested = inbox.get()
            assert whole.device == part.device == torch.device("mtia", 0)
            assert transposed.stride() == (1, 4) and empty.shape == (0, 3)
            assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad
            assert nested["bf16"].dtype == torch.bfloat16
            whole.add_(1)
            assert part.tolist() == [1, 2, 3], "tensors of one message share their storage"
            outbox.put(whole.sum())

        if __name__ == "__main__":
            mp.set_start_method("spawn")
            inbox, outbox = mp.Queue(), mp.Queue()
            child = mp.Process(target=work, args=(torch.full((7,), 5.0, device="mtia"), inbox, outbox))
            child.start()
            whole = torch.arange(12.0, device="mtia").view(3, 4)
            parameter = torch.nn.Parameter(torch.ones(2, device="mtia"))
            nested = {"bf16": torch.ones(2, dtype=torch.bfloat16, device="mtia")}
            inbox.put((whole, whole[0, :3], parameter, torch.empty(0, 3, device="mtia"), whole.t(), nested))
            assert outbox.get(timeout=100).item() == 78
            child.join()
            assert child.exitcode == 0
            assert whole.sum().item() == 66, "the receiver has a copy"
        """
    )
    finished.output()


@pytest.mark.wide
def test_a_tensor_for_a_device_that_the_receiver_lacks_raises_there(run_script: RunScript) -> None:
    finished = run_script(
        """
        import os
        import torch
        import torch.multiprocessing as mp

        def work(inbox, outbox):
            try:
                inbox.get()
            except RuntimeError as error:
                outbox.put(str(error))

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            inbox, outbox = context.Queue(), context.Queue()
            os.environ["TORCH_MTIA_DEVICES"] = "1"
            child = context.Process(target=work, args=(inbox, outbox))
            child.start()
            inbox.put(torch.ones(3, device="mtia:1"))
            assert "mtia:1 does not exist" in outbox.get(timeout=100)
            child.join()
        """,
        TORCH_MTIA_DEVICES="2",
    )
    finished.output()


IN_FLIGHT = """
import os, sys, threading, torch
x = torch.ones(2**24, device="mtia")
y = torch.ones(2**22, device="mtia", requires_grad=True)
streams = [torch.Stream("mtia") for _ in range(2)]

def submit():
    for _ in range(100):
        for stream in streams:
            with torch.mtia.stream(stream):
                x.mul_(1)
"""

ENDS = {
    "end": ("submit()", 0),
    "exit": ("submit(); sys.exit(3)", 3),
    "exception": ("submit(); raise KeyError", 1),
    "os._exit": ("submit(); os._exit(4)", 4),
    "backward": ("(y * 2).relu().sum().backward(); submit()", 0),
    "daemon thread": (
        # A daemon that is inside PyTorch when the interpreter ends aborts the process on any device: this one waits.
        "submitted = threading.Event()\n"
        "def work(): (y * 2).sum().backward(); submit(); submitted.set(); threading.Event().wait()\n"
        "threading.Thread(target=work, daemon=True).start(); submitted.wait()",
        0,
    ),
    "thread": ("threading.Thread(target=submit).start()", 0),
    "exit in a thread": ("threading.Thread(target=lambda: (submit(), sys.exit(5))).start()", 0),
    "atexit": ("import atexit; atexit.register(submit)", 0),
    "tensor in a module": ("sys.kept = x; submit()", 0),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("end", ENDS)
def test_a_process_may_end_with_work_in_flight(run_script: RunScript, end: str) -> None:
    statement, status = ENDS[end]
    finished = run_script(f"{IN_FLIGHT}\n{statement}")
    assert finished.returncode == status, finished.stderr
    if status == 0:
        assert finished.stderr == ""


def test_a_process_may_end_with_no_memory_left(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch

        torch.ones(2, device="mtia", requires_grad=True).relu().sum().backward()
        held, size = [], 1 << 24
        while size >= 512:
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device="mtia"))
            except torch.OutOfMemoryError:
                size //= 2
        """,
        TORCH_MTIA_MEMORY="64M",
    )
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moment", ["submitting", "waiting", "reading", "backward"])
def test_an_interrupt_ends_the_process_whatever_it_was_doing(run_script: RunScript, moment: str) -> None:
    work = {
        "submitting": "x[:100].mul_(1)",
        "waiting": "submit(); torch.mtia.synchronize()",
        "reading": "submit(); x[0].item()",
        "backward": "(y * 2).relu().sum().backward()",
    }[moment]
    for _ in range(2):
        finished = run_script(
            f"""
            import signal
            {textwrap.indent(IN_FLIGHT, " " * 12).strip()}

            def interrupt():
                started.wait()
                os.kill(os.getpid(), signal.SIGINT)

            started = threading.Event()
            threading.Thread(target=interrupt).start()
            for i in range(10**9):
                if i == 3:
                    started.set()
                {work}
            """
        )
        assert finished.returncode == -2, finished.stderr
        assert "KeyboardInterrupt" in finished.stderr


def test_tensors_may_die_on_any_thread(run_script: RunScript) -> None:
    finished = run_script(
        """
        import threading, torch
        tensors = [torch.ones(2**18, device="mtia") * i for i in range(200)]

        def drop():
            while tensors:
                try:
                    tensors.pop()
                except IndexError:
                    return

        threads = [threading.Thread(target=drop) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert torch.accelerator.memory_allocated() == 0
        """
    )
    finished.output()


def test_files_are_not_taken_for_those_of_waits(run_script: RunScript) -> None:
    """A program may close all files, as daemons do, and others get their numbers."""
    run_script(
        """
        import os, tempfile, torch
        x = torch.ones(1000, 1000, device="mtia")
        (x @ x).sum()
        torch.mtia.synchronize()
        os.closerange(3, 100)
        files = [tempfile.TemporaryFile() for _ in range(10)]
        for _ in range(3):
            (x @ x).sum()
            torch.mtia.synchronize()
        assert [os.fstat(file.fileno()).st_size for file in files] == [0] * 10
        """
    ).output()


def test_other_libraries_find_room_for_variables_of_threads() -> None:
    """The loader has 1.6 KB for those of all libraries that want them at a fixed place, as each OpenMP does."""
    package = Path(torch_mtia.__file__).parent
    taken = {}
    for library in (*package.glob("*.so"), *package.glob("lib/*.so")):
        shown = subprocess.run(["readelf", "-lWd", library], capture_output=True, text=True, check=True).stdout
        if "STATIC_TLS" in shown:
            taken[library.name] = int(re.findall(r"^ +TLS .* (0x[0-9a-f]+) R ", shown, flags=re.MULTILINE)[0], 16)
    assert sum(taken.values()) < 600, taken


EVERY_KIND = """
import faulthandler, gc, os, signal, threading, torch, torch_mtia

device = torch.device("mtia")
x = torch.arange(1000.0, device=device)
side = torch.Stream(device)
held = threading.Event()

def on_side(tensor):
    with torch.mtia.stream(side):
        result = tensor + 1
    tensor.record_stream(side)
    return result

def pinned():
    memory = torch.ones(1000, pin_memory=True)
    memory.to(device, non_blocking=True)
    return memory

def graph():
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph, stream=torch.Stream(device)):
        torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: None)
        (x + torch.ones(1000, device=device)).cos()
    graph.replay()
    return graph

def event():
    event = torch.Event(device, enable_timing=True)
    event.record(side)
    return event

def shared():
    tensor = torch.arange(1000.0, device=device)
    on_side(tensor)
    return tensor

def lazy_clones():
    tensor = torch.arange(1000.0, device=device)
    return [tensor, torch._lazy_clone(tensor)]

def gradient():
    leaf = torch.ones(1000, device=device, requires_grad=True)
    return [leaf, leaf.exp().sum()]

kinds = {
    "tensor": lambda: torch.arange(1000.0, device=device),
    "large tensor": lambda: torch.empty(2**22, device=device),
    "tensor of two streams": shared,
    "pinned memory": pinned,
    "pinned memory without copies": lambda: torch.ones(1000, pin_memory=True),
    "view of pinned memory": lambda: pinned()[10:].numpy(),
    "stream": lambda: torch.Stream(device),
    "event": event,
    "graph": graph,
    "generator": lambda: torch.Generator(device).manual_seed(1),
    "lazy clones": lazy_clones,
    "view of the host": lambda: torch_mtia.memory.host_view(x),
    "gradient": gradient,
    "result of a fallback": lambda: x.nonzero(),
}
"""


def test_a_forked_process_may_drop_objects_of_every_kind(run_script: RunScript) -> None:
    """Whatever other threads were doing: they do what takes the same locks."""
    run_script(
        EVERY_KIND
        + textwrap.dedent(
            """
            objects = {name: make() for name, make in kinds.items()}
            cpu = torch.ones(3)
            is_done = False

            def work(make):
                while not is_done:
                    object = make()
                    torch._C._accelerator_getDeviceStats(0)
                    cpu.is_pinned()
                    del object

            others = {**kinds, "graph": graph().replay}  # during a capture, other threads could not wait
            threads = [threading.Thread(target=work, args=(make,)) for make in (*others.values(), pinned, lazy_clones)]
            for thread in threads: thread.start()
            statuses = []
            for _ in range(30):
                if (pid := os.fork()) == 0:
                    signal.alarm(60)  # ends a child that waits for a thread it does not have
                    while objects:
                        name, object = objects.popitem()
                        os.write(2, f"dropped in a child: {name}\\n".encode())
                        del object
                    assert not cpu.is_pinned()
                    torch.manual_seed(1)
                    assert cpu.sum() == 3
                    torch.mtia.device_count()
                    os._exit(0)
                statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                if statuses[-1] != 0: break
            is_done = True
            for thread in threads: thread.join()
            torch.mtia.synchronize()
            assert statuses == [0] * 30, statuses
            """
        )
    ).output()


def test_objects_of_every_kind_may_outlive_a_pending_error(run_script: RunScript) -> None:
    """Nothing that is dropped raises the error of somebody's work, or hides it."""
    run_script(
        EVERY_KIND
        + textwrap.dedent(
            """
            import pytest

            for name, make in kinds.items():
                object = make()
                torch.mtia.synchronize()
                x[torch.tensor([5000], device=device)]
                print(name, flush=True)
                del object
                gc.collect()
                with pytest.raises(IndexError):
                    torch.mtia.synchronize()
            """
        )
    ).output()


def test_pinned_memory_cannot_be_used_in_a_forked_process(run_script: RunScript) -> None:
    run_script(
        """
        import os, torch

        used = torch.ones(1000, pin_memory=True)
        used.to("mtia", non_blocking=True)
        torch.ones(1000, pin_memory=True)  # and one that is cached
        torch.mtia.synchronize()
        if (pid := os.fork()) == 0:
            assert used.is_pinned() and not torch.ones(3).is_pinned()
            assert used.sum() == 1000
            for function in (
                lambda: torch.ones(1000, pin_memory=True),
                lambda: torch.ones(1000).pin_memory(),
                lambda: used.to("mtia", non_blocking=True),
            ):
                try:
                    function()
                except RuntimeError as error:
                    assert "spawn" in str(error)
                else:
                    os._exit(18)
            torch.accelerator.empty_host_cache()
            del used
            os._exit(17)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
        """
    ).output()


@pytest.mark.parametrize(
    "end", ["x[torch.tensor([9], device='mtia:0')]", "graph.capture_begin((0, 0))", "raise SystemExit"]
)
def test_host_functions_of_all_devices_run_before_the_end(run_script: RunScript, end: str) -> None:
    """An error of one device, and a capture that is left open, do not keep them from it."""
    finished = run_script(
        f"""
        import threading, torch, torch_mtia

        x = torch.zeros(3, device="mtia:0")
        stream = torch.Stream("mtia:1")
        graph = torch.mtia.MTIAGraph()
        ended = threading.Event()
        torch_mtia.launch_host_function(stream, lambda: ended.wait(0.2))
        for _ in range(20):
            torch_mtia.launch_host_function(stream, lambda: threading.Event().wait(0.001))
        torch_mtia.launch_host_function(stream, lambda: print("done", flush=True))
        {end}
        """,
        TORCH_MTIA_DEVICES="2",
    )
    assert finished.output() == "done\n"


def test_an_exit_handler_that_runs_last_is_told_that_host_functions_have_ended(run_script: RunScript) -> None:
    finished = run_script(
        """
        import atexit, torch, torch_mtia

        def late():
            try:
                torch_mtia.launch_host_function(torch.mtia.current_stream(), print)
            except RuntimeError as error:
                print(error)

        atexit.register(late)
        torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: print("done"))
        """
    )
    assert finished.output() == "done\nthe interpreter ends, and no host function can be launched any more\n"


def test_a_wait_ends_when_a_forked_process_has_its_files(run_script: RunScript) -> None:
    """The program closes all files while a thread waits, others get their numbers, and nobody writes into those."""
    run_script(
        """
        import os, tempfile, threading, torch, torch_mtia

        x = torch.ones(3, device="mtia")
        torch.mtia.synchronize()
        go = threading.Event()
        torch_mtia.launch_host_function(torch.mtia.current_stream(), go.wait)
        waits = threading.Thread(target=torch.mtia.synchronize)
        waits.start()
        calls = ("0 ", "7 ", "63 ", "73 ")  # read and poll, of x86-64 and of aarch64
        while not open(f"/proc/self/task/{waits.native_id}/syscall").read().startswith(calls):
            pass
        release, released = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(released)
            os.read(release, 1)
            os._exit(0)
        os.dup2(released, 1000)
        os.closerange(3, 1000)
        files = [tempfile.TemporaryFile() for _ in range(100)]
        go.set()
        waits.join()
        assert [os.fstat(file.fileno()).st_size for file in files] == [0] * 100
        os.close(1000)
        os.waitpid(pid, 0)
        """
    ).output()


def test_values_of_a_fallback_survive_captures_that_other_threads_begin(run_script: RunScript) -> None:
    """The caller waits for its item, whether or not the stream may be waited for."""
    run_script(
        """
        import threading, torch

        stream = torch.Stream("mtia")
        with torch.mtia.stream(stream):
            x = torch.ones(300, 300, device="mtia")
        stream.synchronize()
        is_done = False

        def capture():
            with torch.mtia.stream(stream):
                while not is_done:
                    graph = torch.mtia.MTIAGraph()
                    try:
                        graph.capture_begin((0, 0))
                    except RuntimeError:
                        continue
                    graph.capture_end()

        captures = threading.Thread(target=capture)
        captures.start()
        results = 0
        try:
            with torch.mtia.stream(stream):
                for _ in range(400):
                    try:
                        found = torch.nonzero(x)
                    except RuntimeError as error:
                        assert "captur" in str(error), error
                    else:
                        assert found.shape == (90_000, 2), found.shape
                        results += 1
        finally:
            is_done = True
            captures.join()
        assert results > 0
        """
    ).output()
