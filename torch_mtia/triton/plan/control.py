"""Control flow: structured loops and branches, blocks with branches (early returns), calls.

Scalars that a construct carries travel by themselves, tensors in buffers. A tensor of pointers or indices that a loop
only moves by scalars is not stored: it is where it starts, plus how far it has come (analyses/provenance.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mtia.triton.analyses.provenance import steps
from torch_mtia.triton.analyses.walk import own_dims, walk
from torch_mtia.triton.ir.module import Block, Op, Region, Unsupported, Value
from torch_mtia.triton.ir.ops import Dims, is_scalar
from torch_mtia.triton.plan.dimensions import dimension_votes
from torch_mtia.triton.plan.nests import Buffer, Storage, innermost_first
from torch_mtia.triton.plan.plan import (
    Body,
    Branch,
    Call,
    Carried,
    Copy,
    For,
    If,
    Jump,
    Leave,
    MapElements,
    PlannedBlock,
    Steps,
    Unreachable,
    While,
)
from torch_mtia.triton.plan.planner import Planner, plans, shape_of

# Assignments to buffers -----------------------------------------------------------------------------------------------


def assign(planner: Planner, op: Op, pairs: Sequence[tuple[Value, Buffer]]) -> None:
    """Writes tensors into buffers as if all at once: what a value reads is not overwritten before."""
    groups: dict[tuple[int, ...], list[tuple[Value, Buffer]]] = {}
    for value, target in pairs:
        if planner.materialized.get(value) is not target:
            groups.setdefault(target.shape, []).append((value, target))
    written = {target.storage for group in groups.values() for _, target in group}
    direct: list[list[tuple[Value, Buffer]]] = []
    delayed: list[tuple[Buffer, Buffer]] = []
    for group in groups.values():
        if all(_may_write(planner, value, group, written) for value, _ in group):
            direct.append(group)
            continue
        copies = [planner.new_buffer(target.shape, target.element, target.strides) for _, target in group]
        planner.materialize([value for value, _ in group], op, copies)
        delayed += [(copy, target) for copy, (_, target) in zip(copies, group, strict=True)]
    for group in direct:
        planner.materialize([value for value, _ in group], op, [target for _, target in group])
    for source, target in delayed:
        strides = target.strides
        dim = min(range(len(strides)), key=lambda d: (strides[d] if target.shape[d] > 1 else 1 << 60, d))
        planner.add(Copy(planner.plain_nest(target.shape, dim), source, target))


def _may_write(planner: Planner, value: Value, group: Sequence[tuple[Value, Buffer]], written: set[Storage]) -> bool:
    """Whether evaluating `value` reads, of the buffers that are written, only elements of its own group, and these at
    the place where they are written."""
    return all(
        buffer.storage not in written or (same and any(buffer.is_at(target) for _, target in group))
        for buffer, same in _buffers_read(planner, value)
    )


def _buffers_read(planner: Planner, value: Value) -> list[tuple[Buffer, bool]]:
    """The buffers that evaluating `value` reads, and whether at the place that is evaluated."""
    found: list[tuple[Buffer, bool]] = []

    def enter(each: Value, dims: Dims) -> Sequence[Value] | None:
        if (buffer := planner.materialized.get(each)) is not None:
            found.append((buffer, dims == own_dims(value) and each.type.shape == value.type.shape))
        elif each in planner.advanced:
            return [planner.advanced[each]]
        elif each.op is not None and each.type.shape is not None:
            return each.op.operands
        return None

    walk([(value, own_dims(value))], enter)
    return found


def _new_buffer_for(planner: Planner, value: Value, computed: Value | None = None) -> Buffer:
    """A buffer for `value`, in the order in which `computed`, which is put there, is best evaluated."""
    shape = shape_of(value)
    strides = None
    if computed is not None and any(dimension_votes([computed], shape, planner.materialized, planner.affine)):
        strides = innermost_first(shape, planner.best_dimension([computed], shape))
    return planner.new_buffer(shape, value.type.element, strides)


# Loops ----------------------------------------------------------------------------------------------------------------


def _carry(
    planner: Planner,
    op: Op,
    arguments: Sequence[Value],
    initial: Sequence[Value],
    following: Sequence[Value],
    results: Sequence[Value | None],
    *,
    moves: bool,
) -> tuple[Carried, ...]:
    """How values enter a loop, which they do at once."""
    carried: list[Carried] = []
    for argument, start, after, result in zip(arguments, initial, following, results, strict=True):
        item = Carried(argument, start, after, argument if result is None else result)
        if not is_scalar(argument):
            added = steps(argument, after) if moves else None
            if added is not None:
                item = Carried(argument, start, after, item.result, None, added)
            else:
                buffer = _new_buffer_for(planner, argument, after if moves else None)
                item = Carried(argument, start, after, item.result, buffer)
        carried.append(item)
    assign(planner, op, [(item.initial, item.buffer) for item in carried if item.buffer is not None])
    for item in carried:
        if item.buffer is not None:
            planner.materialized[item.argument] = item.buffer
        elif item.moves is not None:
            planner.advanced[item.argument] = item.initial
    return tuple(carried)


def _next_round(planner: Planner, carried: Sequence[Carried], terminator: Op) -> None:
    """Moves the tensors that the body yields to where the next round finds them."""
    pairs = [
        (item.following, item.buffer)
        for item in carried
        if item.buffer is not None and item.following is not item.argument
    ]
    assign(planner, terminator, pairs)


def _single_block(region: Region, op: Op) -> Block:
    if len(region.blocks) != 1:
        raise Unsupported("a loop or branch whose body has several blocks", op.location)
    return region.blocks[0]


@plans("scf.for")
def _for(planner: Planner, op: Op) -> None:
    body = _single_block(op.regions[0], op)
    following = body.terminator.operands
    carried = _carry(planner, op, body.arguments[1:], op.operands[3:], following, op.results, moves=True)
    for item in carried:
        value = item.following
        if item.buffer is not None and value.op is not None and value.op.block is body and len(value.users) == 1:
            planner.destinations[value] = item.buffer
    with planner.collected() as inner, planner.block_scope(body):
        planner.plan_ops(body.ops[:-1])
        _next_round(planner, carried, body.terminator)
    planner.add(For(op, carried, tuple(inner)))
    for item in carried:
        if item.buffer is not None:
            planner.materialized[item.result] = item.buffer
        elif item.moves is not None:
            planner.advanced[item.result] = item.initial


@plans("scf.while")
def _while(planner: Planner, op: Op) -> None:
    """The first region computes the condition and what it hands on; the second one is the body."""
    first, second = (_single_block(region, op) for region in op.regions)
    following = second.terminator.operands
    nothing = [None] * len(first.arguments)
    carried = _carry(planner, op, first.arguments, op.operands, following, nothing, moves=False)
    handed = {result: _new_buffer_for(planner, result) for result in op.results if not is_scalar(result)}
    with planner.collected() as head:
        planner.plan_ops(first.ops[:-1])
        passed = first.terminator.operands[1:]
        pairs = [(value, handed[result]) for value, result in zip(passed, op.results, strict=True) if result in handed]
        assign(planner, first.terminator, pairs)
        for result, argument in zip(op.results, second.arguments, strict=True):
            if result in handed:
                planner.materialized[argument] = planner.materialized[result] = handed[result]
    with planner.collected() as body, planner.block_scope(second):
        planner.plan_ops(second.ops[:-1])
        _next_round(planner, carried, second.terminator)
    planner.add(While(op, carried, tuple(head), tuple(body)))


# Branches -------------------------------------------------------------------------------------------------------------


@plans("scf.if")
def _if(planner: Planner, op: Op) -> None:
    yielded = _single_block(op.regions[0], op).terminator.operands
    buffers = {
        result: _new_buffer_for(planner, result, value)
        for result, value in zip(op.results, yielded, strict=True)
        if not is_scalar(result)
    }
    branches: list[Steps] = []
    for region in op.regions:
        block = _single_block(region, op)
        values = block.terminator.operands
        pairs = [
            (value, buffers[result]) for value, result in zip(values, op.results, strict=True) if result in buffers
        ]
        with planner.collected() as branch, planner.block_scope(block):
            planner.plan_ops(block.ops[:-1])
            assign(planner, block.terminator, pairs)
        branches.append(tuple(branch))
    planner.add(If(op, tuple(branches), buffers))
    planner.materialized.update(buffers)


# Blocks ---------------------------------------------------------------------------------------------------------------


def plan_body(planner: Planner, region: Region) -> Body:
    """The blocks of a function; what leaves it goes where `planner.leave` says."""
    for block in region.blocks[1:]:
        for argument in block.arguments:
            if not is_scalar(argument):
                planner.materialized[argument] = _new_buffer_for(planner, argument)
    blocks: list[PlannedBlock] = []
    for block in region.blocks:
        arguments = {value: planner.materialized[value] for value in block.arguments if value in planner.materialized}
        with planner.collected() as inner:
            if block is region.blocks[0]:
                planner.plan_ops(block.ops)
            else:
                with planner.block_scope(block):
                    planner.plan_ops(block.ops)
        planner.materialized.update(arguments)  # other blocks jump here
        blocks.append(PlannedBlock(block, tuple(inner)))
    return Body(tuple(blocks))


def _jump(planner: Planner, op: Op, block: Block, values: Sequence[Value]) -> None:
    pairs = [
        (value, planner.materialized[argument])
        for argument, value in zip(block.arguments, values, strict=True)
        if not is_scalar(argument)
    ]
    assign(planner, op, pairs)
    planner.add(Jump(block, tuple(values)))


@plans("cf.br")
def _br(planner: Planner, op: Op) -> None:
    _jump(planner, op, op.successors[0], op.operands)


@plans("cf.cond_br")
def _cond_br(planner: Planner, op: Op) -> None:
    (condition,), *passed = op.segments()
    ways: list[Steps] = []
    for block, values in zip(op.successors, passed, strict=True):
        before = dict(planner.materialized)
        with planner.collected() as way:
            _jump(planner, op, block, values)
        planner.after_branch(before)  # what it took to evaluate the arguments is in buffers only on this way
        ways.append(tuple(way))
    planner.add(Branch(condition, (ways[0], ways[1])))


@plans("tt.return", "tt.map_elementwise.return")
def _return(planner: Planner, op: Op) -> None:
    planner.leave[-1](op, op.operands)


@plans("ub.unreachable", "llvm.unreachable")
def _unreachable(planner: Planner, op: Op) -> None:
    planner.add(Unreachable())


# Functions ------------------------------------------------------------------------------------------------------------


def leave_with_scalars(planner: Planner, values: Sequence[Value]) -> None:
    planner.add(Leave(tuple(values)))


@plans("tt.call")
def _call(planner: Planner, op: Op) -> None:
    """The body of the function in place of the call: Triton has no recursion."""
    callee = planner.module.functions[op.attributes["callee"].lstrip("@")]
    scalars: list[tuple[Value, Value]] = []
    tensors: dict[Value, Buffer] = {}
    for argument, operand in zip(callee.body.blocks[0].arguments, op.operands, strict=True):
        if is_scalar(operand):
            scalars.append((argument, operand))
        else:
            (tensors[argument],) = planner.materialize([operand], op)
    buffers = [None if is_scalar(result) else _new_buffer_for(planner, result) for result in op.results]

    def leave(returning: Op, values: Sequence[Value]) -> None:
        pairs = [(value, buffer) for value, buffer in zip(values, buffers, strict=True) if buffer is not None]
        assign(planner, returning, pairs)
        leave_with_scalars(planner, [value for value in values if is_scalar(value)])

    planner.leave.append(leave)
    with planner.function_scope():
        planner.materialized.update(tensors)
        body = plan_body(planner, callee.body)
    planner.leave.pop()
    planner.add(Call(op, tuple(scalars), body))
    for result, buffer in zip(op.results, buffers, strict=True):
        if buffer is not None:
            planner.materialized[result] = buffer


@plans("tt.map_elementwise")
def _map_elementwise(planner: Planner, op: Op) -> None:
    sources = [planner.row_major_buffer(operand, op) for operand in op.operands]
    targets = [planner.destination(result) for result in op.results]
    flat = [buffer.with_view((op.results[0].type.numel,), (1,)) for buffer in (*sources, *targets)]
    planner.leave.append(lambda _returning, values: leave_with_scalars(planner, values))
    body = plan_body(planner, op.regions[0])
    planner.leave.pop()
    pack = op.attributes.get("pack", 1)
    planner.add(MapElements(op, pack, tuple(flat[: len(sources)]), tuple(flat[len(sources) :]), body))
