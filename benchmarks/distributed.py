"""Collectives on the device against gloo on tensors of the CPU: the same processes, on this machine, in turns.

    python benchmarks/distributed.py
    python benchmarks/distributed.py --cases 'all_reduce' --samples 9 --json distributed.json

Each rank has one thread. Where there are twice as many ranks as processors, the bar is not to be slower than gloo.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from timing import DEVICE, Bar, Case, Side, arguments, cells, describe, environment, line, save

from torch_mtia.ranks import Ranks
from torch_mtia.streams import launch_host_function

KIBIBYTE, MEBIBYTE = 2**10, 2**20
SIZES = {"1K": KIBIBYTE, "16K": 16 * KIBIBYTE, "256K": 256 * KIBIBYTE, "4M": 4 * MEBIBYTE}
LARGE_SIZES = {"64M": 64 * MEBIBYTE, "256M": 256 * MEBIBYTE}
PROCESSORS = len(os.sched_getaffinity(0))
RANKS = (2, 4)


@dataclasses.dataclass(frozen=True)
class Operands:
    """Of one rank: `size` bytes is what all_reduce and broadcast have on each, all_gather writes, the others read."""

    whole: torch.Tensor
    part: torch.Tensor


def operands(device: str, size: int, rank: int, ranks: int) -> Operands:
    """Small whole numbers: each side's sums are exact."""
    count = size // 4 // ranks * ranks
    whole = (torch.arange(count, dtype=torch.float32) % 7 + rank).to(device)
    return Operands(whole, whole[: count // ranks].clone())


def all_reduce(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    dist.all_reduce(it.whole, group=group)  # again and again: until it is infinite, which takes no longer
    return it.whole


def reduce_scatter(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    dist.reduce_scatter_tensor(it.part, it.whole, group=group)
    return it.part


def all_gather(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    dist.all_gather_into_tensor(it.whole, it.part, group=group)
    return it.whole


def broadcast(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    dist.broadcast(it.whole, 0, group=group)
    return it.whole


def all_to_all(group: dist.ProcessGroup, it: Operands) -> torch.Tensor:
    result = torch.empty_like(it.whole)
    dist.all_to_all_single(result, it.whole, group=group)
    return result


# What is called, and the least ratio for sizes up to 4 MiB and above.
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
    ours, peer = (operands(device, case.size, rank, ranks) for device in (DEVICE, "cpu"))

    def run_ours() -> torch.Tensor:
        result = collective(group, ours)
        torch.accelerator.synchronize()
        return result

    return run_ours, lambda: collective(gloo_group(), peer)


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
    ours, peer = (run().cpu() for run in both)
    torch.testing.assert_close(ours, peer, rtol=0, atol=0)
    repetitions = max(1, min(50, 8 * MEBIBYTE // case.size))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(samples):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            times[side].append(sample(both[side], repetitions))
    return times


# Asynchrony: no peer, and no processor to spare is needed.


def queue(seconds: float) -> None:
    """Work that takes so long, and no time of the host or of a processor."""
    launch_host_function(torch.accelerator.current_stream(), lambda: time.sleep(seconds))


def call_behind_work(_: int) -> float:
    """Microseconds until a call returns that has a second of work before it."""
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


def late_peer(rank: int) -> float:
    """Microseconds of a collective, whose peer comes 300 ms late, beside 300 ms of this rank's own work."""
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
    """Microseconds of processor time that five seconds of waiting for a peer take."""
    tensor = torch.ones(MEBIBYTE, device=DEVICE)
    dist.barrier(gloo_group())
    if rank != 0:
        time.sleep(5)
    start = time.process_time()
    dist.all_reduce(tensor)
    torch.accelerator.synchronize()
    return (time.process_time() - start) * 1e6


ASYNCHRONY: dict[str, tuple[Callable[[int], float], float]] = {
    "call behind 1 s of work": (call_behind_work, 200),
    "peer late by 300 ms, 300 ms of own work": (late_peer, 330_000),
    "processor time of 5 s of waiting": (waiting, 200_000),
}


def bar_of(collective: str, size: int, ranks: int) -> Bar:
    _, small, large = COLLECTIVES[collective]
    if ranks > PROCESSORS:
        return Bar(ratio=1.0)
    return Bar(ratio=small if size <= SIZES["4M"] else large)


def unused() -> Side:
    raise NotImplementedError("the ranks measure")


def named_cases(ranks: int) -> list[tuple[Case, Exchange]]:
    result = []
    for collective in COLLECTIVES:
        for label, size in (SIZES | LARGE_SIZES).items():
            name = f"{collective} {label}, {ranks} ranks"
            bar = bar_of(collective, size, ranks)
            result.append((Case(name, unused, unused, peer_name="gloo", bar=bar), Exchange(collective, size)))
    return result


def main() -> int:
    options = arguments(__doc__)
    cases = {ranks: [each for each in named_cases(ranks) if options.cases in each[0].name] for ranks in RANKS}
    asynchrony = {name: case for name, case in ASYNCHRONY.items() if options.cases in name}
    if options.list:
        for case, _ in itertools.chain(*cases.values()):
            print(f"{case.name:38} {case.bar}")
        print("\n".join(asynchrony))
        return 0
    about = environment(1)
    for name, value in about.items():
        print(f"{name}: {value}")
    rows = []
    for ranks, of_size in cases.items():
        with Ranks(ranks, DEVICE) as processes:
            for case, exchange in of_size:
                of_ranks = processes.run(measure, exchange, options.samples)
                # The slowest rank counts: a root that only gives is done before the others.
                ours, peer = (
                    [max(times) for times in zip(*of_side, strict=True)] for of_side in zip(*of_ranks, strict=True)
                )
                rows.append(describe(case, None, ours, peer))
                print(line(cells(rows[-1])), flush=True)
            for name, (function, most_us) in asynchrony.items() if ranks == RANKS[0] else ():
                times = [processes.run(function)[0] for _ in range(4)]
                bar = Bar(most_us=most_us)
                row = describe(Case(name, unused, bar=bar), None, times)
                rows.append(dataclasses.replace(row, bar=str(bar), passed=bar.is_met(row.ours_us, row.ours_us)))
                print(line(cells(rows[-1])), flush=True)
    if options.json is not None:
        save(options.json, __doc__, about, rows)
    return 1 if any(row.passed is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
