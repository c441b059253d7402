"""The whole kernel: the function of one program, and the entry that runs a range of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from torch_mtia.triton import abi, image, machine
from torch_mtia.triton.emit import assertions, atomic, indexing, printing, switching, watching  # noqa: F401  (register their operations)
from torch_mtia.triton.emit.control import run_body
from torch_mtia.triton.emit.environment import CONTEXT, GRID, HOST_OFFSET, PROGRAM, SCRATCH, Environment
from torch_mtia.triton.ir.elements import element_size, is_float_element, llvm_element
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.llvm import Builder, Phi
from torch_mtia.triton.llvm_value import Value, integer
from torch_mtia.triton.plan.plan import Plan

# Palette 1, and for each of the eight tiles 64 bytes a row, as numbers of 16 bits, and 16 rows.
TILE_CONFIGURATION = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8]

Run: TypeAlias = Callable[[Sequence[Value]], None]


@dataclasses.dataclass(frozen=True)
class Program:
    text: str  # LLVM IR
    arguments: tuple[tuple[int, int], ...]  # kind, size


def emit_program(plan: Plan, architecture: str, saturates_fp8: bool) -> Program:
    env = Environment(plan, machine.level(architecture).features, saturates_fp8)
    b = env.b
    parameters: list[Value] = []
    for number, (argument, divisor) in enumerate(zip(plan.arguments, plan.divisors, strict=True)):
        parameters.append(Value(f"%argument{number}", llvm_element(argument.type.element), divisor=divisor))
        env.set_scalar(argument, parameters[-1])
    hidden = [CONTEXT, SCRATCH, HOST_OFFSET, *PROGRAM, *GRID]

    def leave(values: Sequence[Tensor]) -> None:
        if env.instrumented and env.switches:
            watching.end_program(env)
        b.emit("ret void")

    with b.function("program", "void", [*parameters, *hidden], noalias=(SCRATCH, CONTEXT)):
        env.leave.append(leave)
        if env.instrumented:
            watching.begin_program(env)
        run_body(env, plan.body)
        env.leave.pop()
    _emit_entry(env, plan, parameters, hidden)
    arguments = tuple(_kind_and_size(argument.type.element) for argument in plan.arguments)
    text = (
        b.module_text(machine.level(architecture).triple, machine.data_layout(architecture))
        + "\n"
        + machine.attributes(architecture)
    )
    if env.nontemporal:
        text += "\n!0 = !{i32 1}\n"
    return Program(text, arguments)


def _kind_and_size(element: str) -> tuple[int, int]:
    is_pointer, is_float = element == "ptr", is_float_element(element)
    kind = abi.ARGUMENT_POINTER if is_pointer else abi.ARGUMENT_FLOAT if is_float else abi.ARGUMENT_INTEGER
    return kind, element_size(element)


def _emit_entry(env: Environment, plan: Plan, parameters: list[Value], hidden: list[Value]) -> None:
    b = env.b
    first, last = Value("%first", "i64"), Value("%last", "i64")
    if env.switches:
        _emit_run_one(b, plan, parameters)
    with b.function("mtia_entry", "void", [switching.PACKED, CONTEXT, first, last, SCRATCH], linkage="external"):
        values, host_offset, grid = _read_arguments(b, plan, parameters)
        begin, done = b.label("begin"), b.label("done")
        b.branch(b.icmp("slt", first, last), begin, done)
        b.start(begin)  # not before: an empty grid is zero somewhere
        if env.tiles:
            b.intrinsic("llvm.x86.ldtilecfg", "void", b.constant_array(TILE_CONFIGURATION, "i8"))

        def run(place: Sequence[Value]) -> None:
            passed = [*values, CONTEXT, SCRATCH, host_offset, *place, *grid]
            assert len(passed) == len(parameters) + len(hidden)
            b.emit(f"call void @program({', '.join(map(str, passed))})")

        if env.switches:
            ranges = b.label("ranges")
            b.branch(switching.interleaved(b, plan.order, plan.may_wait), done, ranges)
            b.start(ranges)
        if plan.band:
            _in_bands(b, plan.band, grid, first, last, run)
        else:
            _in_rows(b, grid, first, last, run)
        b.jump(done)
        b.start(done)
        if env.tiles:
            b.intrinsic("llvm.x86.tilerelease", "void")
        if env.nontemporal:  # such stores become visible to other threads only after this
            if "sse" in b.features:
                b.intrinsic("llvm.x86.sse.sfence", "void")
            else:
                b.emit("fence release")
        b.emit("ret void")


def _read_arguments(b: Builder, plan: Plan, parameters: list[Value]) -> tuple[list[Value], Value, list[Value]]:
    """The kernel's arguments, the host offset, and the sizes of the grid."""
    listed = [image.Argument(0, element_size(argument.type.element)) for argument in plan.arguments]
    offsets, _ = image.lay_out(listed)
    values = []
    for parameter, argument, offset in zip(parameters, listed, offsets, strict=True):
        address = b.offset(switching.PACKED, offset)
        if parameter.type == "i1":
            values.append(b.cast("trunc", b.load("i8", address, 1), "i1"))
        else:
            values.append(b.load(parameter.type, address, argument.size))
    host_offset = b.load("i64", b.offset(CONTEXT, abi.KERNEL_CONTEXT_HOST_OFFSET), 8)
    grid = [b.load("i32", b.offset(CONTEXT, abi.KERNEL_CONTEXT_GRID + 4 * axis), 4) for axis in range(3)]
    return values, host_offset, grid


