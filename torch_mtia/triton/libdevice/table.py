"""The table of functions."""

from __future__ import annotations

from collections.abc import Callable

from torch_mtia.triton.llvm_value import Value

Function = Callable[..., "Value"]
FUNCTIONS: dict[str, Function] = {}
PREFIX = "__nv_"


def register(*names: str) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for name in names:
            FUNCTIONS[PREFIX + name] = function
        return function

    return add
