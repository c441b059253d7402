"""Emits one kernel: walks its operations in program order, opens a nest of loops where one is due, and keeps buffers.

See Note [Nests] in nest.py. The order of memory accesses is kept in `order_memory`: a load is only put off until a
statement that may write to memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch_mtia.triton.emit.masks import limits
from torch_mtia.triton.emit.nest import (
    ZERO,
    Buffer,
    Strip,
    apply,
    complete,
    innermost_first,
    row_major,
    write_buffer,
)
from torch_mtia.triton.emit.parameters import HOST_OFFSET, SCRATCH
from torch_mtia.triton.emit.registry import COSTS, ELEMENTWISE, LAZY, SCALARS, STATEMENTS, WRITES, Unsupported
from torch_mtia.triton.emit.strides import StrideAnalysis, dimension_votes, operand_dims
from torch_mtia.triton.emit.transpose import is_square, transpose_into, transpose_loads
from torch_mtia.triton.floats import element_size, llvm_element
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Builder, Value
from torch_mtia.triton.ttir import Block, Function, Module, Op
from torch_mtia.triton.ttir import Value as Tensor

DEAR = 10  # simple instructions a lane, from which a value that is needed again is kept
RELOAD = 4  # of reading a strip of neighbours from memory again
MAX_STORES = 4  # in a nest
STACK_LIMIT = 16 << 10  # bytes of one buffer
STACK_TOTAL = 48 << 10


@dataclasses.dataclass
class Scope:
    """Where `tt.return` of the function that is being emitted goes."""

    leave: Callable[[list[Tensor]], None]


class KernelEmitter:
    def __init__(
        self, module: Module, features: frozenset[str], width: int, contract: bool, check_bounds: bool
    ) -> None:
        self.module = module
        self.width = width
        self.check_bounds = check_bounds
        self.b = Builder(features, contract)
        self.scalars: dict[Tensor, Lane] = {}
        self.buffers: dict[Tensor, Buffer] = {}
        # Tensors carried by a loop that only ever moves them by a scalar: where they start, and how far they are.
        self.advanced: dict[Tensor, tuple[Tensor, Value]] = {}
        self.strides = StrideAnalysis(self)
        self.put_off: dict[Op, list[Op]] = {}  # stores, to the one that is emitted with them
        self.streams = False  # whether stores pass by the caches, see memory.py
        self.scratch_size = 0
        self.stack_size = 0
        self.cost = 0.0  # of one program, in lane instructions
        self.trips = 1.0  # how often the code being written runs
        self.scopes: list[Scope] = []
        self.destinations: dict[Tensor, Buffer] = {}  # of carried values that results of statements replace
        self.before_loop = ""  # the block that enters the loop being opened
        self.targets: dict[Block, Any] = {}  # of branches between blocks, see control.py
        self.incoming: dict[Block, list[list[tuple[Value, str]]]] = {}

    # Values -----------------------------------------------------------------------------------------------------------

    def scalar(self, value: Tensor) -> Lane:
        found = self.scalars.get(value)
        if found is None:
            raise AssertionError(f"scalar {value} was not emitted")
        return found

    def set_scalar(self, value: Tensor, computed: Value) -> None:
        self.scalars[value] = Lane(computed)

    def new_buffer(self, shape: tuple[int, ...], element: str, strides: tuple[int, ...] | None = None) -> Buffer:
        strides = row_major(shape) if strides is None else strides
        numel = 1
        for size in shape:
            numel *= size
        buffer = Buffer(Value("", "ptr"), shape, strides, element)
        bytes_ = numel * element_size(element)
        if bytes_ <= STACK_LIMIT and self.stack_size + bytes_ <= STACK_TOTAL:
            self.stack_size += bytes_
            buffer.address = self.b.alloca(numel, buffer.memory_type)
        else:
            name = self.b.name("tile")  # defined at the head of the function, so that every block may use it
            buffer.address = Value(name, "ptr")
            self.b.entry.append(f"  {name} = getelementptr i8, ptr {SCRATCH.ref}, i64 {self.scratch_size}")
            self.scratch_size += (bytes_ + 63) // 64 * 64
        buffer.root = buffer.address.ref
        return buffer

    def address(self, device_address: Value) -> Value:
        """The host address of a scalar device address."""
        moved = self.b.binary("add", device_address, HOST_OFFSET)
        return self.b.define("ptr", f"inttoptr {moved} to ptr")

    # Use and cost -----------------------------------------------------------------------------------------------------

    def is_lazy(self, value: Tensor) -> bool:
        return (
            value.type.shape is not None
            and value not in self.buffers
            and value.op is not None
            and (value.op.name in LAZY or value.op.name in ELEMENTWISE)
        )

    def is_moved(self, value: Tensor) -> bool:
        """Whether evaluating a value evaluates what a loop moved it from."""
        return value in self.advanced and value not in self.buffers

    def position_of(self, user: Op, block: Block) -> int:
        """Where in `block` an operation takes place: its own position, or that of the one it is nested in."""
        op = user
        while op.block is not block:
            parent = op.block.region.parent
            if parent is None:
                return len(block.ops) - 1  # in another block of the function: not later than the terminator
            op = parent
        return op.position

    def needed_from(self, value: Tensor, block: Block, position: int, memo: dict[Tensor, bool] | None = None) -> bool:
        """Whether a statement at `position` of `block` or behind still has to evaluate `value`."""
        memo = {} if memo is None else memo
        found = memo.get(value)
        if found is not None:
            return found
        memo[value] = False
        for user in value.users:
            evaluated = [result for result in user.results if self.is_lazy(result) or self.is_moved(result)]
            if any(self.needed_from(result, block, position, memo) for result in evaluated):
                memo[value] = True
                break
            if user.results and len(evaluated) == len(user.results):
                continue
            if user.results and all(result in self.buffers for result in user.results):
                continue
            if self.position_of(user, block) >= position:
                memo[value] = True
                break
        return memo[value]

    def cost_of(self, value: Tensor, memo: dict[Tensor, int] | None = None) -> int:
        """What evaluating one lane takes, as far as it is not in a buffer yet."""
        memo = {} if memo is None else memo
        found = memo.get(value)
        if found is not None:
            return found
        if not self.is_lazy(value):
            memo[value] = 0
            return 0
        assert value.op is not None
        memo[value] = 0
        if self.strides.is_index(value):
            memo[value] = 1
            return 1
        total = COSTS.get(value.op.name, 1) + sum(self.cost_of(operand, memo) for operand in value.op.operands)
        memo[value] = min(total, 1000)
        return memo[value]

    # Statements -------------------------------------------------------------------------------------------------------

    def emit_block(self, block: Block) -> None:
        for op in block.ops:
            self.emit_op(op)

    @contextlib.contextmanager
    def block_scope(self, block: Block) -> Iterator[None]:
        """Around a block that may not run: what it evaluates of values from outside is in buffers only there."""
        before = dict(self.buffers)
        yield
        self.buffers = before | {value: buffer for value, buffer in self.buffers.items() if value.block_of() is block}

    def emit_op(self, op: Op) -> None:
        try:
            if op.name in STATEMENTS:
                if op.name == "tt.store" and self.joins_next_store(op):
                    return
                self.order_memory(op)
                STATEMENTS[op.name](self, op)
            elif op.results and op.results[0].type.shape is not None:
                if op.name not in LAZY and op.name not in ELEMENTWISE:
                    raise Unsupported(f"operation {op.name}", op.location)
                if op.name == "tt.load" and op.attributes.get("isVolatile"):
                    self.settle(op.results[0], op)  # all uses are to see the same
            elif op.name in SCALARS:
                SCALARS[op.name](self, op)
            elif op.name in ELEMENTWISE:
                lanes = [self.scalar(operand) for operand in op.operands]
                for result, lane in zip(op.results, apply(self.b, op, lanes, 0), strict=True):
                    self.scalars[result] = lane
            else:
                raise Unsupported(f"operation {op.name}", op.location)
        except Unsupported as error:
            if error.location is None:
                error.location = op.location
            raise

    def joins_next_store(self, op: Op) -> bool:
        """Puts a store off to the next one of its shape, if nothing between them accesses memory: they may share a
        nest, which reads and computes once what both need."""
        stores = [*self.put_off.get(op, []), op]
        if op.operands[0].type.shape is None or len(stores) == MAX_STORES:
            return False
        for later in op.block.ops[op.position + 1 :]:
            if later.name == "tt.store" and later.operands[0].type.shape == op.operands[0].type.shape:
                self.put_off[later] = stores
                return True
            if later.name == "tt.load" or not (later.name in ELEMENTWISE or later.name in LAZY):
                return False
        return False

    def writes_memory(self, op: Op) -> bool:
        if op.name in WRITES:
            return True
        if op.name == "tt.call":
            return True
        return any(inner.name in WRITES or inner.name == "tt.call" for region in op.regions for inner in region.walk())

    def order_memory(self, op: Op) -> None:
        """Evaluates what must not wait for `op`: loads that are needed behind it and that it may change, and before
        operations with regions, which may run several times or not at all, everything dear that they use."""
        writes = self.writes_memory(op)
        leaves_block = op.name in ("cf.br", "cf.cond_br")
        nested = op.name.startswith("scf.") and bool(op.regions)
        if not (writes or leaves_block or nested):
            return
        block = op.block
        inside: set[Tensor] = set()
        if nested:
            for region in op.regions:
                for inner in region.walk():
                    inside.update(inner.operands)
            inside.update(op.operands)
        # Of the blocks that enclose this one, the values were settled when their operation was reached.
        for earlier in block.ops[: op.position]:
            for value in earlier.results:
                if not self.is_lazy(value):
                    continue
                if (writes or leaves_block) and earlier.name == "tt.load":
                    # A region with writes may change what is read inside it as well, and so may other blocks.
                    first = op.position if op.regions or leaves_block else op.position + 1
                    if self.needed_from(value, block, first):
                        self.settle(value, op)
                elif (nested or leaves_block) and self.cost_of(value) >= DEAR:
                    used_inside = value in inside or (leaves_block and self.used_elsewhere(value, block))
                    if used_inside:
                        self.settle(value, op)

    def used_elsewhere(self, value: Tensor, block: Block) -> bool:
        for user in value.users:
            op = user
            while op.block is not block and op.block.region.parent is not None:
                op = op.block.region.parent
            if op.block is not block:
                return True
        return False

    def hazardous(self, roots: Sequence[Tensor]) -> list[Tensor]:
        """Those of `roots` that are computed from loads not done yet: a statement that writes while it evaluates them
        could overwrite what it has still to read."""
        return [root for root in roots if self.reads_memory(root, {})]

    def reads_memory(self, value: Tensor, memo: dict[Tensor, bool]) -> bool:
        if self.is_moved(value):
            return self.reads_memory(self.advanced[value][0], memo)
        if not self.is_lazy(value):
            return False
        found = memo.get(value)
        if found is None:
            assert value.op is not None
            found = memo[value] = value.op.name == "tt.load" or any(
                self.reads_memory(operand, memo) for operand in value.op.operands
            )
        return found

    def settle(self, value: Tensor, op: Op) -> None:
        """Evaluates a lazy tensor into a buffer, for use from `op` on."""
        self.materialize([value], op)

    # Nests ------------------------------------------------------------------------------------------------------------

    def prepare(self, op: Op, roots: Sequence[Tensor], shape: tuple[int, ...]) -> list[Tensor]:
        """Evaluates what the nest of `op` should not evaluate itself; returns what it should keep."""
        while True:
            order, at_index = self.reach(roots, shape)
            early = next((value for value in order if self.belongs_before(value, at_index, op)), None)
            if early is None:
                break
            self.materialize([early], op)
        saves: list[Tensor] = []
        kept: set[Tensor] = set()
        # Reading neighbours once more takes no longer from where they are than from a buffer; and what is the same for
        # a whole strip would no longer be known to be.
        costs = {value: RELOAD for value in order if self.is_plain_load(value)}
        for value in reversed(order):  # users before what they use
            if value.block_of() is not op.block or value in kept or self.cost_of(value, costs) < DEAR:
                continue
            if self.needed_again(value, op, kept):
                saves.append(value)
                kept.add(value)
        return saves

    def is_plain_load(self, value: Tensor) -> bool:
        """Whether a value is a load of neighbours, or of one element, as far as strides tell."""
        if value.op is None or value.op.name != "tt.load":
            return False
        strides = self.strides.strides(value.op.operands[0])
        return element_size(value.type.element) in strides or not any(stride != 0 for stride in strides)

    def needed_again(self, value: Tensor, op: Op, kept: set[Tensor]) -> bool:
        memo = dict.fromkeys(kept, False)
        memo.pop(value, None)
        return self.needed_from(value, op.block, op.position + 1, memo)

    def belongs_before(self, value: Tensor, at_index: dict[Tensor, bool], op: Op) -> bool:
        """A dear value that the nest would evaluate at other places than its own, so several times."""
        if at_index[value] or self.cost_of(value) < DEAR:
            return False
        for user in value.users:
            if user.name == "tt.broadcast" and user.results[0] in at_index:
                return user.results[0].type.numel > value.type.numel or self.is_needed_behind(value, op)
        return self.is_needed_behind(value, op)

    def is_needed_behind(self, value: Tensor, op: Op) -> bool:
        return value.block_of() is op.block and self.needed_from(value, op.block, op.position + 1)

    def reach(self, roots: Sequence[Tensor], shape: tuple[int, ...]) -> tuple[list[Tensor], dict[Tensor, bool]]:
        """The lazy values that evaluating `roots` visits, operands first, and for each whether it is visited only at
        the nest's own index. What a loop moved is visited, but not what that started from."""
        at_index: dict[Tensor, bool] = {}
        order: list[Tensor] = []

        def visit(value: Tensor, same: bool) -> None:
            if self.is_moved(value):
                at_index.setdefault(value, same)
                order.append(value)
                return
            if not self.is_lazy(value):
                return
            known = at_index.get(value)
            if known is not None and (known == same or not known):
                return
            first = known is None
            at_index[value] = same
            assert value.op is not None
            elementwise = value.op.name in ELEMENTWISE or value.op.name == "tt.load"
            for operand in value.op.operands:
                visit(operand, same and elementwise)
            if first:
                order.append(value)

        for root in roots:
            visit(root, root.type.shape == shape)
        return order, at_index

    def run_nest(
        self,
        op: Op,
        roots: Sequence[Tensor],
        shape: tuple[int, ...],
        body: Callable[[Strip], None],
        *,
        dim: int | None = None,
        width: int | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Loops over `shape` in strips along `dim`, and emits `body` for a strip. Where `mask` is false, `body` does
        nothing."""
        saves = self.prepare(op, roots, shape)
        ends = limits(self, mask, shape, saves) if mask is not None else {}
        if dim is None:
            dim = self.choose_dim(roots, shape)
        transpose_loads(self, roots, shape, dim)
        buffers = {value: self.save_buffer(value, dim) for value in saves}
        self.loop_over(shape, dim, body, buffers, width, roots, ends)
        self.buffers.update(buffers)

    def save_buffer(self, value: Tensor, dim: int) -> Buffer:
        shape = value.type.shape
        assert shape is not None
        return self.new_buffer(shape, value.type.element, innermost_first(shape, dim))

    def choose_dim(self, roots: Sequence[Tensor], shape: tuple[int, ...]) -> int:
        """The dimension along which most accesses are contiguous; the last one if none is."""
        votes = dimension_votes(self, roots, shape)
        return max(
            range(len(shape)), key=lambda d: (votes[d] * min(shape[d], self.width), min(shape[d], self.width), d)
        )

    def loop_over(
        self,
        shape: tuple[int, ...],
        dim: int,
        body: Callable[[Strip], None],
        saves: dict[Tensor, Buffer] | None = None,
        width: int | None = None,
        roots: Sequence[Tensor] = (),
        ends: Mapping[int, Value] | None = None,
    ) -> None:
        ends = ends or {}
        width = min(self.width if width is None else width, shape[dim])
        index: list[Lane | None] = [None] * len(shape)
        trips = 1
        for d, size in enumerate(shape):
            trips *= size // width if d == dim else size
        lanes = width if width > 1 else 0
        with contextlib.ExitStack() as stack, self.repeated(trips):
            for d in range(len(shape)):
                if d != dim:
                    index[d] = Lane(stack.enter_context(self.b.loop(0, shape[d], 1, ends.get(d))))
            outer = self.hoist(roots, shape, dim, index, lanes)
            index[dim] = Lane(stack.enter_context(self.b.loop(0, shape[dim], width, ends.get(dim))), 1 if lanes else 0)
            start = len(self.b.lines)
            body(Strip(self, complete(index), lanes, saves, outer))
            self.cost += (len(self.b.lines) - start) * self.trips

    def hoist(
        self, roots: Sequence[Tensor], shape: tuple[int, ...], inner: int, index: Sequence[Lane | None], width: int
    ) -> dict[tuple[object, ...], Lane]:
        """Evaluates, before the innermost loop opens, what does not change in it: `index` lacks its dimension."""
        if shape[inner] <= max(width, 1):
            return {}
        strip = Strip(self, (), width)
        seen: set[tuple[Tensor, tuple[int | None, ...]]] = set()

        def visit(value: Tensor, dims: tuple[int | None, ...]) -> None:
            if not self.is_lazy(value) or (value, dims) in seen:
                return
            seen.add((value, dims))
            assert value.op is not None
            if inner not in dims:
                place = tuple(ZERO if d is None else index[d] for d in dims)
                strip.value(value, complete(place))
                return
            for operand in value.op.operands:
                if operand.type.shape is not None:
                    visit(operand, operand_dims(value.op, operand, dims))

        for root in roots:
            if root.type.shape == shape:
                visit(root, tuple(range(len(shape))))
        return strip.cache

    @contextlib.contextmanager
    def loops_around(self, shape: tuple[int, ...], axis: int, dim: int | None, width: int) -> Iterator[list[Lane]]:
        """Loops over all dimensions but `axis`, in strips along `dim`; gives the lanes of these dimensions."""
        index: dict[int, Lane] = {}
        order = [d for d in range(len(shape)) if d not in (axis, dim)] + ([dim] if dim is not None else [])
        with contextlib.ExitStack() as stack:
            for d in order:
                step = max(width, 1) if d == dim else 1
                counter = stack.enter_context(self.b.loop(0, shape[d], step))
                index[d] = Lane(counter, 1 if d == dim and width else 0)
            yield [index[d] for d in range(len(shape)) if d != axis]

    @contextlib.contextmanager
    def repeated(self, trips: float) -> Iterator[None]:
        before = self.trips
        self.trips = before * trips
        yield
        self.trips = before

    def materialize(
        self, values: Sequence[Tensor], op: Op, into: Sequence[Buffer | None] | None = None, dim: int | None = None
    ) -> list[Buffer]:
        """Evaluates tensors of one shape into buffers in one nest; those that have one keep it unless `into` names
        another. Afterwards the tensors are read from their buffers."""
        targets = list(into) if into is not None else [None] * len(values)
        shape = values[0].type.shape
        assert shape is not None
        work: list[tuple[Tensor, Buffer | None]] = []
        for value, target in zip(values, targets, strict=True):
            pending = target is not None or value not in self.buffers
            if pending and (value, target) not in work:
                work.append((value, target))
        if work:
            roots = [value for value, _ in work]
            saves = [value for value in self.prepare(op, roots, shape) if value not in roots]
            if dim is None:
                dim = self.choose_dim(roots, shape)
            buffers = {value: self.save_buffer(value, dim) for value in saves}
            written = [
                (value, target if target is not None else self.save_buffer(value, dim)) for value, target in work
            ]

            def body(strip: Strip) -> None:
                lanes = [strip.value(value) for value, _ in written]
                for lane, (_, buffer) in zip(lanes, written, strict=True):
                    write_buffer(self.b, buffer, strip.index, lane, strip.width)

            (value, target), *others = written
            across = target.strides.index(1) if 1 in target.strides else dim
            if not others and not saves and is_square(self, value, dim, across):
                transpose_into(self, value, target, dim, across)
            else:
                self.loop_over(shape, dim, body, buffers, roots=roots)
            self.buffers.update(buffers)
            for (value, buffer), (_, target) in zip(written, work, strict=True):
                if target is None:
                    self.buffers[value] = buffer
        return [
            self.buffers[value] if target is None else target for value, target in zip(values, targets, strict=True)
        ]

    def row_major_buffer(self, value: Tensor, op: Op) -> Buffer:
        """The tensor in a buffer in the order of its dimensions."""
        found = self.buffers.get(value)
        if found is not None and found.row_major():
            return found
        shape = value.type.shape
        assert shape is not None
        target = self.new_buffer(shape, value.type.element)
        self.materialize([value], op, [target])
        self.buffers[value] = target
        return target

    def destination(self, value: Tensor, strides: tuple[int, ...] | None = None, after_reading: bool = False) -> Buffer:
        """The buffer for the result of a statement, which becomes the tensor's. It may be one of a carried value that
        is not needed any more; `after_reading`: not by the statement itself, or only where it is just to write."""
        shape = value.type.shape
        assert shape is not None
        buffer = self.take_destination(value, after_reading)
        if buffer is None or strides is not None:
            buffer = self.new_buffer(shape, value.type.element, strides)
        self.buffers[value] = buffer
        return buffer

    def take_destination(self, value: Tensor, after_reading: bool) -> Buffer | None:
        """The carried buffer that the result is yielded to, if nobody needs what it holds, under whatever name."""
        buffer = self.destinations.pop(value, None)
        if buffer is None:
            return None
        op = value.op
        assert op is not None
        first = op.position + int(after_reading)
        held = [tensor for tensor, other in self.buffers.items() if other.root == buffer.root]
        return None if any(self.needed_from(tensor, op.block, first) for tensor in held) else buffer

    # The function -----------------------------------------------------------------------------------------------------

    def bind_arguments(self, function: Function) -> list[Value]:
        parameters = []
        for number, argument in enumerate(function.body.blocks[0].arguments):
            if argument.type.shape is not None:
                raise Unsupported("a tensor as argument of a kernel", function.location)
            attributes = function.argument_attributes[number] if function.argument_attributes else {}
            divisor = attributes.get("tt.divisibility", 1)
            value = Value(f"%argument{number}", llvm_element(argument.type.element), divisor=divisor & -divisor)
            parameters.append(value)
            self.set_scalar(argument, value)
        return parameters
