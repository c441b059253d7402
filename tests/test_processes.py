"""The device survives what processes and threads do to it: spawns, closed descriptors, and ends at any moment."""

from __future__ import annotations

import pickle
import re
import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import torch_mtia
from tests.every_kind import EVERY_KIND

if TYPE_CHECKING:
    from tests.conftest import RunScript


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
            assert whole.sum().item() == 78, "the receiver has the sender's memory"
        """
    )
    finished.output()


def test_a_message_keeps_its_memory_until_it_is_received(run_script: RunScript) -> None:
    """The sender has dropped the tensor, a process in between passes it on, and both end before it is read."""
    finished = run_script(
        """
        import torch
        import torch.multiprocessing as mp

        def make(outbox):
            outbox.put(torch.arange(1 << 20, device="mtia"))

        def pass_on(inbox, outbox):
            x = inbox.get()
            x.add_(1)
            outbox.put((x, x[5:]))

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            first, second = context.Queue(), context.Queue()
            children = [
                context.Process(target=make, args=(first,)),
                context.Process(target=pass_on, args=(first, second)),
            ]
            for child in children:
                child.start()
            x, part = second.get(timeout=100)
            for child in children:
                child.join()
                assert child.exitcode == 0
            assert torch.equal(x.cpu(), torch.arange(1 << 20) + 1)
            part.zero_()
            assert x.sum().item() == 1 + 2 + 3 + 4 + 5
        """
    )
    finished.output()


def test_memory_outlives_a_sender_that_is_killed(run_script: RunScript) -> None:
    finished = run_script(
        """
        import os, signal, time
        import torch
        import torch.multiprocessing as mp

        def make(outbox, received):
            kept = torch.full((1000,), 3.0, device="mtia")
            outbox.put(kept)
            outbox.put(kept)
            received.wait()
            kept.fill_(4)
            torch.mtia.synchronize()
            outbox.put("written")
            outbox.close()
            outbox.join_thread()
            os.kill(os.getpid(), signal.SIGKILL)

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            queue, received = context.Queue(), context.Event()
            child = context.Process(target=make, args=(queue, received))
            child.start()
            x, y = queue.get(timeout=100), queue.get(timeout=100)
            assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
            assert x.sum().item() == 3000
            received.set()
            assert queue.get(timeout=100) == "written"
            child.join()
            assert child.exitcode == -signal.SIGKILL
            assert y.sum().item() == 4000
        """
    )
    finished.output()


def test_a_message_of_a_process_that_is_gone_raises(run_script: RunScript) -> None:
    finished = run_script(
        """
        import os
        import torch
        import torch.multiprocessing as mp

        def make(connection):
            connection.send(torch.ones(3, device="mtia"))
            os._exit(0)

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            ours, theirs = context.Pipe()
            child = context.Process(target=make, args=(theirs,))
            child.start()
            child.join()
            try:
                ours.recv()
            except RuntimeError as error:
                assert "must not end before the tensor is received" in str(error), error
            else:
                raise AssertionError("received from a process that is gone")
        """
    )
    finished.output()


@pytest.mark.parametrize("meanwhile", ["os.fork() or os._exit(0)", "_C._num_unreceived()", "send(y)"])
def test_a_thread_that_sends_while_host_functions_run_blocks_nobody(run_script: RunScript, meanwhile: str) -> None:
    """A host function needs the interpreter lock, which another thread has. Sending waits for that function."""
    finished = run_script(
        f"""
        import os, threading, time
        from multiprocessing.reduction import ForkingPickler
        import torch, torch.multiprocessing
        import torch_mtia
        from torch_mtia import _C

        send = ForkingPickler.dumps
        x, y = torch.ones(3, device="mtia"), torch.ones(3, device="mtia")
        started, errors = threading.Event(), []

        def function():
            started.set()
            time.sleep(0.5)
            try:
                send(y)
            except RuntimeError as error:
                errors.append(str(error))

        torch_mtia.launch_host_function(torch.mtia.current_stream(), function)
        thread = threading.Thread(target=send, args=(x,))
        thread.start()
        started.wait()
        time.sleep(0.1)
        {meanwhile}
        thread.join()
        assert "a host function cannot wait" in errors[0]
        """
    )
    finished.output()


def test_what_is_sent_moves_once_and_is_not_resized() -> None:
    from multiprocessing.reduction import ForkingPickler

    def sent_to_itself(tensor: torch.Tensor) -> torch.Tensor:
        received: torch.Tensor = pickle.loads(ForkingPickler.dumps(tensor))
        return received

    x = torch.arange(6.0, device="mtia")
    view, lazy = x[2:], x._lazy_clone()
    address = x.data_ptr()
    stream = torch.Stream("mtia")
    with stream:
        for _ in range(500):
            x.add_(0)
        x.add_(1)
    received = sent_to_itself(view)
    assert x.data_ptr() != address
    assert received.data_ptr() == view.data_ptr()
    assert received.tolist() == [3, 4, 5, 6]
    assert lazy.tolist() == [0, 1, 2, 3, 4, 5]
    moved = x.data_ptr()
    assert sent_to_itself(x).data_ptr() == moved == x.data_ptr()
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(1000)
    x.resize_(3)
    del x, view
    received.zero_()
    assert not received.cpu().any()


def test_memory_that_a_graph_may_use_is_not_sent() -> None:
    from multiprocessing.reduction import ForkingPickler

    x = torch.ones(3, device="mtia")
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        x.add_(1)
    with pytest.raises(RuntimeError, match=r"send tensor.clone\(\)"):
        ForkingPickler.dumps(x)
    graph.replay()
    received = pickle.loads(ForkingPickler.dumps(x.clone()))
    assert received.tolist() == [2, 2, 2]


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
@pytest.mark.parametrize("forked", [False])  # some packages clear at exit that there was an interrupt
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
    assert sum(taken.values()) < 640, taken


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
