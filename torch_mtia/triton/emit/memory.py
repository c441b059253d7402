"""Loads and stores of device memory, and what a kernel asks about its place in the grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch_mtia.triton.analyses.symbolic import TRUE
from torch_mtia.triton.analyses.walk import own_dims
from torch_mtia.triton.emit import watching
from torch_mtia.triton.emit.access import Pointers, is_true, read, write
from torch_mtia.triton.emit.environment import GRID, HOST_OFFSET, PROGRAM, Environment, placed, scalar, statement
from torch_mtia.triton.emit.loops import evaluate, is_true_throughout, loop_over
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import element_size, llvm_element
from torch_mtia.triton.ir.module import Op, Unsupported
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.ir.ops import load_operands, store_operands
from torch_mtia.triton.lanes import Index, Lane, materialize, offset_address
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, integer, vector_type
from torch_mtia.triton.plan.nests import Access, Nest
from torch_mtia.triton.plan.plan import Do, Steps, Store, StoreStaged

CACHE_LINE = 64
# Keeps LLVM from taking what is loaded for what was there before; the processor keeps loads in order by itself.
COMPILER_FENCE = 'fence syncscope("singlethread") acq_rel'


@statement("tt.get_program_id")
def _program_id(env: Environment, do: Do) -> None:
    env.set_scalar(do.op.results[0], PROGRAM[do.op.attributes["axis"]])


@statement("tt.get_num_programs")
def _num_programs(env: Environment, do: Do) -> None:
    env.set_scalar(do.op.results[0], GRID[do.op.attributes["axis"]])


@placed("tt.addptr")
def _addptr(strip: Strip, op: Op, index: Index) -> Lane:
    address, offset = (strip.value(operand, index) for operand in op.operands)
    return offset_address(strip.b, op, address, offset, strip.width)


def pointers_of(env: Environment, address: Lane, width: int) -> Pointers:
    """Host addresses of a strip of device addresses."""
    if address.stride is not None:
        return Pointers(env.host_address(address.value), address.stride)
    moved = env.b.add(address.value, env.b.splat(HOST_OFFSET, width))
    return Pointers(env.b.define(vector_type(width, "ptr"), f"inttoptr {moved} to {vector_type(width, 'ptr')}"), None)


def memory_element(pointer: Tensor) -> tuple[str, int]:
    """LLVM type and size of what a pointer points to."""
    pointee = pointer.type.pointee
    if pointee.startswith("!tt.ptr"):
        return "i64", 8
    if pointee == "i1":
        return "i8", 1
    return llvm_element(pointee), element_size(pointee)


def _from_memory(b: Builder, lane: Lane, pointer: Tensor) -> Lane:
    return Lane(b.cast("trunc", lane.value, "i1"), lane.stride) if pointer.type.pointee == "i1" else lane


def _to_memory(b: Builder, lane: Lane, pointer: Tensor) -> Lane:
    return Lane(b.cast("zext", lane.value, "i8"), lane.stride) if pointer.type.pointee == "i1" else lane


def load_lane(
    env: Environment,
    op: Op,
    address: Lane,
    mask: Lane | None,
    other: Lane | None,
    width: int,
    kind: str | None = None,
) -> Lane:
    """A strip from device memory. `kind`: how the plan accesses it; None of a scalar."""
    pointer = op.operands[0]
    if pointer.type.pointee.startswith("tensor"):
        raise Unsupported("a load through a block pointer that was not rewritten", op.location)
    memory, size = memory_element(pointer)
    assert kind is not None or not width, "the plan says how strips are loaded"
    kind = kind or "scalar"
    if env.instrumented:
        mask = watching.allowed(env, op, address, size, mask, width)
    if other is not None:
        other = _to_memory(env.b, other, pointer)
    pointers = pointers_of(env, address, width)
    if not op.attributes.get("isVolatile"):
        return _from_memory(env.b, read(env.b, pointers, memory, size, width, mask, other, kind), pointer)
    env.b.emit(COMPILER_FENCE)
    lane = read(env.b, pointers, memory, size, width, mask, other, kind)
    env.b.emit(COMPILER_FENCE)
    return _from_memory(env.b, lane, pointer)


@placed("tt.load")
def _load(strip: Strip, op: Op, index: Index) -> Lane:
    pointer, mask, other = load_operands(op)
    address, access = strip.value(pointer, index), strip.access(op, index)
    if access is not None and access.ahead:
        _fetch_ahead(strip, pointer, address, index, access)
    return load_lane(
        strip.env,
        op,
        address,
        strip.value(mask, index) if mask is not None else None,
        strip.value(other, index) if other is not None else None,
        strip.width,
        None if access is None else access.kind,
    )


def _fetch_ahead(strip: Strip, pointer: Tensor, address: Lane, index: Index, access: Access) -> None:
    env, rows = strip.env, access.rows
    if strip.place * memory_element(pointer)[1] % CACHE_LINE:  # a neighbour fetches
        return
    if rows is None:
        env.b.prefetch(env.b.offset(env.host_address(address.value), access.ahead))
        return
    below = Lane(env.b.add(index[rows].value, integer(access.ahead, "i32")))
    later = (*index[:rows], below, *index[rows + 1 :])
    env.b.prefetch(env.host_address(Strip(env, strip.sources, later, strip.width).value(pointer).value))


@scalar("tt.load")
def _scalar_load(env: Environment, op: Op) -> None:
    pointer, mask, other = load_operands(op)
    lane = load_lane(
        env,
        op,
        env.scalar(pointer),
        env.scalar(mask) if mask is not None else None,
        env.scalar(other) if other is not None else None,
        0,
    )
    env.scalars[op.results[0]] = lane


def store_lane(
    env: Environment, op: Op, address: Lane, value: Lane, mask: Lane | None, width: int, kind: str = "scalar"
) -> None:
    pointer = op.operands[0]
    memory, size = memory_element(pointer)
    stored = _to_memory(env.b, value, pointer)
    if env.instrumented:
        mask = watching.allowed(env, op, address, size, mask, width, materialize(env.b, stored, width))
    write(env.b, pointers_of(env, address, width), memory, size, width, stored, mask, kind)


@statement("tt.store")
def _scalar_store(env: Environment, do: Do) -> None:
    pointer, value, mask = store_operands(do.op)
    if env.instrumented:
        watching.begin_store(env, do.op, memory_element(pointer)[1])
    flag = env.scalar(mask) if mask is not None else None
    store_lane(env, do.op, env.scalar(pointer), env.scalar(value), flag, 0)


def store(env: Environment, step: Store, run: Callable[[Environment, Steps], None]) -> None:
    """Reads and writes in one nest, without a mask where it is true throughout; where `unstaged` is false, it writes to
    buffers that are copied afterwards, by what `run` writes for steps."""
    b, nest = env.b, step.nest
    if env.instrumented:
        for each in step.stores:
            watching.begin_store(env, each, memory_element(each.operands[0])[1])
    unstaged = None if step.unstaged is TRUE else evaluate(env, step.unstaged)
    nontemporal = None if step.nontemporal is None else evaluate(env, step.nontemporal)
    if step.unmasked is None:
        _store(env, step, nest, unstaged, nontemporal, run)
        return
    simple = integer(1, "i1") if unstaged is None else unstaged
    for end in nest.ends.values():
        simple = b.binary("and", simple, is_true_throughout(env, nest.sources, end))
    whole, partly, done = b.label("whole"), b.label("partly"), b.label("stored")
    b.branch(simple, whole, partly)
    b.start(whole)
    sources = dataclasses.replace(nest.sources, true=frozenset({step.unmasked}))
    _store(env, step, dataclasses.replace(nest, sources=sources, ends={}), None, nontemporal, run)
    b.jump(done)
    b.start(partly)
    _store(env, step, nest, unstaged, nontemporal, run)
    b.jump(done)
    b.start(done)


def _store(
    env: Environment,
    step: Store,
    nest: Nest,
    unstaged: Value | None,
    nontemporal: Value | None,
    run: Callable[[Environment, Steps], None],
) -> None:
    b = env.b

    def body(strip: Strip) -> None:
        lanes = [[strip.value(root) for root in each.operands] for each in step.stores]
        done = ""
        if unstaged is not None:
            direct, delayed, done = b.label("direct"), b.label("delayed"), b.label("stored")
            b.branch(unstaged, direct, delayed)
            b.start(delayed)
            for buffer, (_, value, *_) in zip(step.staged, lanes, strict=True):
                strip.write(buffer, value)
            b.jump(done)
            b.start(direct)
        for each, (address, value, *flags) in zip(step.stores, lanes, strict=True):
            access = strip.accesses[each, own_dims(each.operands[0])]
            _store_strip(env, each, address, value, flags[0] if flags else None, strip.width, access, nontemporal)
        if unstaged is not None:
            b.jump(done)
            b.start(done)

    loop_over(env, nest, body)
    if unstaged is not None:
        with b.when(b.binary("xor", unstaged, integer(1, "i1"))):
            run(env, step.afterwards)


def store_staged(env: Environment, step: StoreStaged) -> None:
    def body(strip: Strip) -> None:
        pointer, _, mask = store_operands(step.store)
        address, flag = strip.value(pointer), strip.value(mask) if mask is not None else None
        value = strip.read(step.source)
        access = strip.accesses[step.store, own_dims(pointer)]
        store_lane(env, step.store, address, value, flag, strip.width, access.kind)

    loop_over(env, step.nest, body)


def _store_strip(
    env: Environment,
    op: Op,
    address: Lane,
    value: Lane,
    mask: Lane | None,
    width: int,
    access: Access,
    nontemporal: Value | None,
) -> None:
    b = env.b
    size = memory_element(op.operands[0])[1]
    if nontemporal is None or not access.nontemporal:
        store_lane(env, op, address, value, mask, width, access.kind)
        return
    aim, stream, plain, done = (b.label(stem) for stem in ("aim", "stream", "plain", "written"))
    b.branch(nontemporal, aim, plain)
    b.start(aim)  # such a store needs an aligned address, and has no mask
    host = env.host_address(address.value)
    misaligned = b.binary("and", b.define("i64", f"ptrtoint {host} to i64"), integer(width * size - 1, "i64"))
    fits = b.icmp("eq", misaligned, integer(0, "i64"))
    if not is_true(mask):
        assert mask is not None
        flags = materialize(b, mask, width)
        fits = b.binary("and", fits, b.intrinsic(f"llvm.vector.reduce.and.v{width}i1", "i1", flags))
    b.branch(fits, stream, plain)
    b.start(stream)
    stored = materialize(b, _to_memory(b, value, op.operands[0]), width)
    b.emit(f"store {stored}, ptr {host.ref}, align {width * size}, !nontemporal !0")
    b.jump(done)
    b.start(plain)
    store_lane(env, op, address, value, mask, width, access.kind)
    b.jump(done)
    b.start(done)
    env.nontemporal = True
