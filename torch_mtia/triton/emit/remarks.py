"""What kernels say to people and to the compiler, and what means nothing here: assert, assume, barriers."""

from __future__ import annotations

from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.errors import check_assertion
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.emit.registry import statement
from torch_mtia.triton.plan.plan import Do


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
