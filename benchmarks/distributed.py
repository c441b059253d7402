"""Collectives on the device against gloo on CPU tensors: the same processes, on this machine, interleaved.

    python benchmarks/distributed.py
    python benchmarks/distributed.py --cases 'all_reduce' --samples 9 --json distributed.json

Each rank has one thread. If there are more ranks than cores, the target is gloo's speed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from timing import (
    AS_FAST,
    DEVICE,
    MEBIBYTE,
    Case,
    Group,
    Row,
    Side,
    Target,
    add_row,
    arguments,
    chosen,
    describe,
    environment,
    finish,
    group_results,
    print_about,
    print_list,
)

from torch_mtia.ranks import Ranks
from torch_mtia.streams import launch_host_function

KIBIBYTE = 2**10
SIZES = {"1K": KIBIBYTE, "16K": 16 * KIBIBYTE, "256K": 256 * KIBIBYTE, "4M": 4 * MEBIBYTE}
LARGE_SIZES = {"64M": 64 * MEBIBYTE, "256M": 256 * MEBIBYTE}
CORES = len(os.sched_getaffinity(0))
GLOO = "gloo on CPU tensors"
GROUPS = {ranks: Group(f"collectives of {ranks} ranks", GLOO) for ranks in (2, 4)}
ASYNCHRONY_GROUP = Group("asynchrony of collectives", "", about="Two ranks.")


@dataclasses.dataclass(frozen=True)
class Operands:
    """The tensors of one rank. `whole` has the size of the case: all_reduce and broadcast use it alone, all_gather
    writes it, and the others read it."""

    whole: torch.Tensor
    shard: torch.Tensor


def operands(device: str, size: int, rank: int, ranks: int) -> Operands:
    """Small integers: the sums of both sides are exact."""
    count = size // 4 // ranks * ranks
    whole = (torch.arange(count, dtype=torch.float32) % 7 + rank).to(device)
    return Operands(whole, whole[: count // ranks].clone())


def all_reduce(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    dist.all_reduce(it.whole, group=group)  # repeated until the sums are infinite, which takes no longer
    return it.whole


def reduce_scatter(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    dist.reduce_scatter_tensor(it.shard, it.whole, group=group)
    return it.shard


def all_gather(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    dist.all_gather_into_tensor(it.whole, it.shard, group=group)
    return it.whole


def broadcast(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    dist.broadcast(it.whole, 0, group=group)
    return it.whole


def all_to_all(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    result = torch.empty_like(it.whole)
    dist.all_to_all_single(result, it.whole, group=group)
    return result


# The function, and the least ratios for sizes up to 4 MiB and above.
Collective = Callable[[dist.ProcessGroup, Operands], torch.Tensor]
COLLECTIVES: dict[str, tuple[Collective, float, float]] = {
    "all_reduce": (all_reduce, 5, 3),
    "reduce_scatter": (reduce_scatter, 5, 5),
    "all_gather": (all_gather, 4, 2.5),
    "broadcast": (broadcast, 4, 2.5),
    "all_to_all": (all_to_all, 4, 2.5),
}


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A case that all ranks run."""

    collective: str
    size: int


@functools.cache
def gloo_group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group


def sides(rank: int, case: Exchange) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    collective, ranks = COLLECTIVES[case.collective][0], dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    on_device, on_cpu = (operands(device, case.size, rank, ranks) for device in (DEVICE, "cpu"))

    def on_mtia() -> torch.Tensor:
        result = collective(group, on_device)
        torch.accelerator.synchronize()
        return result

    return on_mtia, lambda: collective(gloo_group(), on_cpu)


def sample(run: Callable[[], object], repetitions: int) -> float:
    """Microseconds of one run. All ranks begin together."""
    dist.barrier(gloo_group())
    run()
    start = time.perf_counter()
    for _ in range(repetitions):
        run()
    return (time.perf_counter() - start) / repetitions * 1e6


