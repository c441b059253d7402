"""Replacements in torch.distributed."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from torch_mtia.backend import device_type
from torch_mtia.distributed import BACKEND, backend_of


def with_the_backend_of_the_accelerator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Names the backend of a group for which nobody has. A group of the device's backend has a store of its own in that
    of torchrun; ranks of other groups may be without this package, and would wait for its answers."""

    def _new_process_group_helper(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: str,
        store: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        accelerator = torch.accelerator.current_accelerator()
        if backend == "undefined" and accelerator is not None and accelerator.type == device_type():
            backend = torch.distributed.Backend(BACKEND)
        is_ours = BACKEND in re.split("[:,]", str(backend).lower())
        # The groups of a default group have parts of its store.
        has_store = distributed.is_initialized() and backend_of(distributed.group.WORLD) is not None
        is_member = not global_ranks_in_group or distributed.get_rank() in global_ranks_in_group
        if is_ours and is_member and not has_store:
            timeout = kwargs.get("timeout") or distributed.default_pg_timeout
            store = of_this_attempt(store, group_rank, group_size, timeout)
        group, store = original(group_size, group_rank, global_ranks_in_group, backend, store, *args, **kwargs)
        # Of two backends upstream finds the default one by a comparison of capital letters with small ones.
        if backend_of(group) is not None and group._get_backend_name() == "undefined":
            group._set_default_backend(torch.distributed.ProcessGroup.BackendType.CUSTOM)
        return group, store

    return _new_process_group_helper


def backends_of_devices(original: dict[str, str]) -> dict[str, str]:
    """Returns the table with the device under the name that it has now."""
    return {device: name for device, name in original.items() if name != BACKEND} | {device_type(): BACKEND}


def monitored_by_the_store(original: Callable[..., Any]) -> Callable[..., Any]:
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        backend = backend_of(group or torch.distributed.group.WORLD)
        if backend is None:
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        return backend.monitored_barrier(timeout or backend.options._timeout, wait_all_ranks)

    return monitored_barrier


def with_timeouts_of_the_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        chosen: Any = group or torch.distributed.group.WORLD
        backend = backend_of(chosen)
        if backend is not None:
            backend._set_default_timeout(timeout)
        cpu = torch.device("cpu")
        if backend is None or (cpu in chosen._device_types and chosen._get_backend(cpu) is not backend):
            original(timeout, group)

    return _set_pg_timeout


def numbers_of_the_device(original: Callable[[Any], int]) -> Callable[[Any], int]:
    def _get_sequence_number_for_group(self: Any) -> int:
        backend = backend_of(self)
        return original(self) if backend is None else backend._get_sequence_number_for_group()

    return _get_sequence_number_for_group


def of_this_attempt(store: Any, rank: int, world_size: int, timeout: timedelta) -> Any:
    """Returns the store, without what processes that have died since wrote there: torchrun's outlives the processes
    that it restarts."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(_name_of_attempt(store, rank, world_size, timeout), store)


def _name_of_attempt(store: Any, rank: int, world_size: int, timeout: timedelta) -> str:
    """Returns a name that the first rank makes for these processes. A number would not do: on different machines
    torchrun counts restarts differently. The store still has what dead processes wrote: the first rank answers every
    process that it finds there, until all that are alive have confirmed."""
    me = uuid.uuid4().hex
    if rank != 0:
        store.set(f"torch_mtia/{rank}", me)
        name: str = store.get(f"torch_mtia/{me}").decode()
        store.set(f"torch_mtia/{name}/{rank}", "")
        return name
    deadline = time.monotonic() + timeout.total_seconds()
    absent = set(range(1, world_size))
    while absent:
        for other in list(absent):
            if store.check([f"torch_mtia/{me}/{other}"]):
                absent.remove(other)
            elif store.check([f"torch_mtia/{other}"]):
                store.set(f"torch_mtia/{store.get(f'torch_mtia/{other}').decode()}", me)
        if time.monotonic() > deadline:
            raise distributed.DistStoreError(
                f"rank 0 waited {timeout} for ranks that have not joined: {sorted(absent)}"
            )
        time.sleep(0.002)
    return me
