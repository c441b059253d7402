"""Device memory, beside what `torch.accelerator` and `torch.mtia` offer: limits, pools, host views (docs/memory.md)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from torch_mtia import _C
from torch_mtia.backend import device_module, device_type

__all__ = [
    *("MemPool", "PluggableAllocator", "get_per_process_memory_fraction", "host_view"),
    *("set_per_process_memory_fraction", "use_mem_pool"),
]

Device = torch.device | int | str | None


def _index(device: Device) -> int:
    if isinstance(device, int):
        return device
    if device is None:
        return _C._current_device()
    resolved = torch.device(device)
    if resolved.type != device_type():
        raise ValueError(f"device must be an {device_type()} device, not {resolved}")
    return _C._current_device() if resolved.index is None else resolved.index


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits the memory of a device that this process allocates, cached blocks included.

    An allocation beyond the limit first empties the cache, and then raises `torch.OutOfMemoryError`. Memory that is
    already allocated stays. Mirrors `torch.cuda.set_per_process_memory_fraction`.

    Args:
        fraction: of the device's memory, from 0 to 1.
        device: the current device if None.

    Raises:
        ValueError: the fraction is not between 0 and 1, or the device is not an mtia device.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be from 0 to 1, got {fraction}")
    _C._set_memory_fraction(float(fraction), _index(device))


def get_per_process_memory_fraction(device: Device = None) -> float:
    """Returns the fraction that `set_per_process_memory_fraction` set, or 1.0.

    Mirrors `torch.cuda.get_per_process_memory_fraction`.

    Raises:
        ValueError: the device is not an mtia device.
    """
    return _C._memory_fraction(_index(device))


class PluggableAllocator:
    """Two functions of a shared library, from which a `MemPool` gets its segments in place of the driver.

    The signatures are those for `torch.cuda.memory.CUDAPluggableAllocator`: `void* allocate(size_t size, int device,
    void* stream)`, which returns memory of the device, aligned to 4096 bytes, or NULL if there is none, and `void
    free(void* address, size_t size, int device, void* stream)`. `stream` is the driver's handle. Both are called with
    the allocator's lock held: they must not allocate tensors, nor wait for a thread that does. The library is never
    unloaded.

    Args:
        path_to_so_file: the library.
        alloc_fn_name: the name of the function that allocates.
        free_fn_name: the name of the function that frees.

    Raises:
        OSError: the library cannot be loaded.
        AttributeError: the library has no such function.
    """

    def __init__(self, path_to_so_file: str | os.PathLike[str], alloc_fn_name: str, free_fn_name: str) -> None:
        library = ctypes.CDLL(os.fspath(path_to_so_file))
        self._functions = tuple(
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in (alloc_fn_name, free_fn_name)
        )

    def allocator(self) -> PluggableAllocator:
        """Returns itself: CUDA's returns what its `MemPool` takes."""
        return self


class MemPool:
    """Memory of its own, for what is allocated in `use_mem_pool`: no other allocation shares its segments.

    Mirrors `torch.cuda.MemPool`. Freed memory stays in the pool, also in `torch.accelerator.empty_cache()`, until the
    pool is deleted: then the segments without tensors go back to where they came from, the others with the first
    `empty_cache()` after their tensors are gone. `torch.mtia.graph(graph, pool=pool.id)` captures into the pool.

    Args:
        allocator: where the segments come from; the driver if None.

    Raises:
        TypeError: the allocator is not a `PluggableAllocator`.
    """

    def __init__(self, allocator: PluggableAllocator | None = None) -> None:
        if allocator is not None and not isinstance(allocator, PluggableAllocator):
            raise TypeError(f"allocator must be a torch_mtia.memory.PluggableAllocator, not {allocator!r}")
        self.allocator = allocator
        self.id = _C._new_pool()
        self._devices: set[int] = set()
        self._lock = threading.Lock()
        weakref.finalize(self, _release, self.id, self._devices).atexit = False

    def _use(self, device: int) -> None:
        with self._lock:
            if device not in self._devices:
                _C._use_pool(device, self.id, *(self.allocator._functions if self.allocator else (0, 0)))
                self._devices.add(device)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a MemPool cannot be copied or pickled: it is memory of this process")

    def snapshot(self) -> list[dict[str, Any]]:
        """Returns the pool's segments and their blocks, as the list "segments" of `torch.mtia.snapshot()`."""
        segments = device_module().snapshot()["segments"]
        return [segment for segment in segments if tuple(segment["segment_pool_id"]) == self.id]


def _release(pool: tuple[int, int], devices: set[int]) -> None:
    if not _C._is_in_bad_fork():
        for device in devices:
            _C._release_pool(device, pool)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Device = None) -> Iterator[None]:
    """Allocates from `pool` what this thread allocates on the device; other threads, as that of backward, do not.

    A stream that is being captured allocates from the pool of its graph. Pools nest. Mirrors `torch.cuda.use_mem_pool`.

    Args:
        pool: the pool.
        device: the current device if None.

    Raises:
        TypeError: the pool is not a `MemPool`.
        ValueError: the device is not an mtia device.
    """
    if not isinstance(pool, MemPool):
        raise TypeError(f"pool must be a torch_mtia.memory.MemPool, not {pool!r}")
    index = _index(device)
    device_module().init()
    pool._use(index)
    direction = _C._direct_thread_to_pool(index, pool.id)
    try:
        yield
    finally:
        _C._end_direction_to_pool(index, direction)


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a CPU tensor on the same memory, without a copy.

    Waits for all work on the tensor's device first. Afterwards nothing orders the host's accesses and the device's:
    synchronize before the host reads what the device has written since, and do not write while the device uses the
    tensor. The view keeps the memory alive unless the tensor's storage is resized or replaced.

    Args:
        tensor: a strided tensor of the device, of any shape, strides and dtype, that does not require a gradient.

    Returns:
        A tensor of the same shape, strides and dtype on the CPU, for NumPy, DLPack and the like.

    Raises:
        ValueError: the tensor is on another device, or not strided.
        RuntimeError: the tensor requires a gradient (`host_view(tensor.detach())` does not), or the process was forked
            from one that uses the device.
        NotImplementedError: the host cannot access the device's memory; `tensor.cpu()` copies.
    """
    if tensor.device.type != device_type():
        raise ValueError(f"tensor must be on {device_type()}, not on {tensor.device}")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"tensor must be strided, not {'quantized' if tensor.is_quantized else tensor.layout}")
    if tensor.requires_grad:
        raise RuntimeError(
            "tensor requires a gradient, which a view of the host cannot have: host_view(tensor.detach())"
        )
    if device_module()._is_in_bad_fork():
        raise RuntimeError(
            "this process was forked from one that uses the device, whose memory it does not have: start it with the "
            "multiprocessing start method 'spawn'"
        )
    storage = tensor.untyped_storage()
    address = storage.data_ptr()  # a lazy clone gets memory of its own here, which the device fills
    device_module().synchronize(tensor.device)
    if storage.nbytes():
        buffer = (ctypes.c_ubyte * storage.nbytes()).from_address(_C._host_address(address))
        buffer.owner = storage  # type: ignore[attr-defined]  # an instance of a class of ours, which may have it
        memory = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    else:
        memory = torch.UntypedStorage(0)
    view = torch.empty(0, dtype=tensor.dtype, device="cpu")
    view.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.is_conj():
        view = view.conj()
    return torch._neg_view(view) if tensor.is_neg() else view
