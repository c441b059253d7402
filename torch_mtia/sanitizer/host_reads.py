"""Ways for Python to read a tensor without an operator. While they are watched, the sanitizer is told of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

METHODS = ("numpy", "tolist")


def watch() -> None:
    """Lets methods of torch.Tensor tell, which it inherits."""
    for name in METHODS:
        setattr(torch.Tensor, name, _told(name, getattr(torch._C.TensorBase, name)))


def leave() -> None:
    """They are as before."""
    for name in METHODS:
        if name in vars(torch.Tensor):
            delattr(torch.Tensor, name)


def _told(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    from torch_mtia import _C

    @functools.wraps(method)
    def told(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.is_cpu:  # of a device they copy, and wait for it
            _C._sanitizer_reads(f"Tensor.{name}()", tensor)
        return method(tensor, *args, **kwargs)

    return told
