"""The whole kernel: the function of one program, and the entry that runs a range of them."""

from __future__ import annotations

import dataclasses

from torch_mtia.triton import image, machine
from torch_mtia.triton.emit import (  # noqa: F401  (register their operations)
    atomic,
    control,
    debug,
    dot,
    elementwise,
    memory,
    printing,
    reduce,
    scaled_dot,
    scan,
    shape,
)
from torch_mtia.triton.emit.bounds import CONTEXT_GRID, CONTEXT_HOST_OFFSET
from torch_mtia.triton.emit.control import emit_body
from torch_mtia.triton.emit.kernel import KernelEmitter, Scope
from torch_mtia.triton.emit.parameters import CONTEXT, GRID, HOST_OFFSET, PROGRAM, SCRATCH
from torch_mtia.triton.floats import element_size, is_float_element
from torch_mtia.triton.llvm import Value
from torch_mtia.triton.ttir import Module
from torch_mtia.triton.ttir import Value as Tensor

INSTRUCTIONS_PER_NANOSECOND = 3.0


@dataclasses.dataclass(frozen=True)
class Program:
    text: str  # LLVM IR
    arguments: tuple[tuple[int, int], ...]  # kind, size
    scratch_size: int
    cost: int  # of one program, in nanoseconds


def emit_program(module: Module, architecture: str, contract: bool, check_bounds: bool) -> Program:
    level = machine.level(architecture)
    em = KernelEmitter(module, level.features, level.lanes, contract, check_bounds)
    kernel = module.kernel
    parameters = em.bind_arguments(kernel)
    b = em.b
    hidden = [CONTEXT, SCRATCH, HOST_OFFSET, *PROGRAM, *GRID]

    def leave(results: list[Tensor]) -> None:
        b.emit("ret void")

    with b.function("program", "void", [*parameters, *hidden], "#0"):
        em.scopes.append(Scope(leave))
        emit_body(em, kernel.body)
        em.scopes.pop()
    signature = b.functions["program"].replace("define void", "define internal void", 1)
    for pointer in (SCRATCH, CONTEXT):
        signature = signature.replace(f"ptr {pointer.ref},", f"ptr noalias {pointer.ref},", 1)
    b.functions["program"] = signature
    _emit_entry(em, module, parameters, hidden)
    arguments = []
    for argument in kernel.body.blocks[0].arguments:
        element = argument.type.element
        kind = image.POINTER if element == "ptr" else image.FLOAT if is_float_element(element) else image.INTEGER
        arguments.append((kind, element_size(element)))
    text = b.module_text(machine.TRIPLE, machine.data_layout(architecture)) + "\n" + machine.attributes(architecture)
    return Program(text, tuple(arguments), em.scratch_size, int(em.cost / INSTRUCTIONS_PER_NANOSECOND))


def _emit_entry(em: KernelEmitter, module: Module, parameters: list[Value], hidden: list[Value]) -> None:
    b = em.b
    packed, first, last = Value("%packed", "ptr"), Value("%first", "i64"), Value("%last", "i64")
    listed = [
        image.Argument(0, element_size(argument.type.element)) for argument in module.kernel.body.blocks[0].arguments
    ]
    offsets, _ = image.lay_out(listed)
    with b.function("mtia_entry", "void", [packed, CONTEXT, first, last, SCRATCH], "#0"):
        values = []
        for parameter, argument, offset in zip(parameters, listed, offsets, strict=True):
            address = b.offset(packed, offset)
            if parameter.type == "i1":
                values.append(b.cast("trunc", b.load("i8", address, 1), "i1"))
            else:
                values.append(b.load(parameter.type, address, argument.size))
        host_offset = b.load("i64", b.offset(CONTEXT, CONTEXT_HOST_OFFSET), 8)
        grid = [b.load("i32", b.offset(CONTEXT, CONTEXT_GRID + 4 * axis), 4) for axis in range(3)]
        grid_x, grid_y = (b.cast("zext", size, "i64") for size in grid[:2])
        loop, done, before = b.label("programs"), b.label("done"), b.block
        b.branch(b.icmp("slt", first, last), loop, done)
        b.start(loop)
        program, following = b.name(), b.name()
        b.emit(f"{program} = phi i64 [ {first.ref}, %{before} ], [ {following}, %{loop} ]")
        number = Value(program, "i64")
        row = b.binary("udiv", number, grid_x)
        x = b.sub(number, b.mul(row, grid_x))
        z = b.binary("udiv", row, grid_y)
        y = b.sub(row, b.mul(z, grid_y))
        programs = [b.cast("trunc", part, "i32") for part in (x, y, z)]
        passed = [*values, CONTEXT, SCRATCH, host_offset, *programs, *grid]
        b.emit(f"call void @program({', '.join(map(str, passed))})")
        b.emit(f"{following} = add nsw i64 {program}, 1")
        b.branch(b.icmp("slt", Value(following, "i64"), last), loop, done)
        b.start(done)
        b.emit("ret void")
    assert len(passed) == len(parameters) + len(hidden)
