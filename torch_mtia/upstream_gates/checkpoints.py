"""Replacements in torch.distributed.checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.upstream_gates.ours import is_the_accelerator


def after_the_current_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    def stage(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._staging_stream is not None and is_the_accelerator():
            self._staging_stream.wait_stream(torch.accelerator.current_stream())
        return original(self, *args, **kwargs)

    return stage


def pinned_where_not_shared(original: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream has torch.cuda pin memory. The allocator of pinned memory has none that processes share."""

    def __init__(self: Any, pin_memory: bool = False, share_memory: bool = False, *args: Any, **kwargs: Any) -> None:
        allocates = is_the_accelerator()
        original(self, pin_memory and not allocates, share_memory, *args, **kwargs)
        if allocates and pin_memory and not share_memory:
            self._stage_untyped_storage = functools.partial(_stage_in_pinned_memory, self)

    return __init__


def _stage_in_pinned_memory(stager: Any, storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    if storage not in stager._cached_storage_mapping:
        pinned = torch.empty(storage.size(), dtype=torch.uint8, device="cpu", pin_memory=True)
        stager._cached_storage_mapping[storage] = pinned.untyped_storage()
    return type(stager)._stage_untyped_storage(stager, storage, *args, **kwargs)
