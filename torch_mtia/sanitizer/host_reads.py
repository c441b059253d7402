"""Ways for Python to read a tensor without an operator. While they are watched, the sanitizer hears of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

METHODS = ("numpy", "tolist")


class _Watched:
    """One method of torch.Tensor, which may be another library's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_inherited = name not in vars(torch.Tensor)
        self.original: Callable[..., Any] = getattr(torch.Tensor, name)
        self.is_on = True

        @functools.wraps(self.original)
        def reporting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            from torch_mtia import _C

            if self.is_on and tensor.is_cpu:  # of a device they copy, and wait for it
                _C._sanitizer_reads(f"Tensor.{name}()", tensor)
            return self.original(tensor, *args, **kwargs)

        self.reporting = reporting
        setattr(torch.Tensor, name, reporting)

    def end(self) -> None:
        """Puts the original back, unless somebody has replaced the method since: a wrapper of theirs may call ours,
        which only passes on from now on."""
        self.is_on = False
        if vars(torch.Tensor).get(self.name) is not self.reporting:
            return
        if self.is_inherited:
            delattr(torch.Tensor, self.name)
        else:
            setattr(torch.Tensor, self.name, self.original)


_watched: list[_Watched] = []


def watch() -> None:
    """From now on, until leave()."""
    leave()
    _watched.extend(map(_Watched, METHODS))


def leave() -> None:
    """The methods are those that watch() found."""
    while _watched:
        _watched.pop().end()
