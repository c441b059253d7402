"""The tables of operations. To add one: write one function in the module of its kind and name the operation in its
decorator.

    elementwise("arith.addf")   (b, op, operands) -> value; acts lane by lane, on scalars and vectors alike
    lazy("tt.broadcast")        (strip, op, number, index) -> lane; evaluated where a nest of loops needs it
    statement("tt.store")       (emitter, op); emitted in program order
    scalar("tt.load")           (emitter, op); the form of a lazy operation whose result is no tensor

An operation in none of them is an error: `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Builder, Value
from torch_mtia.triton.ttir import Location, Op

if TYPE_CHECKING:
    from torch_mtia.triton.emit.kernel import KernelEmitter
    from torch_mtia.triton.emit.nest import Strip

Elementwise = Callable[[Builder, Op, "list[Value]"], "Value | list[Value]"]
Lazy = Callable[["Strip", Op, int, "tuple[Lane, ...]"], Lane]
Statement = Callable[["KernelEmitter", Op], None]

ELEMENTWISE: dict[str, Elementwise] = {}
LAZY: dict[str, Lazy] = {}
STATEMENTS: dict[str, Statement] = {}
SCALARS: dict[str, Statement] = {}
COSTS: dict[str, int] = {}  # of one lane, in simple instructions; 1 where nothing is said
WRITES: set[str] = set()  # statements that may change memory

F = TypeVar("F", bound="Callable[..., object]")


class Unsupported(Exception):
    """What the compiler cannot do, and where in the kernel."""

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.location = location


def elementwise(*names: str, cost: int = 1) -> Callable[[F], F]:
    def register(function: F) -> F:
        for name in names:
            ELEMENTWISE[name] = function  # type: ignore[assignment]
            COSTS[name] = cost
        return function

    return register


def lazy(*names: str, cost: int = 0) -> Callable[[F], F]:
    def register(function: F) -> F:
        for name in names:
            LAZY[name] = function  # type: ignore[assignment]
            COSTS[name] = cost
        return function

    return register


def statement(*names: str, writes: bool = False) -> Callable[[F], F]:
    def register(function: F) -> F:
        for name in names:
            STATEMENTS[name] = function  # type: ignore[assignment]
            if writes:
                WRITES.add(name)
        return function

    return register


def scalar(*names: str) -> Callable[[F], F]:
    def register(function: F) -> F:
        for name in names:
            SCALARS[name] = function  # type: ignore[assignment]
        return function

    return register
