"""Replacements in torchao, which quantizes models, and in what it uses of PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import torch

from torch_mtia.backend import device_module, device_type
from torch_mtia.scopes import Overlay, with_globals


def scaled_products_on_mtia(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """torchao asserts what the machine has, not where the model is."""

    @functools.wraps(original)
    def _check_hardware_support(granularities: Any) -> None:
        try:
            original(granularities)
        except AssertionError:
            if not device_module().is_available():
                raise

    return _check_hardware_support


def packed_on_mtia(original: MethodType) -> Any:
    """Runs upstream's own code for tensors of mtia as if torch.cuda had tensor cores, which is all that it asks."""
    function: Any = original.__func__
    tensor_cores = SimpleNamespace(get_device_capability=lambda: (8, 0))
    packs = with_globals(function, torch=Overlay(torch, cuda=tensor_cores))

    @functools.wraps(function)
    def from_hp(cls: type, hp_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        pack = packs if hp_tensor.device.type == device_type() else function
        return pack(cls, hp_tensor, *args, **kwargs)

    return classmethod(from_hp)
