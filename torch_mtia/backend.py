"""Under which name PyTorch knows the devices: `mtia`, or the name given to `torch_mtia.privateuse1.enable`."""

from __future__ import annotations

import keyword
from types import ModuleType

import torch

from torch_mtia import environment

_device_type = "mtia"


def device_type() -> str:
    """Returns the type of the devices, as in `torch.device(device_type())`."""
    return _device_type


def device_module() -> ModuleType:
    """`torch.mtia`, or the module of the same functions for the other name."""
    module: ModuleType = getattr(torch, _device_type)
    return module


def dispatch_key() -> str:
    """Returns the key under which PyTorch finds the devices' kernels."""
    return "MTIA" if _device_type == "mtia" else "PrivateUse1"


def set_device_type(name: str) -> None:
    """Called once the type of that name is registered."""
    global _device_type
    _device_type = name


def check_name(name: str) -> None:
    """Raises ValueError for what cannot be the name of a device type beside those of PyTorch."""
    environment.check_device_name(name)
    if keyword.iskeyword(name):
        raise ValueError(f"name must be an identifier, and '{name}' is a keyword of Python")
    holders = (torch, torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.TypedStorage)
    for holder, attribute in [(holder, name) for holder in holders] + [(torch.Tensor, f"is_{name}")]:
        if hasattr(holder, attribute):
            raise ValueError(f"name must not be one that PyTorch uses, and there is a {holder.__name__}.{attribute}")
    try:
        torch.device(name)
    except RuntimeError:
        return  # PyTorch knows no such device
    raise ValueError(f"name must not be a device type of PyTorch's, as '{name}' is")
