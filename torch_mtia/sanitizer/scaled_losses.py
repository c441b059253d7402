"""Losses that torch.amp.GradScaler has scaled. While they are watched, it is known which backward() is theirs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

_scales: dict[type, Callable[..., Any]] = {}  # of the class, and of those derived from it that have their own


def watch() -> None:
    """Lets scale() mark what it returns, of classes that are derived later, too."""
    if _scales:
        return
    ahead: list[type] = [torch.amp.GradScaler]
    while ahead:
        each = ahead.pop()
        _mark(each)
        ahead += each.__subclasses__()
    setattr(torch.amp.GradScaler, "__init_subclass__", classmethod(_mark))  # noqa: B010


def leave() -> None:
    """They are as before."""
    if _scales:
        del torch.amp.GradScaler.__init_subclass__
    while _scales:
        each, scale = _scales.popitem()
        setattr(each, "scale", scale)  # noqa: B010


def _mark(each: type) -> None:
    if "scale" in vars(each):
        _scales[each] = vars(each)["scale"]
        setattr(each, "scale", _marking(_scales[each]))  # noqa: B010


def _marking(scale: Callable[..., Any]) -> Callable[..., Any]:
    from torch_mtia import _C

    def tell(_: torch.Tensor) -> None:
        _C._sanitizer_gradients_are_scaled()

    @functools.wraps(scale)
    def marking(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        scaled = scale(scaler, outputs)
        if scaler.is_enabled():
            for each in _pytree.tree_leaves(scaled):
                if isinstance(each, torch.Tensor) and each.requires_grad:
                    each.register_hook(tell)  # called in backward(), before all nodes
        return scaled

    return marking
