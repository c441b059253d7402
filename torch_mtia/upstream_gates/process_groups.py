"""Replacements in torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.distributed import BACKEND
from torch_mtia.door import device_type


def with_the_backend_of_the_accelerator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Names the backend of a group for which nobody has."""

    def _new_process_group_helper(
        group_size: int, group_rank: int, global_ranks_in_group: list[int], backend: str, *args: Any, **kwargs: Any
    ) -> Any:
        accelerator = torch.accelerator.current_accelerator()
        if backend == "undefined" and accelerator is not None and accelerator.type == device_type():
            backend = torch.distributed.Backend(BACKEND)
        return original(group_size, group_rank, global_ranks_in_group, backend, *args, **kwargs)

    return _new_process_group_helper
