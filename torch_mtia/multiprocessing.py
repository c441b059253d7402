"""Tensors sent to other processes through `torch.multiprocessing`: queues, pipes, arguments of spawned processes.

The memory of the device belongs to one process, so a storage is sent by copy: its bytes are part of the message, and
the receiver copies them to its device of the same index. Tensors that share a storage share one on the other side if
they are sent in one message.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from torch_mtia.backend import device_type
from torch_mtia.import_hooks import after_import

Reduction = tuple[Callable[..., Any], tuple[Any, ...]]


def _rebuild_storage(data: bytes, device: torch.device) -> torch.UntypedStorage:
    storage = torch.UntypedStorage(len(data), device=device)
    if data:
        host = torch.UntypedStorage.from_buffer(data, dtype=torch.uint8, byte_order="native")
        storage.copy_(host, non_blocking=False)
    return storage


def register() -> None:
    """Adds a reduction of storages to PyTorch's, once that is registered."""
    after_import("torch.multiprocessing", lambda _: ForkingPickler.register(torch.UntypedStorage, _reduce))


def _reduce(storage: torch.UntypedStorage) -> Reduction:
    if storage.device.type != device_type():
        from torch.multiprocessing.reductions import reduce_storage

        reduction: Reduction = reduce_storage(storage)
        return reduction
    host = storage.cpu()
    return _rebuild_storage, (ctypes.string_at(host.data_ptr(), host.nbytes()), storage.device)
