"""torch.distributed on the devices: the backend `tmccl`, which process groups use for their tensors. See
docs/distributed.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from torch_mtia import _C, door

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["BACKEND", "register"]

BACKEND = "tmccl"
"""The backend's name, for `init_process_group`."""


def register() -> None:
    """Makes the backend known, as the default one for tensors of the devices. Again, when another door opens."""
    if not dist.is_available():
        return
    names = dist.Backend
    device = door.device_type()
    if not hasattr(names, BACKEND.upper()):
        names.register_backend(BACKEND, _create, devices=[device])
        return
    names.default_device_backend_map.pop("mtia", None)
    names.default_device_backend_map[device] = BACKEND
    names.backend_capability[BACKEND] = [device]


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    """A backend for one group, over a gloo of its own: the ranks agree on the order in which that one is called."""
    _C._bind_stream_backend()
    engine = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    engine._set_sequence_number_for_group()
    return _C.StreamBackend(engine, BACKEND, timeout)
