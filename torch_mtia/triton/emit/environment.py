"""What the code that is being written can refer to: scalars that were computed, memory, how far loops have moved."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch_mtia.triton.ir.elements import llvm_element
from torch_mtia.triton.ir.module import Block, Module, Op
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value
from torch_mtia.triton.plan.nests import Buffer, Storage
from torch_mtia.triton.plan.plan import Plan

# The parameters that the function of one program has after the kernel's own arguments.
CONTEXT = Value("%context", "ptr")  # mtia_kernel_context
SCRATCH = Value("%scratch", "ptr")
HOST_OFFSET = Value("%host_offset", "i64", divisor=4096)
PROGRAM = tuple(Value(f"%program_{axis}", "i32", nonnegative=True) for axis in "xyz")
GRID = tuple(Value(f"%grid_{axis}", "i32", nonnegative=True) for axis in "xyz")


@dataclasses.dataclass
class Target:
    """A block that branches go to: its label, and what its scalar arguments are, by where control comes from."""

    label: str
    incoming: dict[Tensor, list[tuple[Value, str]]]


class Environment:
    def __init__(self, plan: Plan, features: frozenset[str], saturates_fp8: bool) -> None:
        self.module = plan.module
        self.b = Builder(features, saturates_fp8, plan.guards)
        self.depths = _depths(plan.module)
        self.instrumented = plan.sites is not None
        self.plan_sites = plan.sites or {}
        self.follows = plan.follows
        self.switches = plan.order != 0  # between programs
        self.block_numbers = dict(zip(plan.module.blocks(), itertools.count())) if plan.counts else {}
        self.sites: dict[tuple[Op, int], Value] = {}  # constants that describe accesses, where they are instrumented
        self.scalars: dict[Tensor, Lane] = {}
        self.distances: dict[Tensor, Value] = {}  # of what loops move
        self.targets: dict[Block, Target] = {}
        self.leave: list[Callable[[Sequence[Tensor]], None]] = []  # what the functions being written return to
        self.nontemporal = False  # whether stores pass by the caches
        self.tiles = False  # whether products use the registers of AMX
        self._offsets = plan.offsets
        self._storages: dict[Storage, Value] = {}
        self._parts: dict[tuple[Storage, int], Value] = {}

    # Scalars ----------------------------------------------------------------------------------------------------------

    def scalar(self, value: Tensor) -> Lane:
        found = self.scalars.get(value)
        if found is None:
            raise AssertionError(f"scalar {value} was not emitted")
        return found

    def set_scalar(self, value: Tensor, computed: Value) -> None:
        self.scalars[value] = Lane(computed)

    # Memory -----------------------------------------------------------------------------------------------------------

    def host_address(self, device_address: Value) -> Value:
        """Of a scalar device address."""
        moved = self.b.binary("add", device_address, HOST_OFFSET)
        return self.b.define("ptr", f"inttoptr {moved} to ptr")

    def address_of(self, buffer: Buffer) -> Value:
        """Of its first element; computed at the head of the function, so that every block may use it."""
        storage = buffer.storage
        base = self._storages.get(storage)
        if base is None:
            if storage.on_stack:
                base = self.b.alloca(storage.elements, memory_type(storage.element))
            else:
                base = self._at_head("tile", SCRATCH, self._offsets[storage])
            self._storages[storage] = base
        if buffer.offset == 0:
            return base
        place = storage, buffer.offset
        if place not in self._parts:
            self._parts[place] = self._at_head("part", base, buffer.offset)
        return self._parts[place]

    def _at_head(self, stem: str, base: Value, offset: int) -> Value:
        name = self.b.name(stem)
        self.b.entry.append(f"  {name} = getelementptr i8, ptr {base.ref}, i64 {offset}")
        return Value(name, "ptr")


def _depths(module: Module) -> dict[Tensor, int]:
    """How many operations in a row lead to each value."""
    depths: dict[Tensor, int] = {}
    for function in module.functions.values():
        for op in function.body.walk():
            depth = 1 + max((depths.get(operand, 0) for operand in op.operands), default=0)
            depths.update(dict.fromkeys(op.results, depth))
    return depths


def memory_type(element: str) -> str:
    return "i8" if element == "i1" else llvm_element(element)


# The functions that write code, by the operations' names --------------------------------------------------------------
#
# To add an operation: one row of facts in ir/ops.py, and one function in the module of its kind:
#
#     elementwise("arith.addf")   (b, op, operands) -> value; acts lane by lane, on scalars and vectors alike
#     placed("tt.broadcast")      (strip, op, index) -> lane; says where an element is found
#     statement("tt.gather")      (env, step); what the plan has for it, mostly a `Do`
#     scalar("tt.load")           (env, op); the form of a placed operation whose result is no tensor

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
