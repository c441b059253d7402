"""The checks of distributed_table.py."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch

from tests.gate_checks.core import DEVICE, Function, raises, with_values


@contextlib.contextmanager
def _group() -> Iterator[Any]:
    """A process group of this process alone."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    from torch_mtia.distributed import BACKEND

    dist.init_process_group(BACKEND, store=HashStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def has_no_default_backend(make_group: Function) -> bool:
    """A group for which nobody has named a backend."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    with with_values(dist.distributed_c10d, _new_process_group_helper=make_group):
        dist.init_process_group(store=HashStore(), rank=0, world_size=1)
    try:
        return dist.get_backend() == "undefined"
    finally:
        dist.destroy_process_group()


def monitors_no_barrier(monitored_barrier: Function) -> bool:
    with _group() as group:
        return raises(monitored_barrier, group)


def has_no_sequence_number(sequence_number: Function) -> bool:
    with _group() as group:
        return raises(sequence_number, group)


def sets_no_timeout(set_timeout: Function) -> bool:
    with _group() as group:
        backend = group._get_backend(torch.device(DEVICE))
        before, other = backend.options._timeout, timedelta(seconds=77)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            set_timeout(other, group)
        try:
            return bool(backend.options._timeout != other)
        finally:
            backend._set_default_timeout(before)


def accepts_any_offset(tensor_of: Function) -> bool:
    from torch.distributed import _symmetric_memory

    with _group() as group:
        memory = _symmetric_memory.empty(8, device=torch.device(DEVICE))
        handle = _symmetric_memory.rendezvous(memory, group)
        return not raises(tensor_of, handle, 0, [1], torch.float32, -1)


def refuses_compression(check_hook: Function) -> bool:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    def throw(kind: type[Exception], message: str) -> None:
        raise kind(message)

    # In wheels for CUDA the libraries are there, which is all that is asked.
    with with_values(torch.version, cuda=None):
        return raises(check_hook, SimpleNamespace(device_type=DEVICE, _log_and_throw=throw), bf16_compress_hook)


def synchronizes_no_batch_norm(forward: Function) -> bool:
    with _group():
        return raises(forward, torch.nn.SyncBatchNorm(2).to(DEVICE), torch.ones(3, 2, device=DEVICE))


# What the copies between devices of one process take, all to the first device. Those of one tensor leave one that is
# there already, of any kind of device.
ARGUMENTS_OF_COPIES: dict[str, Callable[[torch.Tensor], tuple[Any, ...]]] = {
    "_broadcast": lambda x: (x.cpu(), [0]),
    "_broadcast_out": lambda x: (x, [x.clone()]),
    "_broadcast_coalesced": lambda x: ([x], [0], 1),
    "_scatter": lambda x: (x.cpu(), [0], None, 0, None),
    "_scatter_out": lambda x: (x, [x.clone()], 0, None),
    "_gather": lambda x: ([x], 0, 0),
    "_gather_out": lambda x: ([x], x.clone(), 0),
}


def copies_nothing(seen: Any) -> bool:
    """`torch`, as torch.nn.parallel.comm sees it."""
    x = torch.ones(2, device=DEVICE)
    copies = ((getattr(seen._C, name, None), make(x)) for name, make in ARGUMENTS_OF_COPIES.items())
    return any(copy is None or raises(copy, *arguments) for copy, arguments in copies)


def copies_nothing_ahead(write: Function) -> bool:
    """While a checkpoint is written."""
    from torch.distributed.checkpoint import filesystem

    class _Copying(Exception): ...

    def copy(*_: Any, **__: Any) -> None:
        raise _Copying

    files: queue.Queue[Any] = queue.Queue()
    files.put(("name", "key", []))
    loaders = {"_OverlappingCpuLoader": copy, "_SerialCpuLoader": lambda *_: SimpleNamespace()}
    with with_values(filesystem, **loaders):
        try:
            write(None, files, None, SimpleNamespace(resolve_data=None), None, 1, False, 1, None)
        except _Copying:
            return False
        except AttributeError:  # of the other loader
            return True
    return True


def times_no_collective_of_a_graph(benchmark: Function) -> bool:
    x = torch.ones(2, device=DEVICE)
    node = SimpleNamespace(target=lambda x: x + 1)
    return raises(benchmark, node, (x,), {}, 1)


def has_no_workspace(get_workspace: Function) -> bool:
    with _group() as group:
        return raises(get_workspace, group.group_name, 64)


def has_no_gradient(backward: Function) -> bool:
    with _group() as group:
        return raises(backward, SimpleNamespace(group=group), torch.ones(2, device=DEVICE))


def times_no_collective(benchmark: Function) -> bool:
    """A choice for an operator that communicates."""
    from torch._inductor import select_algorithm

    output = torch.ones(2, device=DEVICE)
    tensors = SimpleNamespace(unpack=lambda: ((), output))
    arguments = SimpleNamespace(get_benchmark_tensors=lambda _: tensors)
    choice = SimpleNamespace(name="choice", benchmark_collective=lambda *_, out: out.add_(1))
    with _group(), with_values(select_algorithm, log=logging.getLogger("torch_mtia.none")):
        return raises(benchmark, choice, arguments) or not math.isfinite(benchmark(choice, arguments))


def has_no_bandwidth(gigabytes_per_second: Callable[[], float | None]) -> bool:
    return raises(gigabytes_per_second) or not 0 < (gigabytes_per_second() or 0) < math.inf


def has_no_products(teraflops: Callable[[torch.dtype], float]) -> bool:
    return raises(teraflops, torch.float32) or teraflops(torch.float32) <= 0


def exceeds_memory(milliseconds: Function) -> bool:
    """A collective takes less time than reading what it transfers."""
    from torch._inductor.comm_analysis import NCCL_COLL

    from torch_mtia.inductor import roofline

    num_bytes, bandwidth = 1 << 30, 20.0
    with with_values(roofline, memory_bandwidth=lambda: bandwidth):
        return bool(milliseconds(num_bytes, 2, NCCL_COLL.ALL_REDUCE) < num_bytes / bandwidth / 1e6)


def buckets_for_another_latency(saturation_bytes: Function) -> bool:
    """The bytes that are to take nine tenths of a collective's time take more or less of it."""
    from torch._inductor.comm_analysis import NCCL_COLL

    from torch_mtia.inductor import roofline

    with with_values(roofline, memory_bandwidth=lambda: 20.0):
        num_bytes = saturation_bytes(2, NCCL_COLL.ALL_REDUCE)
        share = 1 - roofline.COLLECTIVE_LATENCY_US / roofline.collective_us("all_reduce", num_bytes, 2)
    return not 0.85 < share < 0.95


def stages_at_once(stage: Function) -> bool:
    """The stream that copies does not wait for the current one."""
    streams: list[Any] = []
    stager = SimpleNamespace(
        _staging_stream=SimpleNamespace(wait_stream=streams.append, wait_event=streams.append),
        _config=SimpleNamespace(use_async_staging=False),
        _stage=lambda *_, **__: None,
    )
    stage(stager, {})
    return not streams


def pins_nothing(initialize: Function) -> bool:
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    stager = StateDictStager.__new__(StateDictStager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        initialize(stager, True)
    staged: Any = stager.stage({"x": torch.ones(1000, device=DEVICE)})
    return not staged["x"].is_pinned()