def _emit_run_one(b: Builder, plan: Plan, parameters: list[Value]) -> None:
    with b.function(switching.RUN_ONE, "void", switching.ONE):
        values, host_offset, grid = _read_arguments(b, plan, parameters)
        grid_x, grid_y = (b.zext(size, "i64") for size in grid[:2])
        row = b.binary("udiv", switching.NUMBER, grid_x)
        parts = (
            b.binary("urem", switching.NUMBER, grid_x),
            b.binary("urem", row, grid_y),
            b.binary("udiv", row, grid_y),
        )
        place = [b.trunc(part, "i32") for part in parts]
        b.emit(f"call void @program({', '.join(map(str, [*values, CONTEXT, SCRATCH, host_offset, *place, *grid]))})")
        b.emit("ret void")


def _in_rows(b: Builder, grid: Sequence[Value], first: Value, last: Value, run: Run) -> None:
    """Program x + grid[0] * (y + grid[1] * z) is the one with that number."""
    grid_x, grid_y = (b.zext(size, "i64") for size in grid[:2])
    row = b.binary("udiv", first, grid_x)
    start = [b.sub(first, b.mul(row, grid_x)), b.binary("urem", row, grid_y), b.binary("udiv", row, grid_y)]
    start = [b.trunc(part, "i32") for part in start]
    before = b.block
    with _numbers(b, first, last):
        place = [Phi(b, "i32") for _ in start]
        run([phi.value for phi in place])
        # Counting on takes less than two divisions, which small programs would notice.
        x, y, z = (phi.value for phi in place)
        zero, one = integer(0, "i32"), integer(1, "i32")
        next_x, next_y = b.add(x, one), b.add(y, one)
        wraps_x = b.icmp("eq", next_x, grid[0])
        wraps_y = b.binary("and", wraps_x, b.icmp("eq", next_y, grid[1]))
        following = (
            b.select(wraps_x, zero, next_x),
            b.select(wraps_y, zero, b.select(wraps_x, next_y, y)),
            b.select(wraps_y, b.add(z, one), z),
        )
        for phi, initial, value in zip(place, start, following, strict=True):
            phi.incoming.append((initial, before))
            phi.add(value)
            phi.finish()


def _in_bands(b: Builder, band_width: int, grid: Sequence[Value], first: Value, last: Value, run: Run) -> None:
    """The grid is cut into bands of neighbours in x, and a band is gone through row by row: what the programs of a row
    share is still in the caches for the next one of them, and what those of a column share for the next row."""
    grid_x, grid_y = (b.zext(size, "i64") for size in grid[:2])

    def divided(number: Value, by: Value) -> tuple[Value, Value]:
        return b.binary("udiv", number, by), b.binary("urem", number, by)

    plane, width = b.mul(grid_x, grid_y), integer(band_width, "i64")
    with _numbers(b, first, last) as number:
        z, in_plane = divided(number, plane)
        band, in_band = divided(in_plane, b.mul(grid_y, width))
        left = b.mul(band, width)
        y, across = divided(in_band, b.binary_intrinsic("umin", b.sub(grid_x, left), width))
        run([b.trunc(value, "i32") for value in (b.add(left, across), y, z)])


@contextlib.contextmanager
def _numbers(b: Builder, first: Value, last: Value) -> Iterator[Value]:
    """A loop over numbers from `first` to `last`, of which there is one."""
    before, head, done = b.block, b.label("programs"), b.label("ran")
    b.jump(head)
    b.start(head)
    number = Phi(b, "i64")
    number.incoming.append((first, before))
    yield number.value
    following = b.add(number.value, integer(1, "i64"))
    number.add(following)
    number.finish()
    b.branch(b.icmp("slt", following, last), head, done)
    b.start(done)
