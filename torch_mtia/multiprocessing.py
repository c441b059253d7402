"""Tensors sent to other processes through `torch.multiprocessing`: queues, pipes, arguments of spawned processes.

The receiver shares the sender's memory, as on CUDA. A storage moves into shared memory when it is sent first, as one of
the CPU does (torch/multiprocessing/reductions.py); the message says where the receiver finds it. Where a driver has no
memory that processes share, a storage is sent by copy: its bytes are part of the message.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from torch_mtia import _C
from torch_mtia.backend import device_type
from torch_mtia.import_hooks import after_import

Reduction = tuple[Callable[..., Any], tuple[Any, ...]]

SECONDS_AT_EXIT = 5
"""How long a process of multiprocessing waits at its end for receivers of what it has sent."""


def _rebuild_copy(data: bytes, device: torch.device) -> torch.UntypedStorage:
    storage = torch.UntypedStorage(len(data), device=device)
    if data:
        host = torch.UntypedStorage.from_buffer(data, dtype=torch.uint8, byte_order="native")
        storage.copy_(host, non_blocking=False)
    return storage


def _rebuild_shared(message: tuple[int, int, int], size: int, device: torch.device) -> torch.UntypedStorage:
    from torch.multiprocessing import reductions

    key = (device, message[2])
    known: torch.UntypedStorage | None = reductions.storage_from_cache(torch.UntypedStorage, key)
    if known is not None:
        _C._receive_again(known)
        return known
    storage = _C._receive_storage(message, device.index, size)
    reductions.shared_cache[key] = reductions.StorageWeakRef(storage)
    return storage


def register() -> None:
    """Adds a reduction of storages to PyTorch's, once that is registered."""
    after_import("torch.multiprocessing", _add_reduction)


def _add_reduction(_: object) -> None:
    ForkingPickler.register(torch.UntypedStorage, _reduce)
    # A child that has imported torch by then forgets its finalizers when it begins to run, and then calls these.
    util.register_after_fork(_reduce, _wait_for_receivers_at_exit)
    if multiprocessing.parent_process() is not None:
        _wait_for_receivers_at_exit()


def _reduce(storage: torch.UntypedStorage) -> Reduction:
    from torch.multiprocessing import reductions

    if storage.device.type != device_type():
        reduction: Reduction = reductions.reduce_storage(storage)
        return reduction
    message = _C._send_storage(storage) if storage.nbytes() else None
    if message is None:
        host = storage.cpu()
        return _rebuild_copy, (ctypes.string_at(host.data_ptr(), host.nbytes()), storage.device)
    reductions.shared_cache[storage.device, message[2]] = reductions.StorageWeakRef(storage)
    return _rebuild_shared, (message, storage.nbytes(), storage.device)


def _wait_for_receivers_at_exit(_: object = None) -> None:
    # After the threads of queues have ended, which send what is left.
    util.Finalize(None, _wait_for_receivers, exitpriority=-20)


def _wait_for_receivers() -> None:
    """Waits until what this process has sent is received: it may put a result in a queue, and end."""
    end = time.monotonic() + SECONDS_AT_EXIT
    while _C._num_unreceived() and time.monotonic() < end:
        time.sleep(0.001)
