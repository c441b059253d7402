"""A forked process may drop what it inherits and use the CPU; the device refuses there, and its parent goes on."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.every_kind import EVERY_KIND

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
