"""Modules of this package, of which each is imported when one of its functions is first called.

The tables name replacements for parts of PyTorch that most programs never import. Importing them all would
double what the device adds to `import torch`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_mtia.upstream_gates import (
        autotuning,
        checkpoints,
        collectives,
        dynamo,
        eager,
        fusion,
        graphs,
        inductor,
        nested,
        packages,
        parallel,
        process_groups,
        quantization,
        random_state,
    )

__all__ = [
    "autotuning",
    "checkpoints",
    "collectives",
    "dynamo",
    "eager",
    "fusion",
    "graphs",
    "inductor",
    "nested",
    "packages",
    "parallel",
    "process_groups",
    "quantization",
    "random_state",
]


class _Deferred:
    """Stands in for a module: its attributes are functions."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, function: str) -> functools.partial[Any]:
        return functools.partial(self._call, function)

    def _call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        module = importlib.import_module(f"{__package__}.{self._name}")
        return getattr(module, function)(*args, **kwargs)


def __getattr__(name: str) -> _Deferred:
    if name in __all__:
        return _Deferred(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def at_the_first_call(replace: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a replacement that is made when it is first called: for functions that `import torch` imports."""

    def replace_later(original: Callable[..., Any]) -> Callable[..., Any]:
        replacement: Callable[..., Any] | None = None

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            nonlocal replacement
            if replacement is None:
                replacement = replace(original)
            return replacement(*args, **kwargs)

        return replaced

    return replace_later
