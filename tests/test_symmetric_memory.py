"""Symmetric memory: what a rank writes into its own, kernels of the others read."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed._symmetric_memory as symmetric_memory
import triton
import triton.language as tl
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

import torch_mtia
from torch_mtia.backend import device_type
from torch_mtia.ranks import Ranks, StartRanks

RANKS = 3


@pytest.fixture
def ranks(start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia")


def local_device() -> torch.device:
    return torch.device(device_type(), torch.accelerator.current_device_index())


def world() -> Any:
    return dist.group.WORLD


def symmetric(values: torch.Tensor) -> torch.Tensor:
    tensor = symmetric_memory.empty(*values.shape, dtype=values.dtype, device=local_device())
    return tensor.copy_(values)


def reads_and_writes_peers(rank: int) -> None:
    mine = symmetric(torch.full((1000,), float(rank)))
    handle = symmetric_memory.rendezvous(mine, world())
    assert (handle.rank, handle.world_size, handle.buffer_size) == (rank, RANKS, 4000)
    handle.barrier()
    for peer in range(RANKS):
        assert handle.get_buffer(peer, (1000,), torch.float32).tolist() == [float(peer)] * 1000
    handle.barrier()
    ahead = handle.get_buffer((rank + 1) % RANKS, (10,), torch.float32, storage_offset=5)
    ahead.fill_(100.0 + rank)
    handle.barrier()
    assert mine[4:16].tolist() == [rank, *[100.0 + (rank - 1) % RANKS] * 10, rank]
    assert symmetric_memory.rendezvous(mine, world()).buffer_ptrs == handle.buffer_ptrs


def test_peers_read_and_write_it(ranks: Ranks) -> None:
    ranks.run(reads_and_writes_peers)


@triton.jit  # type: ignore[untyped-decorator]
def add(x, y, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, SIZE)
    tl.store(out + offsets, tl.load(x + offsets) + tl.load(y + offsets))


def runs_a_kernel_over_peers(rank: int) -> None:
    mine = symmetric(torch.arange(64.0) * (rank + 1))
    handle = symmetric_memory.rendezvous(mine, world())
    handle.barrier()
    out = torch.empty(64, device=mine.device)
    add[(1,)](mine, handle.get_buffer((rank + 1) % RANKS, (64,), torch.float32), out, SIZE=64)
    handle.barrier()
    assert torch.equal(out.cpu(), torch.arange(64.0) * (rank + 1 + (rank + 1) % RANKS + 1))


def test_triton_kernels_read_it(ranks: Ranks) -> None:
    ranks.run(runs_a_kernel_over_peers)


def leaves_it(_rank: int) -> None:
    mine = symmetric(torch.zeros(64))
    symmetric_memory.rendezvous(mine, world()).barrier()
    out = torch.empty(64, device=mine.device)
    add[(1,)](mine, out, out, SIZE=1 << 20)
    with pytest.raises(RuntimeError, match="outside of live memory"):
        torch.accelerator.synchronize()


@pytest.mark.wide
@pytest.mark.unwatched("the sanitizer reports it in place of the driver")
def test_the_driver_knows_its_bounds() -> None:
    with Ranks(RANKS, "mtia", environ={"TORCH_MTIA_CHECK_BOUNDS": "1"}) as checked:
        checked.run(runs_a_kernel_over_peers)
        checked.run(leaves_it)


def reduces(rank: int, dtype: torch.dtype, count: int) -> None:
    parts = [
        torch.randint(0, 100, (count,), generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(RANKS)
    ]
    wide = torch.float32 if dtype.is_floating_point else torch.int64
    expected = torch.stack([part.to(wide) for part in parts]).sum(0).to(dtype)
    name = world().group_name
    mine = symmetric(parts[rank])
    assert torch.equal(torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", name).cpu(), expected)
    out = torch.empty_like(mine)
    torch.ops.symm_mem.one_shot_all_reduce_out(mine, "sum", name, out)
    assert torch.equal(out.cpu(), expected)
    assert torch.equal(mine.cpu(), parts[rank])
    torch.ops.symm_mem.two_shot_all_reduce_(mine, "sum", name)
    assert torch.equal(mine.cpu(), expected)
    local = parts[rank].to(mine.device)
    assert torch.equal(torch.ops.symm_mem.one_shot_all_reduce_copy(mine, local, "sum", name).cpu(), expected)
    torch.ops.symm_mem.one_shot_all_reduce_copy_out(mine, local, "sum", name, out.zero_())
    assert torch.equal(out.cpu(), expected)
    torch.ops.symm_mem.two_shot_all_reduce_out(mine, "sum", name, out.zero_())
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("count", [1, 2, 1000, 100_003])
def test_it_is_reduced(ranks: Ranks, dtype: torch.dtype, count: int) -> None:
    ranks.run(reduces, dtype, count)


def captures_a_reduction(rank: int) -> None:
    mine = symmetric(torch.full((100,), float(rank)))
    name = world().group_name
    torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", name)
    graph = torch.accelerator.Graph()
    torch.accelerator.synchronize()
    with torch.Stream(mine.device), graph:
        out = torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", name)
    for factor in (1.0, 2.0):
        mine.fill_(factor * rank)
        torch.accelerator.synchronize()
        graph.replay()
        torch.accelerator.synchronize()
        assert out.tolist() == [factor * 3] * 100


def test_a_reduction_is_captured_and_replayed(ranks: Ranks) -> None:
    ranks.run(captures_a_reduction)


def gathers_and_scatters(rank: int) -> None:
    name = world().group_name
    parts = [torch.arange(24.0).view(6, 4) * (peer + 1) for peer in range(RANKS)]
    for own in (symmetric(parts[rank]), parts[rank].to(local_device())):
        gathered = functional.wait_tensor(torch.ops.symm_mem._low_contention_all_gather(own, name))
        assert torch.equal(gathered.cpu(), torch.cat(parts))
        part = functional.wait_tensor(torch.ops.symm_mem._low_contention_reduce_scatter(own, "sum", name))
        assert torch.equal(part.cpu(), sum(parts).chunk(RANKS)[rank])  # type: ignore[union-attr]
    own = symmetric(parts[rank])
    remote = torch.ops.symm_mem.get_remote_tensors(own, name)
    symmetric_memory.rendezvous(own, world()).barrier()
    assert [each.tolist() for each in remote] == [part.tolist() for part in parts]
    symmetric_memory.rendezvous(own, world()).barrier()


def test_it_is_gathered_and_scattered(ranks: Ranks) -> None:
    ranks.run(gathers_and_scatters)


def reduces_activations(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = 2 * functional.all_reduce(torch.relu(x) + 1, "sum", world())
    return result


def multiplies_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gathered: torch.Tensor = functional.all_gather_single(x, 0, world())
    return gathered @ weight


def multiplies_columns(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gathered: torch.Tensor = functional.all_gather_single(x, 1, world())
    return gathered @ weight


def scatters_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = functional.reduce_scatter_single(x @ weight, "sum", 0, world())
    return result


def scatters_columns(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = functional.reduce_scatter_single(x @ weight, "avg", 1, world())
    return result


COMPILED: list[tuple[Callable[..., torch.Tensor], str, list[tuple[int, ...]]]] = [
    (reduces_activations, "one_shot_all_reduce", [(64, 33)]),
    (multiplies_rows, "fused_all_gather_matmul", [(32, 64), (64, 16)]),
    (multiplies_columns, "fused_all_gather_matmul", [(8, 1024), (1024 * RANKS, 16)]),
    (scatters_rows, "fused_matmul_reduce_scatter", [(8 * RANKS, 64), (64, 16)]),
    (scatters_columns, "fused_matmul_reduce_scatter", [(8, 64), (64, 16 * RANKS)]),
]


def compiles(rank: int, index: int) -> None:
    function, operator, shapes = COMPILED[index]
    symmetric_memory.enable_symm_mem_for_group(world().group_name)
    compiled = torch.compile(function)
    generator = torch.Generator().manual_seed(rank)
    with inductor_config.patch({"_collective.auto_select": True, "_micro_pipeline_tp": True}):
        for call in range(4):  # a graph may be captured after the first
            tensors = [torch.randn(shape, generator=generator).to(local_device()) for shape in shapes]
            result, code = run_and_get_code(compiled, *tensors)
            torch.testing.assert_close(result, function(*tensors), rtol=1e-5, atol=1e-4)
            if call == 0:
                assert operator in code[0]


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore:.*enable_symm_mem_for_group:FutureWarning")
@pytest.mark.parametrize("index", range(len(COMPILED)), ids=[function.__name__ for function, *_ in COMPILED])
def test_compiled_code_uses_it(ranks: Ranks, index: int) -> None:
    ranks.run(compiles, index)


def signals_in_a_ring(rank: int) -> None:
    mine = symmetric(torch.zeros(1))
    handle = symmetric_memory.rendezvous(mine, world())
    ahead, behind = (rank + 1) % RANKS, (rank - 1) % RANKS
    if rank != 0:
        handle.wait_signal(behind, channel=3)
    handle.get_buffer(ahead, (1,), torch.float32).copy_(mine + 1)
    handle.put_signal(ahead, channel=3)
    if rank == 0:
        handle.wait_signal(behind, channel=3)
    assert mine.item() == (rank or RANKS)


def test_signals_order_what_streams_do(ranks: Ranks) -> None:
    ranks.run(signals_in_a_ring)


def is_used_wrongly(rank: int) -> None:
    mine = symmetric(torch.zeros(3 + rank))
    with pytest.raises(ValueError, match="one size on all ranks"):
        symmetric_memory.rendezvous(mine, world())
    dist.barrier()
    good = symmetric(torch.zeros(3))
    handle = symmetric_memory.rendezvous(good, world())
    with pytest.raises(ValueError, match="channel"):
        handle.barrier(channel=1 << 20)
    for number in (-1, RANKS):
        expected = f"to be a rank of the group, below {RANKS}, got {number}"
        with pytest.raises(ValueError, match=f"expected src_rank {expected}"):
            handle.wait_signal(number)
        with pytest.raises(ValueError, match=f"expected dst_rank {expected}"):
            handle.put_signal(number)
        with pytest.raises(ValueError, match=f"expected rank {expected}"):
            handle.get_buffer(number, (1,), torch.float32)
        with pytest.raises(ValueError, match=f"expected rank {expected}"):
            handle.get_signal_pad(number)
    with pytest.raises(ValueError, match="expected storage_offset to be 0 or more, got -1"):
        handle.get_buffer(rank, (1,), torch.float32, storage_offset=-1)
    with pytest.raises(ValueError, match="expected storage_offset to be 0 or more, got -1"):
        handle.get_buffer(rank, (1,), torch.float32, -1)
    assert good.tolist() == [0.0] * 3
    with pytest.raises(ValueError, match="by sum"):
        torch.ops.symm_mem.one_shot_all_reduce(good, "max", world().group_name)
    with pytest.raises(torch.OutOfMemoryError, match="the machine leaves"):
        symmetric_memory.empty(1 << 45, device=local_device())
    handle.wait_signal((rank + 1) % RANKS, channel=5, timeout_ms=100)
    with pytest.raises(RuntimeError, match="a rank has not signalled within the timeout of 100 ms"):
        torch.accelerator.synchronize()
    with pytest.raises((ValueError, RuntimeError)):
        torch.ops.symm_mem.one_shot_all_reduce(torch.zeros(3, device=good.device), "sum", world().group_name)


def test_bad_input_is_refused(ranks: Ranks) -> None:
    ranks.run(is_used_wrongly)


def is_freed(_: int) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(5):
        handle = symmetric_memory.rendezvous(symmetric(torch.zeros(1000)), world())
        handle.barrier()
        torch.accelerator.synchronize()
        del handle
    assert descriptors() == before


def test_it_is_freed_with_the_last_tensor(ranks: Ranks) -> None:
    ranks.run(is_freed)


def dies_with_an_error_pending(_: int) -> None:
    memory, index = symmetric(torch.zeros(1000)), torch.tensor([9], device=local_device())
    torch.accelerator.synchronize()
    torch.zeros(3, device=index.device)[index]
    side = torch.Stream(index.device)
    with side:
        torch.zeros(3, device=index.device)[index]
    del memory
    for stream in (torch.accelerator.current_stream(), side):
        with pytest.raises(IndexError):
            stream.synchronize()


def test_it_dies_with_an_error_pending(ranks: Ranks) -> None:
    ranks.run(dies_with_an_error_pending)


def dies_in_a_host_function(_: int) -> None:
    memory = [symmetric(torch.zeros(1000))]
    torch_mtia.launch_host_function(torch.accelerator.current_stream(), memory.clear)
    torch.accelerator.synchronize()
    assert not memory


def test_it_dies_in_a_host_function(ranks: Ranks) -> None:
    ranks.run(dies_in_a_host_function)


def dies_while_work_uses_it(rank: int) -> None:
    go = threading.Event()
    memory = symmetric(torch.full((100_000,), float(rank)))
    handle = symmetric_memory.rendezvous(memory, world())
    handle.barrier()
    results = [torch.empty(100_000, device=memory.device) for _ in range(2)]
    stream = torch.accelerator.current_stream()
    torch_mtia.launch_host_function(stream, lambda: go.wait(20))
    results[0].copy_(memory)
    results[1].copy_(handle.get_buffer((rank + 1) % RANKS, (100_000,), torch.float32))
    del memory, handle  # does not wait
    assert not stream.query()
    go.set()
    assert [result.unique().tolist() for result in results] == [[rank], [(rank + 1) % RANKS]]


def test_it_stays_as_long_as_work_uses_it(ranks: Ranks) -> None:
    ranks.run(dies_while_work_uses_it)


def dies_in_a_forked_child(_: int) -> None:
    memory = symmetric(torch.zeros(1000))
    handle = symmetric_memory.rendezvous(memory, world())
    child = os.fork()
    if child == 0:
        del memory, handle
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    handle.barrier()
    assert memory.sum().item() == 0


def test_it_dies_in_a_forked_child(ranks: Ranks) -> None:
    ranks.run(dies_in_a_forked_child)
