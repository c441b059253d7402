"""The functions that write code for operations, by the operations' names. To add an operation: one row of facts in
ir/ops.py, and one function here, in the module of its kind:

    elementwise("arith.addf")   (b, op, operands) -> value; acts lane by lane, on scalars and vectors alike
    placed("tt.broadcast")      (strip, op, index) -> lane; says where an element is found
    statement("tt.gather")      (env, step); what the plan has for it, mostly a `Do`
    scalar("tt.load")           (env, op); the form of a placed operation whose result is no tensor
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value

Elementwise = Callable[[Builder, Op, "list[Value]"], "Value | list[Value]"]

ELEMENTWISE: dict[str, Elementwise] = {}
PLACED: dict[str, Callable[..., Lane]] = {}
STATEMENTS: dict[str, Callable[[Any, Any], None]] = {}
SCALARS: dict[str, Callable[[Any, Op], None]] = {}

F = TypeVar("F", bound="Callable[..., Any]")


def _registers(table: dict[str, Any]) -> Callable[..., Callable[[F], F]]:
    def names_of(*names: str) -> Callable[[F], F]:
        def register(function: F) -> F:
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return names_of


elementwise = _registers(ELEMENTWISE)
placed = _registers(PLACED)
statement = _registers(STATEMENTS)
scalar = _registers(SCALARS)
