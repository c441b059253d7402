"""Operators that take functions under autocast of the device: they pass it on. FlexAttention casts its operands."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_mtia.backend import device_type, dispatch_key
from torch_mtia.import_hooks import after_import


def register() -> None:
    """Does so for the operators that there are; upstream does for those of a list, in which the device is, when an
    operator is made. Again for a device of another name."""
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(autocast_key())
    after_import("torch._higher_order_ops.flex_attention", _register_flex_attention)


def autocast_key() -> Any:
    """Returns the key under which PyTorch finds what is done under autocast of the device."""
    return torch._C._parse_dispatch_key(f"Autocast{dispatch_key()}")


def _register_flex_attention(module: ModuleType) -> None:
    key = autocast_key()

    def autocast(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(device_type())
        operands = torch.amp.autocast_mode._cast(args[:3], device_type(), dtype)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return module.flex_attention(*operands, *args[3:], **kwargs)

    if key not in module.flex_attention.py_kernels:
        module.flex_attention.py_impl(key)(autocast)
