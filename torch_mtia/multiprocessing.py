"""Tensors sent to other processes through `torch.multiprocessing`: queues, pipes, arguments of spawned processes.

The memory of the device belongs to one process, so a storage is sent by copy: its bytes are part of the message, and
the receiver copies them to its device of the same index. Tensors that share a storage share one on the other side if
they are sent in one message.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.backend import device_type

Reduction = tuple[Callable[..., Any], tuple[Any, ...]]


def _rebuild_storage(data: bytes, device: torch.device) -> torch.UntypedStorage:
    storage = torch.UntypedStorage(len(data), device=device)
    if data:
        host = torch.UntypedStorage.from_buffer(data, dtype=torch.uint8, byte_order="native")
        storage.copy_(host, non_blocking=False)
    return storage


def sent_by_copy(original: Callable[[torch.UntypedStorage], Reduction]) -> Callable[[torch.UntypedStorage], Reduction]:
    """Takes the place of PyTorch's reduction of storages, which knows no `mtia`; the others it still reduces."""

    def reduce_storage(storage: torch.UntypedStorage) -> Reduction:
        if storage.device.type != device_type():
            return original(storage)
        host = storage.cpu()
        return _rebuild_storage, (ctypes.string_at(host.data_ptr(), host.nbytes()), storage.device)

    return reduce_storage
