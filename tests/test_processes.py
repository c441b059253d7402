"""The device survives what processes and threads do to it: forks, spawns, and ends at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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


@pytest.mark.parametrize(
    "operation",
    [
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
    ],
)
def test_a_fork_after_first_use_raises_and_names_spawn(run_script: RunScript, operation: str) -> None:
    finished = run_script(IN_A_FORK.format(operation=operation), timeout=60)
    assert "spawn" in finished.output()


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
        loader = DataLoader(TensorDataset(torch.arange(32.)), batch_size=4, num_workers=2)
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


@pytest.mark.parametrize("end", ENDS)
def test_a_process_may_end_with_work_in_flight(run_script: RunScript, end: str) -> None:
    statement, status = ENDS[end]
    finished = run_script(f"{IN_FLIGHT}\n{statement}")
    assert finished.returncode == status, finished.stderr
    if status == 0:
        assert finished.stderr == ""


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
