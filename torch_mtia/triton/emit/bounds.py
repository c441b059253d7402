"""Checks that accesses stay inside live memory (TORCH_MTIA_CHECK_BOUNDS=1), and how a program reports an error.

Every lane is checked by itself: this mode is for finding a mistake. An access outside is reported and skipped.
"""

from __future__ import annotations

import os

from torch_mtia.triton import abi
from torch_mtia.triton.emit.parameters import CONTEXT, PROGRAM
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.lanes import Lane, materialize
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, integer, lanes_of, undefined, vector_type

REPORT = "report_error"
IN_BOUNDS = "in_bounds"


def report(b: Builder, message: str, line: int) -> None:
    """Writes the error to the launch's error cell, unless another program was first."""
    if REPORT not in b.functions:
        _define_report(b)
    text = b.string(message.encode()[: abi.ERROR_CELL_MESSAGE_COUNT - 1])
    programs = ", ".join(map(str, PROGRAM))
    b.emit(f"call void @{REPORT}(ptr {CONTEXT.ref}, {programs}, i32 {line}, ptr {text.ref})")


def _define_report(b: Builder) -> None:
    context, line, text = Value("%context", "ptr"), Value("%line", "i32"), Value("%text", "ptr")
    programs = [Value(f"%program_{axis}", "i32") for axis in "xyz"]
    with b.function(REPORT, "void", [context, *programs, line, text], "noinline cold #0"):
        cell = b.load("ptr", b.offset(context, abi.KERNEL_CONTEXT_ERROR_CELL), 8)
        swapped = b.define("{ i64, i1 }", f"cmpxchg ptr {cell.ref}, i64 0, i64 1 acq_rel monotonic")
        won = b.define("i1", f"extractvalue {{ i64, i1 }} {swapped.ref}, 1")
        with b.when(won):
            for number, program in enumerate(programs):
                b.store(program, b.offset(cell, abi.ERROR_CELL_PROGRAM + 4 * number), 4)
            b.store(line, b.offset(cell, abi.ERROR_CELL_LINE), 4)
            head, done, before = b.label("copy"), b.label("copied"), b.block
            b.jump(head)
            b.start(head)
            position, following = b.name(), b.name()
            b.emit(f"{position} = phi i64 [ 0, %{before} ], [ {following}, %{head} ]")
            here = Value(position, "i64")
            character = b.load("i8", b.element_address(text, "i8", here), 1)
            b.store(character, b.offset(b.offset(cell, abi.ERROR_CELL_MESSAGE), here), 1)
            b.emit(f"{following} = add i64 {position}, 1")
            last = b.icmp("eq", character, integer(0, "i8"))
            b.branch(last, done, head)
            b.start(done)
        b.emit("ret void")


