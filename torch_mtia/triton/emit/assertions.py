"""Assertions, assumptions and barriers; how a program reports that an assertion failed."""

from __future__ import annotations

from torch_mtia.triton import abi
from torch_mtia.triton.emit.environment import CONTEXT, PROGRAM, Environment, statement
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.lanes import Lane, materialize
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, integer, lanes_of
from torch_mtia.triton.plan.plan import Do

REPORT = "report_error"


def report(b: Builder, message: str, line: int) -> None:
    """Writes the error to the launch's error cell, unless another program was first."""
    if REPORT not in b.functions:
        _define_report(b)
    size = abi.ERROR_CELL_MESSAGE_COUNT
    text = b.string(message.encode()[: size - 1].ljust(size, b"\0"))
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
            size = integer(abi.ERROR_CELL_MESSAGE_COUNT, "i64")
            copied = b.offset(cell, abi.ERROR_CELL_MESSAGE)
            b.intrinsic("llvm.memcpy.inline.p0.p0.i64", "void", copied, text, size, integer(0, "i1"))
        b.emit("ret void")


def check_assertion(b: Builder, op: Op, condition: Lane, width: int) -> None:
    """Reports the assertion's message if a lane of the condition is false."""
    flags = materialize(b, condition, 0 if condition.uniform else width)
    failed = b.binary("xor", flags, b.integer_like(-1, flags))
    lanes = lanes_of(failed)
    any_failed = b.intrinsic(f"llvm.vector.reduce.or.v{lanes}i1", "i1", failed) if lanes else failed
    message = f"device assertion failed: {op.attributes['message']}"
    with b.when(any_failed):
        report(b, message, op.location.line)


@statement("tt.assert")
def _assert(env: Environment, do: Do) -> None:
    (condition,) = do.op.operands
    if not do.nests:
        check_assertion(env.b, do.op, env.scalar(condition), 0)
        return
    loop_over(env, do.nests[0], lambda strip: check_assertion(env.b, do.op, strip.value(condition), strip.width))


@statement("llvm.intr.assume")
def _assume(env: Environment, do: Do) -> None:
    env.b.intrinsic("llvm.assume", "void", env.scalar(do.op.operands[0]).value)


@statement("gpu.barrier", "ttg.barrier", "ttg.local_barrier", "tt.debug_barrier")
def _nothing(env: Environment, do: Do) -> None:
    """A program runs on one thread, so there is nobody to wait for."""
