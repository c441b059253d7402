"""What kernels say to people and to the compiler, and what means nothing here: assert, assume, barriers."""

from __future__ import annotations

from torch_mtia.triton.emit.bounds import check_assertion
from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.registry import statement
from torch_mtia.triton.ttir import Op


@statement("tt.assert")
def _assert(em: KernelEmitter, op: Op) -> None:
    (condition,) = op.operands
    shape = condition.type.shape
    if shape is None:
        check_assertion(em, op, em.scalar(condition), 0)
        return
    em.run_nest(op, [condition], shape, lambda strip: check_assertion(em, op, strip.value(condition), strip.width))


@statement("llvm.intr.assume")
def _assume(em: KernelEmitter, op: Op) -> None:
    em.b.intrinsic("llvm.assume", "void", em.scalar(op.operands[0]).value)


@statement("gpu.barrier", "ttg.barrier", "ttg.local_barrier", "tt.debug_barrier")
def _nothing(em: KernelEmitter, op: Op) -> None:
    """A program runs on one thread, so there is nobody to wait for."""
