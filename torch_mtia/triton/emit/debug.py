"""What kernels say to people, and what means nothing here: assert, print, assume, barriers."""

from __future__ import annotations

from torch_mtia.triton.emit import bounds
from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.memory import any_lane
from torch_mtia.triton.emit.nest import Strip
from torch_mtia.triton.emit.registry import statement
from torch_mtia.triton.lanes import materialize
from torch_mtia.triton.llvm import Value
from torch_mtia.triton.ttir import Op


@statement("tt.assert")
def _assert(em: KernelEmitter, op: Op) -> None:
    (condition,) = op.operands
    b = em.b
    message = f"device assertion failed: {op.attributes['message']}"

    def check(flags: Value, width: int) -> None:
        failed = b.binary("xor", flags, b.integer_like(-1, flags))
        with b.when(any_lane(b, failed, width)):
            bounds.report(em, message, op.location.line)

    shape = condition.type.shape
    if shape is None:
        check(em.scalar(condition).value, 0)
        return

    def body(strip: Strip) -> None:
        check(materialize(b, strip.value(condition), strip.width), strip.width)

    em.run_nest(op, [condition], shape, body)


@statement("llvm.intr.assume", "gpu.barrier", "ttg.barrier", "ttg.local_barrier", "tt.debug_barrier")
def _nothing(em: KernelEmitter, op: Op) -> None:
    """A program runs on one thread, so there is nobody to wait for."""
