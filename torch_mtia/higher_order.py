"""Operators that take functions: what they do on the device, and that they pass autocast on to what they call."""

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
    after_import("torch._higher_order_ops.out_dtype", _register_out_dtype)


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


def _register_out_dtype(module: ModuleType) -> None:
    """Products of int8 to int32, which upstream's kernel has for listed devices, and for others products of int32.
    Compiled code gets them from the device's graph pass."""
    key = torch._C._parse_dispatch_key(dispatch_key())

    def out_dtype(operator: Any, dtype: torch.dtype, *args: Any) -> Any:
        is_of_bytes = all(isinstance(arg, torch.Tensor) and arg.dtype == torch.int8 for arg in args)
        if (operator, dtype, is_of_bytes) == (torch.ops.aten.mm.default, torch.int32, True):
            return torch._int_mm(*args)
        return module.out_dtype_dense(operator, dtype, *args)

    if key not in module.out_dtype.py_kernels:
        module.out_dtype.py_impl(key)(out_dtype)
