"""Control flow: structured loops and branches, blocks with branches (early returns), calls.

Scalars that a construct carries become LLVM's phi nodes, tensors live in buffers. A tensor of pointers or indices that
a loop only moves by a scalar is not stored: it is where it starts, plus how far it has come (KernelEmitter.advanced).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from torch_mtia.triton.emit.elementwise import constant_value, pointee_size
from torch_mtia.triton.emit.kernel import KernelEmitter, Scope
from torch_mtia.triton.emit.nest import Buffer, Strip, innermost_first, read_buffer, write_buffer
from torch_mtia.triton.emit.registry import ELEMENTWISE, Unsupported, statement
from torch_mtia.triton.emit.strides import dimension_votes
from torch_mtia.triton.floats import llvm_element
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Phi, Value, integer
from torch_mtia.triton.ttir import Block, Op, Region
from torch_mtia.triton.ttir import Value as Tensor

ASSUMED_TRIPS = 16  # of a loop whose bounds are not constant, for the estimate of a program's cost


def _is_scalar(value: Tensor) -> bool:
    return value.type.shape is None


def _scalar_type(value: Tensor) -> str:
    return llvm_element(value.type.element)


# Assignments to buffers -----------------------------------------------------------------------------------------------


def _buffers_read(em: KernelEmitter, value: Tensor, same: bool, found: list[tuple[Buffer, bool]]) -> None:
    """The buffers that evaluating `value` reads, and whether only at the place that is evaluated."""
    buffer = em.buffers.get(value)
    if buffer is not None:
        found.append((buffer, same))
        return
    if value in em.advanced:
        _buffers_read(em, em.advanced[value][0], same, found)
        return
    if value.op is None or value.type.shape is None:
        return
    same = same and (value.op.name in ELEMENTWISE or value.op.name == "tt.load")
    for operand in value.op.operands:
        if operand.type.shape is not None:
            _buffers_read(em, operand, same, found)


def assign(em: KernelEmitter, op: Op, values: Sequence[Tensor], targets: Sequence[Buffer]) -> None:
    """Writes tensors into buffers as if all at once: what a value reads is not overwritten before."""
    groups: dict[tuple[int, ...], list[tuple[Tensor, Buffer]]] = {}
    for value, target in zip(values, targets, strict=True):
        if em.buffers.get(value) is not target:
            groups.setdefault(target.shape, []).append((value, target))
    written = {target.root for pairs in groups.values() for _, target in pairs}
    direct: list[list[tuple[Tensor, Buffer]]] = []
    delayed: list[tuple[Buffer, Buffer]] = []
    for pairs in groups.values():
        own = {(target.root, target.address.ref, target.strides) for _, target in pairs}
        safe = True
        for value, _ in pairs:
            reads: list[tuple[Buffer, bool]] = []
            _buffers_read(em, value, True, reads)
            for buffer, same in reads:
                inside = (buffer.root, buffer.address.ref, buffer.strides) in own
                if buffer.root in written and not (same and inside):
                    safe = False
        if safe:
            direct.append(pairs)
            continue
        copies = [em.new_buffer(target.shape, target.element, target.strides) for _, target in pairs]
        em.materialize([value for value, _ in pairs], op, copies)
        delayed += [(copy, target) for copy, (_, target) in zip(copies, pairs, strict=True)]
    for pairs in direct:
        em.materialize([value for value, _ in pairs], op, [target for _, target in pairs])
    for source, target in delayed:
        copy_buffer(em, source, target)


def copy_buffer(em: KernelEmitter, source: Buffer, target: Buffer) -> None:
    dim = min(range(len(target.shape)), key=lambda d: (target.strides[d] if target.shape[d] > 1 else 1 << 60, d))

    def body(strip: Strip) -> None:
        lane = read_buffer(em.b, source, strip.index, strip.width)
        write_buffer(em.b, target, strip.index, lane, strip.width)

    em.loop_over(target.shape, dim, body)


def _new_buffer_for(em: KernelEmitter, value: Tensor, computed: Tensor | None = None) -> Buffer:
    """A buffer for `value`, in the order in which `computed`, which is put there, is best evaluated."""
    shape = value.type.shape
    assert shape is not None
    strides = None
    if computed is not None and any(dimension_votes(em, [computed], shape)):
        strides = innermost_first(shape, em.choose_dim([computed], shape))
    return em.new_buffer(shape, value.type.element, strides)


# Loops ----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Carried:
    """How one value travels around a loop: as a phi, as a buffer, or as a distance from where it starts."""

    argument: Tensor
    initial: Tensor
    phi: Phi | None = None
    buffer: Buffer | None = None
    distance: Phi | None = None


def _step_of(argument: Tensor, following: Tensor) -> list[tuple[Op, Tensor]] | None:
    """The scalars that are added to `argument` to give `following`, as (operation, scalar or constant)."""
    steps: list[tuple[Op, Tensor]] = []
    value = following
    while value is not argument:
        op = value.op
        if op is None or op.name not in ("tt.addptr", "arith.addi"):
            return None
        base, step = op.operands
        source = _uniform_source(step)
        if source is None and op.name == "arith.addi":
            base, step = step, base
            source = _uniform_source(step)
        if source is None:
            return None
        steps.append((op, source))
        value = base
    return steps or None


def _uniform_source(value: Tensor) -> Tensor | None:
    """The scalar that a tensor repeats, or the tensor itself if it is a constant of one value."""
    op = value.op
    while op is not None and op.name in ("tt.broadcast", "tt.expand_dims"):
        value = op.operands[0]
        op = value.op
    if op is not None and op.name == "tt.splat":
        return op.operands[0]
    if op is not None and op.name == "arith.constant":
        constant = op.attributes["value"]
        return value if constant.splat else None
    return None


def _carry(
    em: KernelEmitter, op: Op, arguments: Sequence[Tensor], initial: Sequence[Tensor], yields: Op
) -> list[_Carried]:
    carried = []
    for argument, start, following in zip(arguments, initial, yields.operands, strict=True):
        item = _Carried(argument, start)
        if not _is_scalar(argument):
            if argument.type.element in ("ptr", "i32", "i64") and _step_of(argument, following) is not None:
                pass  # a distance; its phi comes with the loop's head
            else:
                item.buffer = _new_buffer_for(em, argument, following)
        carried.append(item)
    tensors = [item for item in carried if item.buffer is not None]
    assign(em, op, [item.initial for item in tensors], [item.buffer for item in tensors if item.buffer is not None])
    return carried


def _open_head(em: KernelEmitter, carried: Sequence[_Carried]) -> None:
    """Phi nodes of the carried values, with their values before the loop."""
    for item in carried:
        if _is_scalar(item.argument):
            item.phi = Phi(em.b, _scalar_type(item.argument))
            start = em.scalar(item.initial).value
            item.phi.incoming.append((start, em.before_loop))
            em.scalars[item.argument] = Lane(item.phi.value)
        elif item.buffer is not None:
            em.buffers[item.argument] = item.buffer
        else:
            item.distance = Phi(em.b, "i64" if item.argument.type.element == "ptr" else item.argument.type.element)
            item.distance.incoming.append((integer(0, item.distance.value.type), em.before_loop))
            em.advanced[item.argument] = (item.initial, item.distance.value)


def _next_round(em: KernelEmitter, carried: Sequence[_Carried], terminator: Op) -> None:
    """Moves the values that the body yields to where the next round finds them."""
    tensors = [
        (value, item.buffer)
        for item, value in zip(carried, terminator.operands, strict=True)
        if item.buffer is not None and value is not item.argument
    ]
    assign(em, terminator, [value for value, _ in tensors], [buffer for _, buffer in tensors])
    for item, value in zip(carried, terminator.operands, strict=True):
        if item.phi is not None:
            item.phi.add(em.scalar(value).value)
        elif item.distance is not None:
            item.distance.add(_moved(em, item, value))


def _moved(em: KernelEmitter, item: _Carried, following: Tensor) -> Value:
    assert item.distance is not None
    total = item.distance.value
    for op, source in _step_of(item.argument, following) or []:
        if _is_scalar(source):
            step = em.scalar(source).value
        else:
            assert source.op is not None
            step = constant_value(source.op, 0)
        if op.name == "tt.addptr":
            step = em.b.mul(em.b.sext(step, "i64"), integer(pointee_size(op), "i64"))
        total = em.b.add(total, step)
    return total


def _finish(em: KernelEmitter, carried: Sequence[_Carried], results: Sequence[Tensor]) -> None:
    """Binds the results of the loop to the carried values at its head."""
    for item, result in zip(carried, results, strict=True):
        if item.phi is not None:
            em.scalars[result] = Lane(item.phi.value)
        elif item.buffer is not None:
            em.buffers[result] = item.buffer
        else:
            assert item.distance is not None
            em.advanced[result] = (item.initial, item.distance.value)
    for item in carried:
        for phi in (item.phi, item.distance):
            if phi is not None:
                phi.finish()


def _single_block(region: Region, op: Op) -> Block:
    if len(region.blocks) != 1:
        raise Unsupported("a loop or branch whose body has several blocks", op.location)
    return region.blocks[0]


@statement("scf.for")
def _for(em: KernelEmitter, op: Op) -> None:
    b = em.b
    begin, end, step = (em.scalar(operand).value for operand in op.operands[:3])
    body = _single_block(op.regions[0], op)
    counter, *arguments = body.arguments
    carried = _carry(em, op, arguments, op.operands[3:], body.terminator)
    head, inside, done = b.label("for"), b.label("body"), b.label("endfor")
    em.before_loop = b.block
    b.jump(head)
    b.start(head)
    induction = Phi(em.b, _scalar_type(counter))
    induction.incoming.append((begin, em.before_loop))
    induction.value.divisor = min(begin.divisor, step.divisor)
    induction.value.nonnegative = begin.nonnegative
    em.scalars[counter] = Lane(induction.value)
    _open_head(em, carried)
    predicate = "ult" if op.attributes.get("unsignedCmp") else "slt"
    b.branch(b.icmp(predicate, induction.value, end), inside, done)
    b.start(inside)
    trips = ASSUMED_TRIPS
    if begin.constant is not None and end.constant is not None and step.constant:
        trips = max(0, -(-(end.constant - begin.constant) // step.constant))
    for item, value in zip(carried, body.terminator.operands, strict=True):
        if item.buffer is not None and value.op is not None and value.op.block is body and len(value.users) == 1:
            em.destinations[value] = item.buffer
    with em.repeated(trips), em.block_scope(body):
        for inner in body.ops[:-1]:
            em.emit_op(inner)
        _next_round(em, carried, body.terminator)
    induction.add(b.binary("add", induction.value, step))
    b.jump(head)
    induction.finish()
    b.start(done)
    _finish(em, carried, op.results)


@statement("scf.while")
def _while(em: KernelEmitter, op: Op) -> None:
    """The first region computes the condition and what it hands on; the second one is the body."""
    b = em.b
    first, second = (_single_block(region, op) for region in op.regions)
    carried = [_Carried(argument, start) for argument, start in zip(first.arguments, op.operands, strict=True)]
    for item in carried:
        if not _is_scalar(item.argument):
            item.buffer = _new_buffer_for(em, item.argument)
    tensors = [item for item in carried if item.buffer is not None]
    assign(em, op, [item.initial for item in tensors], [item.buffer for item in tensors if item.buffer is not None])
    handed = {result: _new_buffer_for(em, result) for result in op.results if not _is_scalar(result)}
    head, inside, done = b.label("while"), b.label("body"), b.label("endwhile")
    em.before_loop = b.block
    b.jump(head)
    b.start(head)
    _open_head(em, carried)
    with em.repeated(ASSUMED_TRIPS):
        for inner in first.ops[:-1]:
            em.emit_op(inner)
        condition, *passed = first.terminator.operands
        pairs = [(value, handed[result]) for value, result in zip(passed, op.results, strict=True) if result in handed]
        assign(em, first.terminator, [value for value, _ in pairs], [buffer for _, buffer in pairs])
        for value, result, argument in zip(passed, op.results, second.arguments, strict=True):
            if result in handed:
                em.buffers[argument] = em.buffers[result] = handed[result]
            else:
                em.scalars[argument] = em.scalars[result] = em.scalar(value)
        b.branch(em.scalar(condition).value, inside, done)
        b.start(inside)
        with em.block_scope(second):
            for inner in second.ops[:-1]:
                em.emit_op(inner)
            _next_round(em, carried, second.terminator)
    b.jump(head)
    for item in carried:
        if item.phi is not None:
            item.phi.finish()
    b.start(done)


# Branches -------------------------------------------------------------------------------------------------------------


@statement("scf.if")
def _if(em: KernelEmitter, op: Op) -> None:
    b = em.b
    yielded = _single_block(op.regions[0], op).terminator.operands
    targets = {
        result: _new_buffer_for(em, result, value)
        for result, value in zip(op.results, yielded, strict=True)
        if not _is_scalar(result)
    }
    has_else = len(op.regions) > 1
    yes, no, done = b.label("then"), b.label("else"), b.label("endif")
    b.branch(em.scalar(op.operands[0]).value, yes, no if has_else else done)
    incoming: list[list[tuple[Value, str]]] = [[] for _ in op.results]
    for label, region in zip((yes, no), op.regions, strict=False):
        b.start(label)
        block = _single_block(region, op)
        values = block.terminator.operands
        pairs = [
            (value, targets[result]) for value, result in zip(values, op.results, strict=True) if result in targets
        ]
        with em.block_scope(block):
            for inner in block.ops[:-1]:
                em.emit_op(inner)
            assign(em, block.terminator, [value for value, _ in pairs], [buffer for _, buffer in pairs])
            for number, (value, result) in enumerate(zip(values, op.results, strict=True)):
                if result not in targets:
                    incoming[number].append((em.scalar(value).value, b.block))
        b.jump(done)
    b.start(done)
    for number, result in enumerate(op.results):
        if result in targets:
            em.buffers[result] = targets[result]
        else:
            merged = b.phi(_scalar_type(result), incoming[number])
            merged.divisor = min(value.divisor for value, _ in incoming[number])
            merged.nonnegative = all(value.nonnegative for value, _ in incoming[number])
            em.set_scalar(result, merged)


# Blocks ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Target:
    label: str
    phis: dict[int, Phi]
    buffers: dict[int, Buffer]


def emit_body(em: KernelEmitter, region: Region) -> None:
    """Emits the blocks of a function; `tt.return` leaves through the innermost scope."""
    saved, em.targets = em.targets, {}
    for block in region.blocks[1:]:
        buffers = {
            number: _new_buffer_for(em, argument)
            for number, argument in enumerate(block.arguments)
            if not _is_scalar(argument)
        }
        em.targets[block] = _Target(em.b.label("block"), {}, buffers)
    own = dict(em.targets)
    pending: dict[Block, list[list[tuple[Value, str]]]] = {
        block: [[] for _ in block.arguments] for block in region.blocks
    }
    em.incoming = {**em.incoming, **pending}
    for block in region.blocks:
        target = own.get(block)
        if target is not None:
            em.b.start(target.label)
            for number, argument in enumerate(block.arguments):
                if number in target.buffers:
                    em.buffers[argument] = target.buffers[number]
                else:
                    target.phis[number] = Phi(em.b, _scalar_type(argument))
                    em.set_scalar(argument, target.phis[number].value)
        em.targets = own
        with em.block_scope(block) if target is not None else contextlib.nullcontext():
            em.emit_block(block)
    for block, target in own.items():
        for number, phi in target.phis.items():
            phi.incoming = pending[block][number]
            phi.finish()
    em.targets = saved


def _pass_arguments(em: KernelEmitter, op: Op, block: Block, values: Sequence[Tensor]) -> str:
    target = em.targets[block]
    pairs = [(value, target.buffers[number]) for number, value in enumerate(values) if number in target.buffers]
    assign(em, op, [value for value, _ in pairs], [buffer for _, buffer in pairs])
    for number, value in enumerate(values):
        if number not in target.buffers:
            em.incoming[block][number].append((em.scalar(value).value, em.b.block))
    return str(target.label)


@statement("cf.br")
def _br(em: KernelEmitter, op: Op) -> None:
    label = _pass_arguments(em, op, op.successors[0], op.operands)
    em.b.jump(label)


@statement("cf.cond_br")
def _cond_br(em: KernelEmitter, op: Op) -> None:
    b = em.b
    (condition,), on_true, on_false = op.segments()
    yes, no = b.label("yes"), b.label("no")
    b.branch(em.scalar(condition).value, yes, no)
    for label, block, values in ((yes, op.successors[0], on_true), (no, op.successors[1], on_false)):
        b.start(label)
        before = dict(em.buffers)
        b.jump(_pass_arguments(em, op, block, values))
        em.buffers = before  # what it took to evaluate the arguments is in buffers only on this way


@statement("tt.return")
def _return(em: KernelEmitter, op: Op) -> None:
    em.scopes[-1].leave(op.operands)


@statement("ub.unreachable", "llvm.unreachable")
def _unreachable(em: KernelEmitter, op: Op) -> None:
    em.b.emit("unreachable")


# Calls ----------------------------------------------------------------------------------------------------------------


@statement("tt.call")
def _call(em: KernelEmitter, op: Op) -> None:
    """The body of the function in place of the call: Triton has no recursion."""
    b = em.b
    callee = em.module.functions[op.attributes["callee"].lstrip("@")]
    for inner in callee.body.walk():
        for result in inner.results:
            em.buffers.pop(result, None)
            em.advanced.pop(result, None)
    for argument, operand in zip(callee.body.blocks[0].arguments, op.operands, strict=True):
        if _is_scalar(operand):
            em.scalars[argument] = em.scalar(operand)
        else:
            em.materialize([operand], op)
            em.buffers[argument] = em.buffers[operand]
    done = b.label("returned")
    targets = {
        number: _new_buffer_for(em, result) for number, result in enumerate(op.results) if not _is_scalar(result)
    }
    incoming: list[list[tuple[Value, str]]] = [[] for _ in op.results]

    def leave(values: list[Tensor]) -> None:
        terminator = values[0].users[-1] if values else op
        pairs = [(value, targets[number]) for number, value in enumerate(values) if number in targets]
        returning = next((user for value in values for user in value.users if user.name == "tt.return"), terminator)
        assign(em, returning, [value for value, _ in pairs], [buffer for _, buffer in pairs])
        for number, value in enumerate(values):
            if number not in targets:
                incoming[number].append((em.scalar(value).value, b.block))
        b.jump(done)

    em.scopes.append(Scope(leave))
    emit_body(em, callee.body)
    em.scopes.pop()
    b.start(done)
    for number, result in enumerate(op.results):
        if number in targets:
            em.buffers[result] = targets[number]
        else:
            em.set_scalar(result, b.phi(_scalar_type(result), incoming[number]))


@statement("tt.map_elementwise")
def _map_elementwise(em: KernelEmitter, op: Op) -> None:
    """A function of scalars, with any control flow, for `pack` neighbouring elements at a time."""
    b = em.b
    pack = op.attributes.get("pack", 1)
    sources = [em.row_major_buffer(operand, op) for operand in op.operands]
    targets = [em.destination(result) for result in op.results]
    flat = [buffer.with_view((op.results[0].type.numel,), (1,)) for buffer in (*sources, *targets)]
    region = op.regions[0]
    with b.loop(0, op.results[0].type.numel, pack) as start:
        places = [(Lane(b.add(start, integer(number, "i32"))),) for number in range(pack)]
        arguments = iter(region.blocks[0].arguments)
        for buffer in flat[: len(sources)]:
            for place in places:
                em.scalars[next(arguments)] = read_buffer(b, buffer, place, 0)
        done = b.label("mapped")

        def leave(values: list[Tensor]) -> None:
            results = iter(values)
            for buffer in flat[len(sources) :]:
                for place in places:
                    write_buffer(b, buffer, place, em.scalar(next(results)), 0)
            b.jump(done)

        em.scopes.append(Scope(leave))
        emit_body(em, region)
        em.scopes.pop()
        b.start(done)


@statement("tt.map_elementwise.return")
def _map_elementwise_return(em: KernelEmitter, op: Op) -> None:
    em.scopes[-1].leave(op.operands)
