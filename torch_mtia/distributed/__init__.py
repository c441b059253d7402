"""torch.distributed on the devices: the backend `tmccl`, which process groups use for their tensors. See
docs/distributed.md.
"""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_mtia import _C, environment
from torch_mtia.backend import device_type
from torch_mtia.import_hooks import after_import

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["BACKEND", "backend_of", "records", "register"]

BACKEND = "tmccl"
"""The backend's name, for `init_process_group`."""


def register() -> None:
    """Makes the backend known, as the default one for tensors of the devices. Called again when another device type is
    registered, for tables by device type; the replacements do the rest."""
    if not dist.is_available():
        return
    after_import("torch.distributed.tensor._ops", _register_strategies)
    after_import("torch.distributed._symmetric_memory", _register_symmetric_memory)
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _create, devices=[device_type(), "cpu"])


def _register_strategies(module: ModuleType) -> None:
    from torch_mtia.distributed import attention, norms

    attention.register(module)
    norms.register(module)


def _register_symmetric_memory(module: ModuleType) -> None:
    from torch_mtia.distributed import symmetric_memory

    symmetric_memory.register(module)


def records(group: dist.ProcessGroup | None = None) -> list[dict[str, Any]]:
    """Returns the last calls of a group on this rank, oldest first.

    Each has rank, operation, sequence number, sizes, dtype and state. Ranks whose lists differ have called different
    collectives.

    Args:
        group: the default group if None.

    Raises:
        ValueError: the group has no backend `tmccl`.
    """
    backend = backend_of(group or dist.group.WORLD)
    if backend is None:
        raise ValueError(f"the group has no backend {BACKEND}")
    return backend.records()


def backend_of(group: Any) -> _C.StreamBackend | None:
    """Returns the group's backend for the devices, if it is this one."""
    device = torch.device(device_type())
    if not isinstance(group, dist.ProcessGroup) or device not in group._device_types:
        return None
    backend: Any = group._get_backend(device)
    return backend if hasattr(backend, "records") else None


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    _C._bind_stream_backend()
    return _C.StreamBackend(_make_gloo, environment.settings().machine, store, rank, size, BACKEND, timeout)


def _make_gloo(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    engine = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    engine._set_sequence_number_for_group()
    return engine