def measure(rank: int, case: Exchange, samples: int) -> tuple[list[float], list[float]]:
    both = sides(rank, case)
    mtia, baseline = (run().cpu() for run in both)
    torch.testing.assert_close(mtia, baseline, rtol=0, atol=0)
    repetitions = max(1, min(50, 8 * MEBIBYTE // case.size))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(samples):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            times[side].append(sample(both[side], repetitions))
    return times


# Asynchrony: there is no baseline, and no idle core is needed.


def queue(seconds: float) -> None:
    """Work that takes so long and needs no core."""
    launch_host_function(torch.accelerator.current_stream(), lambda: time.sleep(seconds))


def call_after_work(_: int) -> float:
    """Microseconds until a call returns whose stream has a second of work queued."""
    tensor = torch.ones(MEBIBYTE, device=DEVICE)
    dist.all_reduce(tensor)
    torch.accelerator.synchronize()
    queue(1.0)
    start = time.perf_counter()
    work = dist.all_reduce(tensor, async_op=True)
    elapsed = time.perf_counter() - start
    assert work is not None
    work.wait()
    torch.accelerator.synchronize()
    return elapsed * 1e6


def late_rank(rank: int) -> float:
    """Microseconds of a collective whose other rank is 300 ms late, while this rank has 300 ms of other work."""
    tensor = torch.ones(MEBIBYTE, device=DEVICE)
    dist.all_reduce(tensor)
    torch.accelerator.synchronize()
    dist.barrier(gloo_group())
    start = time.perf_counter()
    if rank != 0:
        time.sleep(0.3)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        queue(0.3)
    assert work is not None
    work.wait()
    torch.accelerator.synchronize()
    return (time.perf_counter() - start) * 1e6


def waiting(rank: int) -> float:
    """Microseconds of processor time during five seconds of waiting for the other rank."""
    tensor = torch.ones(MEBIBYTE, device=DEVICE)
    dist.barrier(gloo_group())
    if rank != 0:
        time.sleep(5)
    start = time.process_time()
    dist.all_reduce(tensor)
    torch.accelerator.synchronize()
    return (time.process_time() - start) * 1e6


ASYNCHRONY: dict[str, tuple[Callable[[int], float], float]] = {
    "call with 1 s of work queued": (call_after_work, 200),
    "rank late by 300 ms, 300 ms of other work": (late_rank, 330_000),
    "processor time of 5 s of waiting": (waiting, 200_000),
}


def target_of(collective: str, size: int, ranks: int) -> Target:
    _, small, large = COLLECTIVES[collective]
    if ranks > CORES:
        return AS_FAST
    return Target(ratio=small if size <= SIZES["4M"] else large)


def unused() -> Side:
    raise NotImplementedError("the ranks measure")


EXCHANGES: dict[Case, tuple[int, Exchange]] = {
    Case(f"{name} {label}, {ranks} ranks", group, unused, unused, target=target_of(name, size, ranks)): (
        ranks,
        Exchange(name, size),
    )
    for ranks, group in GROUPS.items()
    for name in COLLECTIVES
    for label, size in (SIZES | LARGE_SIZES).items()
}
ASYNCHRONOUS: dict[Case, Callable[[int], float]] = {
    Case(name, ASYNCHRONY_GROUP, unused, target=Target(most_us=most_us)): function
    for name, (function, most_us) in ASYNCHRONY.items()
}
CASES = (*EXCHANGES, *ASYNCHRONOUS)


def main() -> int:
    options = arguments(__doc__)
    selected = chosen(CASES, options)
    if options.list:
        print_list(selected)
        return 0
    about = environment(1)
    print_about(about, options.samples)
    rows: dict[Group, list[Row]] = {}
    for ranks in GROUPS:
        with Ranks(ranks, DEVICE) as processes:
            for case in selected:
                if case in EXCHANGES and EXCHANGES[case][0] == ranks:
                    of_ranks = processes.run(measure, EXCHANGES[case][1], options.samples)
                    # The slowest rank counts: the root of a broadcast ends before the others.
                    mtia, baseline = (
                        [max(times) for times in zip(*of_side, strict=True)] for of_side in zip(*of_ranks, strict=True)
                    )
                    add_row(rows, case.group, describe(case, mtia, baseline))
                elif case in ASYNCHRONOUS and ranks == 2:
                    times = [processes.run(ASYNCHRONOUS[case])[0] for _ in range(4)]
                    add_row(rows, case.group, describe(case, times))
    return finish(options.json, __doc__, about, group_results(CASES, rows))


if __name__ == "__main__":
    sys.exit(main())
