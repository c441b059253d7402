"""torch_mtia.memory.MemPool: memory of its own, from the driver or from the functions of a library."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_mtia
from torch_mtia.environment import settings
from torch_mtia.memory import MemPool, PluggableAllocator, use_mem_pool

MIB = 1 << 20


def megabytes(count: int, device: str = "mtia") -> torch.Tensor:
    return torch.ones(count * MIB, dtype=torch.uint8, device=device)


def held(pool: MemPool) -> int:
    return sum(segment["total_size"] for segment in pool.snapshot())


def in_use(pool: MemPool) -> int:
    return sum(segment["allocated_size"] for segment in pool.snapshot())


def test_a_pool_shares_no_segment() -> None:
    outside = megabytes(30)
    del outside  # would serve what follows
    pool = MemPool()
    with use_mem_pool(pool):
        inside = megabytes(30)
        small = torch.ones(10, device="mtia")
    assert held(pool) == 32 * MIB
    assert in_use(pool) == 30 * MIB + 512
    address = inside.data_ptr()
    del inside
    assert megabytes(30).data_ptr() != address
    with use_mem_pool(pool):
        assert megabytes(30).data_ptr() == address
    assert torch.equal(small.cpu(), torch.ones(10))


def test_a_pools_memory_returns_when_the_pool_is_deleted() -> None:
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved()
    pool = MemPool()
    with use_mem_pool(pool):
        x, y = megabytes(40), megabytes(60)
    del x
    torch.accelerator.empty_cache()
    assert held(pool) == 100 * MIB
    del pool
    gc.collect()
    assert torch.accelerator.memory_reserved() == before + 60 * MIB
    assert bool(y.cpu().all())
    del y
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == before


def test_pools_nest_and_end_with_an_exception() -> None:
    outer, inner = MemPool(), MemPool()
    with use_mem_pool(outer):
        with contextlib.suppress(ZeroDivisionError), use_mem_pool(inner):
            a = megabytes(3)
            raise ZeroDivisionError
        b = megabytes(5)
    c = megabytes(7)
    assert (in_use(inner), in_use(outer)) == (3 * MIB, 5 * MIB)
    del a, b, c


def test_contexts_of_generators_may_end_in_any_order_and_on_any_thread() -> None:
    @contextlib.contextmanager
    def allocating_from(pool: MemPool) -> Iterator[None]:
        with use_mem_pool(pool):
            yield

    first, second = MemPool(), MemPool()
    context = allocating_from(first)
    context.__enter__()
    with use_mem_pool(second):
        context.__exit__(None, None, None)
        a = megabytes(3)
    assert (held(first), in_use(second)) == (0, 3 * MIB)
    context = allocating_from(first)
    context.__enter__()
    thread = threading.Thread(target=context.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    b = megabytes(3)
    assert held(first) == 0
    del a, b


def test_threads_may_share_a_pool_from_its_first_use() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved()

    def allocate(pool: MemPool, start: threading.Barrier) -> None:
        start.wait()
        with use_mem_pool(pool):
            torch.empty(10, device="mtia")

    try:
        for _ in range(100):
            pool, start = MemPool(), threading.Barrier(4)
            threads = [threading.Thread(target=allocate, args=(pool, start)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            del pool, threads, thread
    finally:
        sys.setswitchinterval(interval)
    gc.collect()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == before


def test_a_pool_is_not_copied() -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(MemPool())


def test_other_threads_and_devices_allocate_as_before() -> None:
    pool, results = MemPool(), []
    with use_mem_pool(pool, "mtia:0"):
        thread = threading.Thread(target=lambda: results.append(megabytes(3)))
        thread.start()
        thread.join()
        if torch.accelerator.device_count() > 1:
            results.append(megabytes(3, "mtia:1"))
    assert held(pool) == 0


def test_backward_and_streams_see_memory_of_pools() -> None:
    pool = MemPool()
    weight = torch.full((64, 64), 0.5, device="mtia", requires_grad=True)
    stream = torch.Stream("mtia")
    with use_mem_pool(pool):
        x = torch.ones(64, 64, device="mtia")
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            y = (x @ weight).sum()
            y.backward()
    stream.synchronize()
    assert weight.grad is not None
    assert torch.equal(weight.grad.cpu(), torch.full((64, 64), 64.0))


def test_a_graph_may_be_captured_into_a_pool() -> None:
    pool, graph = MemPool(), torch.mtia.MTIAGraph()
    with use_mem_pool(pool):
        x = megabytes(4)
    with torch.mtia.graph(graph, pool=pool.id):
        y = x + 1
    assert in_use(pool) == 8 * MIB
    x.fill_(6)
    graph.replay()
    assert bool((y.cpu() == 7).all())


def test_a_captured_stream_allocates_for_its_graph() -> None:
    pool, graph = MemPool(), torch.mtia.MTIAGraph()
    x = megabytes(4)
    with torch.mtia.graph(graph), use_mem_pool(pool):
        y = x + 1
    assert held(pool) == 0
    del pool
    gc.collect()
    graph.replay()
    assert bool((y.cpu() == 2).all())


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="pool must be a"), use_mem_pool(3):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="allocator must be"):
        MemPool(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be an mtia device"), use_mem_pool(MemPool(), "cpu"):
        pass


SOURCE = """
#include "mtia_runtime.h"

