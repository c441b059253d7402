"""Where a program lets others go on, in kernels whose programs run in a random order: Note [Interleaved programs] in
mtia_runtime.h."""

from __future__ import annotations

from torch_mtia.triton import abi
from torch_mtia.triton.emit.environment import CONTEXT, SCRATCH, Environment
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, integer
from torch_mtia.triton.plan import plan
from torch_mtia.triton.plan.plan import Step

PACKED, NUMBER = Value("%packed", "ptr"), Value("%number", "i64")
RUN_ONE = "run_one"  # the function that runs one program, of PACKED, CONTEXT, NUMBER and SCRATCH
ONE = (PACKED, CONTEXT, NUMBER, SCRATCH)
_YIELD, _INTERLEAVE = "yield_to_others", "interleaved"


def before(env: Environment, step: Step) -> None:
    """Before atomic operations, stores and volatile loads: what other programs see or change."""
    if env.switches and (_is_atomic(step) or _is_store(step) or _is_volatile(step)):
        yield_to_others(env)


def after(env: Environment, step: Step) -> None:
    """After atomic operations too: what follows them need not happen before another program's."""
    if env.switches and _is_atomic(step):
        yield_to_others(env)


def yield_to_others(env: Environment) -> None:
    if not env.switches:
        return
    b = env.b
    if _YIELD not in b.functions:
        with b.function(_YIELD, "void", [CONTEXT], "noinline #0"):
            done = b.label("done")
            function = _of_context(b, abi.KERNEL_CONTEXT_YIELD, done)
            b.emit(f"call void {function.ref}({CONTEXT})")
            b.jump(done)
            b.start(done)
            b.emit("ret void")
    b.emit(f"call void @{_YIELD}({CONTEXT})")


def interleaved(b: Builder, seed: int, may_wait: bool) -> Value:
    """Whether the driver runs all programs of the launch, by the function RUN_ONE; it has done so then."""
    with b.function(_INTERLEAVE, "i1", [CONTEXT], "noinline #0"):
        cannot = b.label("cannot")
        function = _of_context(b, abi.KERNEL_CONTEXT_INTERLEAVE, cannot)
        passed = [CONTEXT, integer(seed, "i64"), integer(int(may_wait), "i32")]
        b.emit(f"call void {function.ref}({', '.join(map(str, passed))}, ptr @{RUN_ONE})")
        b.emit("ret i1 true")
        b.start(cannot)
        b.emit("ret i1 false")
    return b.define("i1", f"call i1 @{_INTERLEAVE}({CONTEXT})")


def _of_context(b: Builder, offset: int, absent: str) -> Value:
    """A function of the context; without it, control goes to `absent`."""
    look, found = b.label("look"), b.label("found")
    size = b.load("i32", b.offset(CONTEXT, abi.KERNEL_CONTEXT_STRUCT_SIZE), 4)
    b.branch(b.icmp("ugt", size, integer(offset, "i32")), look, absent)
    b.start(look)
    function = b.load("ptr", b.offset(CONTEXT, offset), 8)
    b.branch(b.define("i1", f"icmp eq ptr {function.ref}, null"), absent, found)
    b.start(found)
    return function


def _is_atomic(step: Step) -> bool:
    return isinstance(step, plan.AddNeighbours) or (
        isinstance(step, plan.Do) and step.op.name in ("tt.atomic_rmw", "tt.atomic_cas")
    )


def _is_store(step: Step) -> bool:
    return isinstance(step, (plan.Store, plan.StoreStaged)) or (
        isinstance(step, plan.Do) and step.op.name == "tt.store"
    )


def _is_volatile(step: Step) -> bool:
    values = [value for value, _ in step.writes] if isinstance(step, plan.Evaluate) else []
    ops = [step.op] if isinstance(step, plan.Do) else [value.op for value in values if value.op is not None]
    return any(op.name == "tt.load" and op.attributes.get("isVolatile") for op in ops)
