"""The functions of `triton.language.extra.libdevice`, by the symbols that Triton's front end writes (`__nv_...`).

    FUNCTIONS["__nv_expf"](b, x)      scalars or vectors

Most are functions of vecmath under another name. `_rz`, `_rd` and `_ru` round toward zero, down and up, as IEEE 754
says, see Note [Directed rounding] in rounding.py.
"""

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


from torch_mtia.triton.libdevice import integers, numbers, rounding  # noqa: E402, F401  (fill the table)