static const mtia_runtime_api* api;
static uint64_t addresses[16], sizes[16];
static int count = 0, frees = 0, refusing = 0;

extern "C" {
void set_driver(mtia_runtime_get_api_fn get) { api = get(MTIA_RUNTIME_ABI_VERSION); }
void* take(size_t size, int device, void*) {
  mtia_device_ptr address = 0;
  if (refusing || api->memory_reserve(device, size, &address) != MTIA_SUCCESS) return nullptr;
  if (api->memory_map(device, address, size) != MTIA_SUCCESS) return nullptr;
  addresses[count] = address;
  sizes[count++] = size;
  return reinterpret_cast<void*>(address);
}
void give_back(void* address, size_t size, int device, void*) {
  const mtia_device_ptr at = reinterpret_cast<mtia_device_ptr>(address);
  api->memory_unmap(device, at, size);
  api->memory_release(device, at);
  for (int i = 0; i < count; ++i) {
    if (addresses[i] == at) sizes[i] = 0;
  }
  ++frees;
}
void refuse(int value) { refusing = value; }
int num_segments() { return count; }
int num_frees() { return frees; }
int sleep_now(int device) {
  int failures = 0;
  for (int i = 0; i < count; ++i) failures += sizes[i] && api->memory_unmap(device, addresses[i], sizes[i]);
  return failures;
}
int wake_up(int device) {
  int failures = 0;
  for (int i = 0; i < count; ++i) failures += sizes[i] && api->memory_map(device, addresses[i], sizes[i]);
  return failures;
}
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """An allocator that reserves addresses and maps memory to them, as one for models that sleep does."""
    folder = tmp_path_factory.mktemp("allocator")
    source, path = folder / "allocator.cpp", folder / "allocator.so"
    source.write_text(SOURCE)
    include = Path(torch_mtia.include_paths()[0]) / "torch_mtia" / "runtime"
    subprocess.run(["g++", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    library.set_driver(ctypes.CDLL(str(settings().runtime)).mtia_runtime_get_api)
    return library


def pool_of(library: ctypes.CDLL) -> MemPool:
    return MemPool(PluggableAllocator(library._name, "take", "give_back").allocator())


def test_a_library_may_be_the_source_of_a_pool(library: ctypes.CDLL) -> None:
    segments, frees = library.num_segments(), library.num_frees()
    pool = pool_of(library)
    with use_mem_pool(pool):
        x, small = megabytes(40), torch.arange(10, device="mtia")
    assert bool((x + x).cpu().eq(2).all())
    assert small.tolist() == list(range(10))
    assert library.num_segments() == segments + 2
    del x, small, pool
    gc.collect()
    assert library.num_frees() == frees + 2


def test_a_model_sleeps_without_moving(library: ctypes.CDLL) -> None:
    """Its memory is unmapped and mapped again below the same tensors, whose values are then loaded again."""
    gc.collect()
    pool = pool_of(library)
    with use_mem_pool(pool):
        layer = torch.nn.Linear(1024, 1024, device="mtia")
    saved = {name: value.cpu() for name, value in layer.state_dict().items()}
    addresses = {name: value.data_ptr() for name, value in layer.state_dict().items()}
    x = torch.randn(4, 1024, device="mtia")
    expected = layer(x).cpu()
    torch.accelerator.synchronize()
    free = torch.accelerator.get_memory_info()[0]
    assert library.sleep_now(0) == 0
    assert torch.accelerator.get_memory_info()[0] >= free + 4 * MIB
    assert library.wake_up(0) == 0
    layer.load_state_dict(saved)
    assert {name: value.data_ptr() for name, value in layer.state_dict().items()} == addresses
    assert torch.equal(layer(x).cpu(), expected)


def test_a_source_that_refuses_is_out_of_memory(library: ctypes.CDLL) -> None:
    pool = pool_of(library)
    library.refuse(1)
    try:
        with use_mem_pool(pool), pytest.raises(torch.OutOfMemoryError, match="allocator of the memory pool"):
            megabytes(5)
    finally:
        library.refuse(0)
    with use_mem_pool(pool):
        assert bool(megabytes(5).cpu().all())


def test_functions_are_looked_up_at_once(library: ctypes.CDLL) -> None:
    with pytest.raises(AttributeError, match="absent"):
        PluggableAllocator(library._name, "absent", "give_back")
    with pytest.raises(OSError, match="absent"):
        PluggableAllocator("/absent.so", "take", "give_back")
