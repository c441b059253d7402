"""Replacements for random operators that compiled code runs again in the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.backend import device_module, device_type


def saving_of_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `__call__` of run_and_save_rng_state: returns the state before the operator runs, and its result."""

    def __call__(self: Any, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not _runs_on_mtia(args, kwargs):
            return original(self, operator, *args, **kwargs)
        return device_module().get_rng_state(), operator(*args, **kwargs)

    return __call__


def restoring_of_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `__call__` of run_with_rng_state: runs the operator in a saved state, and leaves the current one."""

    def __call__(self: Any, state: torch.Tensor, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from torch._subclasses.fake_tensor import is_fake

        if not _runs_on_mtia(args, kwargs):
            return original(self, state, operator, *args, **kwargs)
        if is_fake(state):  # code is being generated
            return operator(*args, **kwargs)
        current = device_module().get_rng_state()
        device_module().set_rng_state(state)
        try:
            return operator(*args, **kwargs)
        finally:
            device_module().set_rng_state(current)

    return __call__


def _runs_on_mtia(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether it does, and no code is traced: upstream then records the call, or says that it cannot."""
    from torch._prims.rng_prims import get_device
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_device(args, kwargs) == device_type() and get_proxy_mode() is None