def _define_in_bounds(b: Builder) -> None:
    """Binary search for the last live range that begins at or below the address."""
    context, address, size = Value("%context", "ptr"), Value("%address", "i64"), Value("%size", "i64")
    with b.function(IN_BOUNDS, "i1", [context, address, size], "noinline #0"):
        ranges = b.load("ptr", b.offset(context, abi.KERNEL_CONTEXT_LIVE_RANGES), 8)
        count = b.load("i64", b.offset(context, abi.KERNEL_CONTEXT_NUM_LIVE_RANGES), 8)
        unchecked = b.define("i1", f"icmp eq ptr {ranges.ref}, null")
        search, found, head, body = (b.label(stem) for stem in ("search", "found", "head", "body"))
        fine = b.label("fine")
        b.branch(unchecked, fine, search)
        b.start(fine)
        b.emit("ret i1 true")
        b.start(search)
        b.jump(head)
        b.start(head)
        low, high, next_low, next_high = (b.name() for _ in range(4))
        b.emit(f"{low} = phi i64 [ 0, %{search} ], [ {next_low}, %{body} ]")
        b.emit(f"{high} = phi i64 [ {count.ref}, %{search} ], [ {next_high}, %{body} ]")
        b.branch(b.icmp("ult", Value(low, "i64"), Value(high, "i64")), body, found)
        b.start(body)
        total = b.binary("add", Value(low, "i64"), Value(high, "i64"))
        middle = b.binary("lshr", total, integer(1, "i64"))
        begin = b.load("i64", b.offset(ranges, b.mul(middle, integer(16, "i64"))), 8)
        below = b.icmp("ule", begin, address)
        after = b.binary("add", middle, integer(1, "i64"))
        b.emit(f"{next_low} = select i1 {below.ref}, i64 {after.ref}, i64 {low}")
        b.emit(f"{next_high} = select i1 {below.ref}, i64 {high}, i64 {middle.ref}")
        b.jump(head)
        b.start(found)
        outside, check = b.label("outside"), b.label("check")
        b.branch(b.icmp("eq", Value(low, "i64"), integer(0, "i64")), outside, check)
        b.start(outside)
        b.emit("ret i1 false")
        b.start(check)
        last = b.offset(ranges, b.mul(b.binary("sub", Value(low, "i64"), integer(1, "i64")), integer(16, "i64")))
        start, length = b.load("i64", last, 8), b.load("i64", b.offset(last, 8), 8)
        past = b.binary("sub", b.binary("add", address, size), start)
        inside = b.icmp("ule", past, length)
        b.emit(f"ret i1 {inside.ref}")


def argument_of(pointer: Tensor) -> str:
    """The kernel's argument that a pointer is computed from, if it is known."""
    value = pointer
    while value.op is not None:
        if value.op.name not in ("tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.bitcast", "tt.trans"):
            return ""
        value = value.op.operands[0]
    return value.name.lstrip("%")


def checked(b: Builder, op: Op, address: Lane, size: int, mask: Lane | None, width: int) -> Lane:
    """The mask without the lanes whose address is not in live memory; these are reported."""
    if IN_BOUNDS not in b.functions:
        _define_in_bounds(b)
    kind = {"tt.load": "reads", "tt.store": "writes"}.get(op.name, "accesses")
    argument = argument_of(op.operands[0])
    through = f" through argument {argument}" if argument else ""
    file = os.path.basename(op.location.file)
    message = f"{kind} outside of live memory{through} ({file}:{op.location.line})"
    if not width:
        return Lane(_check_one(b, address.value, size, mask.value if mask else None, message, op))
    addresses = materialize(b, address, width)
    flags = materialize(b, mask, width) if mask is not None else None
    result = undefined(vector_type(width, "i1"))
    for lane in range(width):
        one = b.extract(flags, lane) if flags is not None else None
        result = b.insert(result, _check_one(b, b.extract(addresses, lane), size, one, message, op), lane)
    return Lane(result, None)


def _check_one(b: Builder, address: Value, size: int, wanted: Value | None, message: str, op: Op) -> Value:
    inside = b.define("i1", f"call i1 @{IN_BOUNDS}(ptr {CONTEXT.ref}, i64 {address.ref}, i64 {size})")
    failed = b.binary("xor", inside, integer(1, "i1"))
    if wanted is not None:
        failed = b.binary("and", failed, wanted)
    with b.when(failed):
        report(b, message, op.location.line)
    return b.binary("and", inside, wanted) if wanted is not None else inside


def check_assertion(b: Builder, op: Op, condition: Lane, width: int) -> None:
    """Reports the assertion's message if a lane of the condition is false."""
    flags = materialize(b, condition, 0 if condition.uniform else width)
    failed = b.binary("xor", flags, b.integer_like(-1, flags))
    lanes = lanes_of(failed)
    any_failed = b.intrinsic(f"llvm.vector.reduce.or.v{lanes}i1", "i1", failed) if lanes else failed
    message = f"device assertion failed: {op.attributes['message']}"
    with b.when(any_failed):
        report(b, message, op.location.line)
