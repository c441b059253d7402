"""Under which name PyTorch knows the devices: `mtia`, or the name given to `torch_mtia.privateuse1.enable`."""

from __future__ import annotations

from types import ModuleType

import torch

_device_type = "mtia"


def device_type() -> str:
    """The type of the devices, as in `torch.device(device_type())`."""
    return _device_type


def device_module() -> ModuleType:
    """`torch.mtia`, or the module of the same functions for the other name."""
    module: ModuleType = getattr(torch, _device_type)
    return module


def dispatch_key() -> str:
    """Under which PyTorch finds the devices' kernels."""
    return "MTIA" if _device_type == "mtia" else "PrivateUse1"


def set_device_type(name: str) -> None:
    """Called once the door of that name is open."""
    global _device_type
    _device_type = name
