"""Operations that only say where an element is found, and constants."""

from __future__ import annotations

from torch_mtia.triton.emit.access import read_table
from torch_mtia.triton.emit.elementwise import constant_value
from torch_mtia.triton.emit.environment import Environment, placed, statement
from torch_mtia.triton.emit.strip import ZERO, Strip
from torch_mtia.triton.ir.attributes import Dense
from torch_mtia.triton.ir.elements import llvm_element
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.lanes import Index, Lane
from torch_mtia.triton.llvm_value import integer, zero
from torch_mtia.triton.plan.nests import Buffer, Storage, row_major
from torch_mtia.triton.plan.plan import Do


@placed("tt.splat")
def _splat(strip: Strip, op: Op, index: Index) -> Lane:
    return strip.value(op.operands[0], index)


@placed("arith.constant")
def _constant(strip: Strip, op: Op, index: Index) -> Lane:
    constant = op.attributes["value"]
    if not isinstance(constant, Dense) or constant.splat:
        return Lane(constant_value(op, 0))
    shape, element = op.results[0].type.shape, op.results[0].type.element
    assert shape is not None
    numbers = [int(constant_value(op, 0, position).ref) for position in range(len(constant.values))]
    table = strip.b.constant_array(numbers, llvm_element(element))
    as_buffer = Buffer(Storage(0, len(numbers), element, True), shape, row_major(shape), element)
    access = strip.access(op, index)
    return read_table(strip.b, table, as_buffer, index, strip.width, None if access is None else access.kind)


@placed("ub.poison")
def _poison(strip: Strip, op: Op, index: Index) -> Lane:
    return Lane(zero(llvm_element(op.results[0].type.element)))


@placed("tt.make_range")
def _make_range(strip: Strip, op: Op, index: Index) -> Lane:
    (lane,) = index
    start = op.attributes["start"]
    if start == 0:
        return lane
    if lane.stride is None:
        return Lane(strip.b.add(lane.value, strip.b.integer_like(start, lane.value)), None)
    return Lane(strip.b.add(lane.value, integer(start, "i32")), lane.stride)


@placed("tt.expand_dims")
def _expand_dims(strip: Strip, op: Op, index: Index) -> Lane:
    axis = op.attributes["axis"]
    return strip.value(op.operands[0], index[:axis] + index[axis + 1 :])


@placed("tt.broadcast")
def _broadcast(strip: Strip, op: Op, index: Index) -> Lane:
    source, target = op.operands[0].type.shape, op.results[0].type.shape
    assert source is not None
    assert target is not None
    if source == target:
        return strip.value(op.operands[0], index)
    inner = tuple(
        ZERO if size == 1 and wanted != 1 else lane for size, wanted, lane in zip(source, target, index, strict=True)
    )
    return strip.value(op.operands[0], inner)


@placed("tt.trans")
def _trans(strip: Strip, op: Op, index: Index) -> Lane:
    inner: list[Lane] = [ZERO] * len(index)
    for position, source in enumerate(op.attributes["order"]):
        inner[source] = index[position]
    return strip.value(op.operands[0], tuple(inner))


@statement("tt.unsplat")
def _unsplat(env: Environment, do: Do) -> None:
    (nest,) = do.nests
    strip = Strip(env, nest.sources, (ZERO,) * len(nest.shape), 0)
    env.set_scalar(do.op.results[0], strip.value(do.op.operands[0]).value)
