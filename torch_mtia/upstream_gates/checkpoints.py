"""Replacements in torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.upstream_gates.ours import is_the_accelerator


def behind_the_current_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    def stage(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._staging_stream is not None and is_the_accelerator():
            self._staging_stream.wait_stream(torch.accelerator.current_stream())
        return original(self, *args, **kwargs)

    return stage


def pinned_where_not_shared(original: Callable[..., Any]) -> Callable[..., Any]:
    """The allocator of pinned memory has none that processes share."""

    def __init__(self: Any, pin_memory: bool = False, share_memory: bool = False, *args: Any, **kwargs: Any) -> None:
        allocates = is_the_accelerator()
        original(self, pin_memory and not allocates, share_memory, *args, **kwargs)
        self.allocates_pinned_memory = allocates and pin_memory and not share_memory

    return __init__


def staged_in_pinned_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    def _stage_untyped_storage(self: Any, storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "allocates_pinned_memory", False) and storage not in self._cached_storage_mapping:
            pinned = torch.empty(storage.size(), dtype=torch.uint8, device="cpu", pin_memory=True)
            self._cached_storage_mapping[storage] = pinned.untyped_storage()
        return original(self, storage, *args, **kwargs)

    return _stage_untyped_storage
