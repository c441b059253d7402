"""Replacements in torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from torch_mtia.distributed import BACKEND, backend_of
from torch_mtia.door import device_type


def with_the_backend_of_the_accelerator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Names the backend of a group for which nobody has."""

    def _new_process_group_helper(
        group_size: int, group_rank: int, global_ranks_in_group: list[int], backend: str, *args: Any, **kwargs: Any
    ) -> Any:
        accelerator = torch.accelerator.current_accelerator()
        if backend == "undefined" and accelerator is not None and accelerator.type == device_type():
            backend = torch.distributed.Backend(BACKEND)
        group, store = original(group_size, group_rank, global_ranks_in_group, backend, *args, **kwargs)
        # Of two backends upstream finds the default one by a comparison of capital letters with small ones.
        if backend_of(group) is not None and group._get_backend_name() == "undefined":
            group._set_default_backend(torch.distributed.ProcessGroup.BackendType.CUSTOM)
        return group, store

    return _new_process_group_helper


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
        if backend is None or torch.device("cpu") in chosen._device_types:
            original(timeout, group)

    return _set_pg_timeout


def numbers_of_the_device(original: Callable[[Any], int]) -> Callable[[Any], int]:
    def _get_sequence_number_for_group(self: Any) -> int:
        backend = backend_of(self)
        return original(self) if backend is None else backend._get_sequence_number_for_group()

    return _get_sequence_number_for_group
