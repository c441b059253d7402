"""Ranks that die, do not come, call something else, or leave: who is left knows, and the device goes on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group, _set_pg_timeout

from torch_mtia.backend import device_type
from torch_mtia.ranks import RankError, Ranks

if TYPE_CHECKING:
    from tests.conftest import RunScript

SIZE = 3
D = device_type()


@contextlib.contextmanager
def raises(*words: str) -> Iterator[None]:
    """A DistBackendError that says this, and a device that works afterwards."""
    with pytest.raises(dist.DistBackendError) as error:
        yield
    for word in words:
        assert word in str(error.value)
    assert (torch.ones(3, device=D) + 1).tolist() == [2.0] * 3


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    dist.all_reduce(tensor, group=group)
    torch.accelerator.synchronize()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """For one test: afterwards the group may be of no use."""
    with Ranks(SIZE, "mtia") as processes:
        yield processes


def fails_on_the_last(ranks: Ranks, function: Callable[..., object]) -> None:
    with pytest.raises(RankError) as error:
        ranks.run(function)
    assert str(error.value).splitlines()[0] == f"no answer of rank {SIZE - 1}"  # the others' assertions hold


def the_last_is_killed(rank: int) -> None:
    large = torch.ones(64 << 20, device=D)
    all_reduce(large)
    if rank == SIZE - 1:
        works = [dist.all_reduce(large, async_op=True) for _ in range(3)]
        while not works[0].is_completed():
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    with raises("c10d::allreduce, number ", f"on rank {rank} of {SIZE}", f"rank {SIZE - 1}"):
        for _ in range(4):
            all_reduce(large)
    with raises(f"rank {SIZE - 1}"):
        all_reduce(large)


@pytest.mark.wide
def test_a_rank_that_is_killed_in_a_collective_is_named(ranks: Ranks) -> None:
    fails_on_the_last(ranks, the_last_is_killed)


def the_last_exits(rank: int) -> None:
    if rank == SIZE - 1:
        os._exit(0)
    with raises(f"the process of rank {SIZE - 1} has ended"):
        all_reduce(torch.ones(3, device=D))


@pytest.mark.wide
def test_a_rank_that_exits_is_named(ranks: Ranks) -> None:
    fails_on_the_last(ranks, the_last_exits)


def the_last_does_not_come(rank: int) -> None:
    group = dist.new_group(timeout=timedelta(milliseconds=300))
    if rank != SIZE - 1:
        with raises(f"missing: rank {SIZE - 1}"):
            all_reduce(torch.ones(3, device=D), group)
    dist.barrier()  # other groups go on


def test_a_rank_that_does_not_come_in_time_is_named(ranks: Ranks) -> None:
    ranks.run(the_last_does_not_come)


def the_last_has_a_tensor_of_the_cpu(rank: int) -> None:
    """Those who call first are in their calls, or have been, when the others look for them."""
    last = rank == SIZE - 1
    x, y = torch.ones(3, device="cpu" if last else D), torch.ones(3)
    others = "; rank 0: all_reduce SUM of Float (call 2); rank 1: all_reduce SUM of Float (call 2)"
    for last_is_first in (True, False):
        group = dist.new_group(timeout=timedelta(seconds=20))
        for device in ("cpu", D):
            all_reduce(y.to(device), group)
        _set_pg_timeout(timedelta(milliseconds=300), group)
        if last is last_is_first:
            with raises("missing: "):
                all_reduce(x, group)
        dist.barrier()
        if last is not last_is_first:
            waits = others if last else f"; rank {SIZE - 1}: all_reduce SUM of Float (call 2)"
            with raises(
                f". This rank has called all_reduce of Float for tensors of {x.device.type}; meanwhile ranks wait for "
                f"it in calls for tensors of {D if last else 'cpu'}{waits}"
            ):
                all_reduce(x, group)
        dist.barrier()


def test_a_timeout_names_the_calls_with_tensors_of_the_cpu_and_of_the_device(ranks: Ranks) -> None:
    ranks.run(the_last_has_a_tensor_of_the_cpu)


def one_call_has_a_timeout(rank: int) -> None:
    options = dist.AllreduceOptions()
    options.timeout = timedelta(milliseconds=300)
    group = dist.new_group()
    if rank != SIZE - 1:
        with raises("within the timeout of 300 ms"):
            group.allreduce([torch.ones(3, device=D)], options)
            torch.accelerator.synchronize()
    dist.barrier()


@pytest.mark.wide
def test_a_call_may_have_a_timeout_of_its_own(ranks: Ranks) -> None:
    ranks.run(one_call_has_a_timeout)


def has_time_for_ever(_: int) -> None:
    group = dist.new_group(timeout=timedelta(days=106_945))
    for device in (D, "cpu"):
        x = torch.ones(3, device=device)
        dist.all_reduce(x, group=group, async_op=True).wait(timedelta(days=106_945))
        assert x.tolist() == [SIZE] * 3


def test_a_timeout_may_be_longer_than_the_clock_runs(ranks: Ranks) -> None:
    ranks.run(has_time_for_ever)


def is_told_a_rank_that_is_not_there(_: int) -> None:
    for device in (D, "cpu"):
        x = [torch.ones(3, device=device)]
        for number in (-1, SIZE):
            expected = f"to be a rank of the group, below {SIZE}, got {number}"
            with pytest.raises(ValueError, match=f"the destination {expected}"):
                dist.group.WORLD.send(x, number, 0)  # type: ignore[union-attr]
            with pytest.raises(ValueError, match=f"the source {expected}"):
                dist.group.WORLD.recv(x, number, 0)  # type: ignore[union-attr]


def test_a_message_to_a_rank_that_is_not_there_is_refused(ranks: Ranks) -> None:
    ranks.run(is_told_a_rank_that_is_not_there)


def calls_do_not_fit(rank: int) -> None:
    last = rank == SIZE - 1
    x = torch.ones(10, device=D)
    with raises("disagree on sizes"):
        all_reduce(torch.ones(11 if last else 10, device=D))
    with raises(f"rank {SIZE - 1}: all_reduce SUM of Int", "rank 0: all_reduce SUM of Float"):
        all_reduce(x.int() if last else x)
    with raises(f"rank {SIZE - 1}: all_reduce MAX of Float"):
        dist.all_reduce(x, dist.ReduceOp.MAX if last else dist.ReduceOp.SUM)
        torch.accelerator.synchronize()
    with raises(f"rank {SIZE - 1}: broadcast of Float with root 0"):
        if last:
            dist.broadcast(x, 0)
            torch.accelerator.synchronize()
        else:
            all_reduce(x)
    with raises("broadcast of Float with root 1"):
        dist.broadcast(x, 1 if last else 0)
        torch.accelerator.synchronize()
    y = torch.zeros(10 * SIZE, device=D)
    with raises("disagree on sizes"):
        dist.all_gather_into_tensor(y[: 9 * SIZE] if last else y, x[:9] if last else x)
        torch.accelerator.synchronize()
    with raises("disagree on sizes"):
        dist.reduce_scatter_tensor(x[:9] if last else x, y[: 9 * SIZE] if last else y)
        torch.accelerator.synchronize()
    with raises(f"disagree on sizes: rank {SIZE - 1} gives 8 bytes to rank 0, which expects 12"):
        dist.all_to_all_single(y[:9], x[:9], [3, 3, 3], [2, 3, 4] if last else [3, 3, 3])
        torch.accelerator.synchronize()
    assert y.tolist() == [0.0] * 10 * SIZE
    assert x.tolist() == [1.0] * 10
    all_reduce(x)
    assert x.tolist() == [float(SIZE)] * 10


@pytest.mark.parametrize("machines", ["aaa", "aab", "abc"])  # of the ranks
def test_calls_that_do_not_fit_raise_on_all_ranks_and_write_nothing(machines: str) -> None:
    with Ranks(SIZE, "mtia", environ=[{"TORCH_MTIA_MACHINE": machine} for machine in machines]) as ranks:
        ranks.run(calls_do_not_fit)


def is_called_wrongly(_: int) -> None:
    for device in (D, "cpu"):
        x = torch.ones(6, device=device)
        with pytest.raises(ValueError, match=f"expected {SIZE} times the 6 elements of one rank, got 7"):
            dist.all_gather_into_tensor(torch.empty(7, device=device), x)
        with pytest.raises(ValueError, match=f"expected {SIZE} times the 5 elements of one rank, got 6"):
            dist.reduce_scatter_tensor(torch.empty(5, device=device), x)
        integers = [torch.empty(6, dtype=torch.int32, device=device) for _ in range(SIZE)]
        with pytest.raises(TypeError, match="the tensors of a collective have one dtype, got Int and Float"):
            dist.all_gather_into_tensor(torch.cat(integers), x)
        group = dist.distributed_c10d._get_default_group()
        with pytest.raises(TypeError, match="the tensors of a collective have one dtype, got Int and Float"):
            group.alltoall(integers, [x] * SIZE)
        with pytest.raises(TypeError, match="the tensors of a collective have one dtype, got Int and Float"):
            group.allgather_coalesced([[each] for each in integers], [x])
        with pytest.raises(ValueError, match=f"expected a tensor for each of {SIZE} ranks, got 1"):
            dist.all_gather([torch.empty_like(x)], x)
        with pytest.raises(ValueError, match="expected sizes that add up to the first dimension, 6, got 5"):
            dist.all_to_all_single(torch.empty_like(x), x, [2] * SIZE, [5, *[0] * (SIZE - 1)])
        with pytest.raises(ValueError, match=r"expected sizes of 0 or more, got \[-1, 7, 0\]"):
            dist.all_to_all_single(torch.empty_like(x), x, [2] * SIZE, [-1, 7, 0])
        dist.all_reduce(x)
        assert x.tolist() == [float(SIZE)] * 6


def test_bad_arguments_are_refused_at_the_call(ranks: Ranks) -> None:
    ranks.run(is_called_wrongly)


def one_aborts(rank: int) -> None:
    group = dist.new_group()
    if rank == 0:
        dist.all_reduce(torch.ones(3, device=D), group=group)  # nobody else comes
        _abort_process_group(group)
        with raises("aborted"):
            torch.accelerator.synchronize()
    dist.barrier()


@pytest.mark.wide
def test_a_group_is_aborted_with_work_pending(ranks: Ranks) -> None:
    ranks.run(one_aborts)


def one_aborts_after_a_failure(rank: int) -> None:
    last = rank == SIZE - 1
    refused, failed = dist.new_group(), dist.new_group()
    if last:
        x = torch.ones(3, device=D)
        with pytest.raises(ValueError, match="got 1"):
            dist.all_gather([torch.empty_like(x)], x, group=refused)  # the others do not know
        _abort_process_group(refused)
    else:
        reason = f"c10d::allgather: expected a tensor for each of {SIZE} ranks, got 1"
        with raises(f"rank {SIZE - 1} has given up: aborted; its first failure: {reason}"):
            all_reduce(torch.ones(3, device=D), refused)
    with raises("the ranks have called different collectives"):
        dist.all_reduce(torch.ones(3, device=D), dist.ReduceOp.MAX if last else dist.ReduceOp.SUM, group=failed)
        torch.accelerator.synchronize()
    if last:
        _abort_process_group(failed)
    else:
        reason = f"its first failure: c10d::allreduce, number 1 of its group, on rank {SIZE - 1} of {SIZE}: "
        with raises("aborted; ", reason, "called different collectives"):
            all_reduce(torch.ones(3, device=D), failed)
    dist.barrier()


def test_who_waits_for_a_rank_that_gives_up_gets_its_first_failure(ranks: Ranks) -> None:
    ranks.run(one_aborts_after_a_failure)


def one_leaves(rank: int) -> None:
    group = dist.new_group()
    if rank == 0:
        dist.all_reduce(torch.ones(3, device=D), group=group)
        dist.destroy_process_group(group)
        with raises("aborted"):
            torch.accelerator.synchronize()
    dist.barrier()


def test_a_group_is_left_with_work_pending(ranks: Ranks) -> None:
    ranks.run(one_leaves)


def all_leave_while_work_is_queued(_: int) -> None:
    group, tensor = dist.new_group(), torch.ones(1 << 20, device=D)
    for _ in range(20):
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    dist.destroy_process_group(group)
    assert tensor.sum().item() == 1 << 20


@pytest.mark.wide
def test_what_is_queued_ends_before_a_group_does(ranks: Ranks) -> None:
    ranks.run(all_leave_while_work_is_queued)


def forks(_: int) -> None:
    dist.all_reduce(torch.ones(3, device=D))
    dist.all_reduce(torch.ones(3))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = []
        for device in (D, "cpu"):
            try:
                dist.all_reduce(torch.ones(3, device=device))
            except RuntimeError as error:
                words.append(str(error))
        os.write(writer, "\n".join(words).encode())
        dist.destroy_process_group()
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    of_the_device, of_the_host = os.read(reader, 1 << 16).decode().split("\n")[:2]
    assert "forked subprocess" in of_the_device
    assert "the group belongs to the process that was forked" in of_the_host
    dist.barrier()
    dist.all_reduce(torch.ones(3))


@pytest.mark.wide
def test_a_forked_process_is_told_that_it_has_no_group(ranks: Ranks) -> None:
    ranks.run(forks)


EXIT = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group(init_method="file://" + os.environ["STORE"], rank=rank, world_size=2)
x = torch.ones(3, device=torch.accelerator.current_accelerator())
dist.all_reduce(x)
assert x.tolist() == [2.0] * 3
if rank == 0:
    dist.all_reduce(x, async_op=True)  # the other does not come
    dist.all_reduce(torch.ones(3), async_op=True)
"""


def test_processes_exit_without_leaving_their_group(tmp_path: Path, run_script: RunScript) -> None:
    def run(rank: int) -> int:
        return run_script(EXIT, RANK=str(rank), STORE=str(tmp_path / "store")).returncode

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(run, range(2))) == [0, 0]
