"""Plans one kernel: walks its operations in program order, and decides which nests of loops they open, and what tensors
are kept in buffers (Note [Nests] in nests.py).

The order of memory accesses is kept in `order_memory`: a load is only put off until a statement that may write to
memory. Operations that need more than `Do` have a function in control.py, stores.py, reductions.py, products.py or
rearranging.py, which `plans` registers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.analyses.availability import EXPENSIVE, RELOAD, Available
from torch_mtia.triton.analyses.liveness import is_used_elsewhere, needed_from
from torch_mtia.triton.analyses.masks import End, ends
from torch_mtia.triton.analyses.provenance import advanced_operands
from torch_mtia.triton.analyses.strips import (
    UNKNOWN,
    ZERO,
    Lanes,
    Scalar,
    StripAnalysis,
    counter,
    guard_of,
    integer,
    kind_of,
    store_kind,
)
from torch_mtia.triton.analyses.walk import own_dims, walk
from torch_mtia.triton.ir.attributes import Dense
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Block, Module, Op, Unsupported, Value
from torch_mtia.triton.ir.ops import (
    INTEGER_DIVISIONS,
    OPS,
    Dims,
    Kind,
    is_fused,
    is_load,
    is_scalar,
    load_operands,
    operand_dims,
    pointee_size,
    splat_constant,
)
from torch_mtia.triton.plan.dimensions import best_dimension
from torch_mtia.triton.plan.nests import (
    Access,
    Accesses,
    Buffer,
    Nest,
    Shape,
    Sources,
    Storage,
    innermost_first,
    row_major,
)
from torch_mtia.triton.plan.plan import Do, Evaluate, Step, Transpose

MAX_STORES = 4  # in a nest
STACK_LIMIT = 16 << 10  # bytes of one buffer
STACK_TOTAL = 48 << 10

PLANS: dict[str, Callable[[Planner, Op], None]] = {}
F = TypeVar("F", bound="Callable[[Planner, Op], None]")


def plans(*names: str) -> Callable[[F], F]:
    """Registers what plans an operation that is a statement."""

    def register(function: F) -> F:
        PLANS.update(dict.fromkeys(names, function))
        return function

    return register


class Planner:
    def __init__(
        self,
        module: Module,
        lanes: int,
        features: frozenset[str],
        instrumented: bool,
        divisors: Mapping[Value, int],
    ) -> None:
        self.module = module
        self.lanes = lanes
        self.features = features
        self.instrumented = instrumented
        self.materialized: dict[Value, Buffer] = {}
        self.advanced: dict[Value, Value] = {}
        self.available = Available(self.materialized, self.advanced)  # always what is in both now
        self.affine = Affine()
        self.strips = StripAnalysis(divisors)
        self.steps: list[Step] = []
        self.put_off: dict[Op, list[Op]] = {}  # stores, to the one that they share a nest with
        self.joined: dict[Op, list[Op]] = {}  # products, to the one that adds to them in the same loop
        self.destinations: dict[Value, Buffer] = {}  # of carried values that results of statements replace
        self.storages = 0
        self.stack_size = 0
        self.leave: list[Callable[[Op, Sequence[Value]], None]] = []  # what the functions being planned return to

    # Steps ------------------------------------------------------------------------------------------------------------

    def add(self, step: Step) -> None:
        self.steps.append(step)

    @contextlib.contextmanager
    def collected(self) -> Iterator[list[Step]]:
        """The steps planned inside, in a list of their own."""
        saved, self.steps = self.steps, []
        yield self.steps
        self.steps = saved

    def plan_ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.plan_op(op)

    def plan_op(self, op: Op) -> None:
        try:
            self._plan_op(op)
        except Unsupported as error:
            if error.location is None:
                error.location = op.location
            raise

    def _plan_op(self, op: Op) -> None:
        facts = OPS.get(op.name)
        if facts is None:
            raise Unsupported(f"operation {op.name}", op.location)
        if facts.kind is Kind.STATEMENT:
            if op.name == "tt.store" and self.joins_next_store(op):
                return
            self.order_memory(op)
            PLANS.get(op.name, Planner.plan_as_it_is)(self, op)
        elif op.results and is_scalar(op.results[0]):
            self.add(Do(op))
        elif is_load(op) and op.attributes.get("isVolatile"):
            self.materialize([op.results[0]], op)  # all uses are to see the same

    def plan_as_it_is(self, op: Op) -> None:
        self.add(Do(op))

    def after_branch(self, materialized: dict[Value, Buffer]) -> None:
        """Back to what was materialized before something that may not have run."""
        self.materialized.clear()
        self.materialized.update(materialized)

    @contextlib.contextmanager
    def block_scope(self, block: Block) -> Iterator[None]:
        """Around a block that may not run: what it evaluates of values from outside is in buffers only there."""
        before = dict(self.materialized)
        yield
        own = {value: buffer for value, buffer in self.materialized.items() if value.block_of() is block}
        self.after_branch(before | own)

    @contextlib.contextmanager
    def function_scope(self) -> Iterator[None]:
        """Around the body of a function, which is planned at each of its calls: at the next one, nothing of it has been
        evaluated, or moved by a loop."""
        materialized, advanced = dict(self.materialized), dict(self.advanced)
        yield
        self.after_branch(materialized)
        self.advanced.clear()
        self.advanced.update(advanced)

    # Buffers ----------------------------------------------------------------------------------------------------------

    def new_buffer(self, shape: Shape, element: str, strides: Shape | None = None) -> Buffer:
        count = 1
        for size in shape:
            count *= size
        bytes_ = count * element_size(element)
        on_stack = bytes_ <= STACK_LIMIT and self.stack_size + bytes_ <= STACK_TOTAL
        if on_stack:
            self.stack_size += bytes_
        self.storages += 1
        storage = Storage(self.storages, count, element, on_stack)
        return Buffer(storage, shape, row_major(shape) if strides is None else strides, element)

    def save_buffer(self, value: Value, dim: int) -> Buffer:
        shape = shape_of(value)
        return self.new_buffer(shape, value.type.element, innermost_first(shape, dim))

    def row_major_buffer(self, value: Value, op: Op) -> Buffer:
        """The tensor in a buffer in the order of its dimensions."""
        found = self.materialized.get(value)
        if found is not None and found.row_major():
            return found
        target = self.new_buffer(shape_of(value), value.type.element)
        self.materialize([value], op, [target])
        self.materialized[value] = target
        return target

    def destination(self, value: Value, strides: Shape | None = None) -> Buffer:
        """The buffer for the result of a statement, which becomes the tensor's. It may be one of a carried value that
        is not needed any more."""
        buffer = self._carried_destination(value)
        if buffer is None or strides is not None:
            buffer = self.new_buffer(shape_of(value), value.type.element, strides)
        self.materialized[value] = buffer
        return buffer

    def _carried_destination(self, value: Value) -> Buffer | None:
        """The carried buffer that the result is yielded to, if nobody needs what it holds, under whatever name."""
        buffer = self.destinations.pop(value, None)
        if buffer is None:
            return None
        op = value.op
        assert op is not None
        first = op.position + int(OPS[op.name].in_place)
        materialized = [tensor for tensor, other in self.materialized.items() if other.storage is buffer.storage]
        return None if any(self.is_needed_from(tensor, op.block, first) for tensor in materialized) else buffer

    # What is needed, and when -----------------------------------------------------------------------------------------

    def is_needed_from(self, value: Value, block: Block, position: int) -> bool:
        return needed_from(value, block, position, self.available)

    def is_needed_after(self, value: Value, op: Op) -> bool:
        return value.block_of() is op.block and self.is_needed_from(value, op.block, op.position + 1)

    def is_expensive(self, value: Value, costs: dict[Value, int] | None = None) -> bool:
        """`costs`: of other values, while nothing is evaluated in between."""
        return self.available.cost(value, self.affine, costs) >= EXPENSIVE

    def joins_next_store(self, op: Op) -> bool:
        """Puts a store off to the next one of its shape, if nothing between them accesses memory: they may share a
        nest, which reads and computes once what both need."""
        stores = [*self.put_off.get(op, []), op]
        if is_scalar(op.operands[0]) or len(stores) == MAX_STORES:
            return False
        for later in op.block.ops[op.position + 1 :]:
            if later.name == "tt.store" and later.operands[0].type.shape == op.operands[0].type.shape:
                self.put_off[later] = stores
                return True
            if is_load(later) or not is_fused(later):
                return False
        return False

    def order_memory(self, op: Op) -> None:
        """Evaluates what must not wait for `op`: loads that are needed after it and that it may change, and before
        operations with regions, which may run several times or not at all, everything expensive that they use."""
        writes = _writes_memory(op)
        leaves_block = bool(op.successors)
        nested = op.name.startswith("scf.") and bool(op.regions)
        if not (writes or leaves_block or nested):
            return
        block = op.block
        inside: set[Value] = set()
        if nested:
            inside.update(op.operands)
            for region in op.regions:
                for inner in region.walk():
                    inside.update(inner.operands)
        lasting = set(self.available.reach(advanced_operands(op), ()))  # is evaluated in the loop as well
        # Of the blocks that enclose this one, the values were evaluated when their operation was reached.
        for earlier in block.ops[: op.position]:
            for value in earlier.results:
                if not self.available.is_fused(value):
                    continue
                begins = nested and value not in lasting
                if begins and not needed_from(value, block, op.position, self.available, entering=op):
                    continue  # what a loop begins with is evaluated once, where it is carried
                if (writes or leaves_block) and is_load(earlier):
                    # A region with writes may change what is read inside it as well, and so may other blocks.
                    first = op.position if op.regions or leaves_block else op.position + 1
                    if self.is_needed_from(value, block, first):
                        self.materialize([value], op)
                elif (value in inside or (leaves_block and is_used_elsewhere(value, block))) and self.is_expensive(
                    value
                ):
                    self.materialize([value], op)

    # Nests ------------------------------------------------------------------------------------------------------------

    def best_dimension(self, roots: Sequence[Value], shape: Shape) -> int:
        return best_dimension(roots, shape, self.lanes, self.materialized, self.affine)

    def sources(self, roots: Sequence[Value]) -> Sources:
        leaves = self.available.leaves(roots)
        materialized = {value: self.materialized[value] for value in leaves if value in self.materialized}
        return Sources(
            materialized, {value: self.advanced[value] for value in leaves if value not in self.materialized}
        )

    def prepare(self, op: Op, roots: Sequence[Value], shape: Shape) -> list[Value]:
        """Evaluates what a nest of `op` should not evaluate itself; returns what it should keep."""
        while True:
            at_index = self.available.reach(roots, shape)
            costs: dict[Value, int] = {}
            elsewhere = [value for value in at_index if not at_index[value] and self.is_expensive(value, costs)]
            early = next((value for value in elsewhere if self._belongs_before(value, at_index, op)), None)
            if early is None:
                break
            self.materialize([early], op)
        saves: list[Value] = []
        known: dict[Value, bool] = {}
        # Reading neighbours once more takes no longer from where they are than from a buffer; and what is the same for
        # a whole strip would no longer be known to be.
        costs = {value: RELOAD for value in at_index if self.affine.is_plain_load(value)}
        for value in reversed(at_index):  # users before what they use
            if value.block_of() is not op.block or value in saves:
                continue
            if not self.is_expensive(value, costs):
                continue
            if needed_from(value, op.block, op.position + 1, self.available, known):
                saves.append(value)
                known = dict.fromkeys(saves, False)  # what is kept is read from its buffer
        return saves

    def _belongs_before(self, value: Value, at_index: dict[Value, bool], op: Op) -> bool:
        """Of a expensive value that the nest would evaluate at other places than its own, so several times."""
        for user in value.users:
            if user.name == "tt.broadcast" and user.results[0] in at_index:
                return user.results[0].type.numel > value.type.numel or self.is_needed_after(value, op)
        return self.is_needed_after(value, op)

    def nest(
        self,
        op: Op,
        roots: Sequence[Value],
        shape: Shape,
        *,
        dim: int | None = None,
        one_by_one: bool = False,
        mask: Value | None = None,
        stores: Sequence[Op] = (),
    ) -> Nest:
        """Loops in which `op` evaluates `roots`; where `mask` is false, it does nothing. What they keep is materialized
        after them."""
        saves = self.prepare(op, roots, shape)
        limits = self._ends(mask, shape, saves)
        if dim is None:
            dim = self.best_dimension(roots, shape)
        self._transpose_loads(roots, shape, dim, mask)
        buffers = {value: self.save_buffer(value, dim) for value in saves}
        lanes = 0 if one_by_one else self.lanes_along(shape, dim)
        sources, hoisted = self.sources(roots), self.hoisted(roots, shape, dim, lanes)
        accesses = self.accesses(roots, shape, self.index(shape, dim, lanes), lanes, stores)
        self.materialized.update(buffers)
        return Nest(shape, dim, lanes, tuple(roots), accesses, sources, buffers, hoisted, limits)

    def plain_nest(
        self,
        shape: Shape,
        dim: int,
        *,
        one_by_one: bool = False,
        roots: Sequence[Value] = (),
        unroll: int = 1,
        accesses: Accesses | None = None,
    ) -> Nest:
        """Loops in which nothing is kept, and tensors are only read at other places than their own."""
        lanes = 0 if one_by_one else self.lanes_along(shape, dim)
        sources = self.sources(roots)
        return Nest(shape, dim, lanes, tuple(roots), accesses or {}, sources, unroll=unroll)

    def index(self, shape: Shape, dim: int, lanes: int) -> list[Lanes]:
        """What is known of the index of a strip in loops over `shape`."""
        index = [counter(size, 1) for size in shape]
        index[dim] = counter(shape[dim], max(lanes, 1), int(lanes > 0))
        return index

    def guards(self) -> dict[Op, str]:
        """What the kernel's integer divisions look for before they divide. Only of a scalar is it known whether it may
        be negative."""
        found: dict[Op, str] = {}
        for function in self.module.functions.values():
            for op in function.body.walk():
                if op.name in INTEGER_DIVISIONS and (guard := guard_of(op, self._divisor(op.operands[1]))):
                    found[op] = guard
        return found

    def _divisor(self, value: Value) -> Scalar:
        while value.op is not None and value.op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
            (value,) = value.op.operands
        constant = None if value.op is None or value.op.name != "arith.constant" else splat_constant(value.op)
        if isinstance(constant, int):
            return integer(constant, value.type.element)
        return UNKNOWN if value.type.shape is not None else self.strips.scalar(value)

    def accesses(
        self,
        roots: Sequence[Value],
        shape: Shape,
        index: Sequence[Lanes],
        lanes: int,
        stores: Sequence[Op] = (),
    ) -> Accesses:
        """How strips at `index` access memory to evaluate `roots`, and for `stores`."""
        at_index = [(root, own_dims(root)) for root in roots if root.type.shape == shape]
        strips = self.strips.lanes(at_index, index, lanes, self.available)
        found: Accesses = {}
        for value, dims in strips:
            if (buffer := self.materialized.get(value)) is not None:
                kind = _kind(buffer.strides, [ZERO if d is None else index[d] for d in dims], lanes)
                if kind not in ("vector", "scalar"):
                    found[value, dims] = Access(kind)
                continue
            op = value.op
            if op is None or not self.available.is_fused(value):
                continue
            if op.name == "arith.constant":
                constant = op.attributes["value"]
                if isinstance(constant, Dense) and not constant.splat:
                    kind = _kind(row_major(shape_of(value)), [ZERO if d is None else index[d] for d in dims], lanes)
                    if kind not in ("vector", "scalar"):
                        found[op, dims] = Access(kind)
            elif is_load(op):
                pointer, *others = load_operands(op)
                conditions = [None if each is None else strips[each, operand_dims(op, each, dims)] for each in others]
                found[op, dims] = Access(kind_of(strips[pointer, dims], pointee_size(op), lanes, *conditions))
            elif op.name in INTEGER_DIVISIONS and lanes:
                divided = [strips[operand, operand_dims(op, operand, dims)] for operand in op.operands]
                if divided[1].value.constant is None and not all(each.uniform for each in divided):
                    found[op, dims] = Access("vector" if strips[value, dims].stride is None else "scalar")
            elif op.name == "arith.divf" and lanes and value.type.element == "f32" and "fma" in self.features:
                dividend, divisor = (strips[operand, dims] for operand in op.operands)
                if divisor.uniform and not dividend.uniform:
                    found[op, dims] = Access("reciprocal")
        for store in stores:
            pointer = store.operands[0]
            kind = store_kind(strips[pointer, own_dims(pointer)], pointee_size(store), lanes)
            found[store, own_dims(pointer)] = Access(kind)
        return found

    def lanes_along(self, shape: Shape, dim: int) -> int:
        width = min(self.lanes, shape[dim])
        return width if width > 1 else 0

    def hoisted(self, roots: Sequence[Value], shape: Shape, inner: int, lanes: int) -> tuple[tuple[Value, Dims], ...]:
        """What does not change in the innermost loop, and the dimensions of the nest that its own are; None where it is
        the same along one."""
        if shape[inner] <= max(lanes, 1):
            return ()
        found: list[tuple[Value, Dims]] = []

        def enter(value: Value, dims: Dims) -> Sequence[Value] | None:
            if not self.available.is_fused(value):
                return None
            if inner not in dims:
                found.append((value, dims))
                return None
            return self.available.parts(value)

        walk([(root, own_dims(root)) for root in roots if root.type.shape == shape], enter)
        return tuple(found)

    def materialize(
        self,
        values: Sequence[Value],
        op: Op,
        into: Sequence[Buffer] | None = None,
        dim: int | None = None,
        mask: Value | None = None,
    ) -> list[Buffer]:
        """Evaluates tensors of one shape into buffers in one nest; those that are materialized stay where they are
        unless `into` names another. Otherwise they are materialized after it. `op` does nothing where `mask` is
        false."""
        shape = shape_of(values[0])
        work: list[tuple[Value, Buffer | None]] = []
        for number, value in enumerate(values):
            target = None if into is None else into[number]
            if (target is not None or value not in self.materialized) and (value, target) not in work:
                work.append((value, target))
        if work:
            self._evaluate(work, op, shape, dim, mask)
        return list(into) if into is not None else [self.materialized[value] for value in values]

    def _evaluate(
        self,
        work: Sequence[tuple[Value, Buffer | None]],
        op: Op,
        shape: Shape,
        dim: int | None,
        mask: Value | None,
    ) -> None:
        roots = [value for value, _ in work]
        saves = [value for value in self.prepare(op, roots, shape) if value not in roots]
        if dim is None:
            dim = self.best_dimension(roots, shape)
        buffers = {value: self.save_buffer(value, dim) for value in saves}
        writes = [(value, target if target is not None else self.save_buffer(value, dim)) for value, target in work]
        (value, buffer), *others = writes
        across = buffer.strides.index(1) if 1 in buffer.strides else dim
        if not others and not saves and self.is_square(value, dim, across):
            self.add(self._transpose(value, buffer, dim, across, mask))
        else:
            lanes = self.lanes_along(shape, dim)
            hoisted = self.hoisted(roots, shape, dim, lanes)
            sources = self.sources(roots)
            accesses = self.accesses(roots, shape, self.index(shape, dim, lanes), lanes)
            nest = Nest(shape, dim, lanes, tuple(roots), accesses, sources, buffers, hoisted)
            self.add(Evaluate(nest, tuple(writes)))
        self.materialized.update(buffers)
        for (value, buffer), (_, target) in zip(writes, work, strict=True):
            if target is None:
                self.materialized[value] = buffer

    def _transpose(self, value: Value, buffer: Buffer, along: int, across: int, mask: Value | None) -> Transpose:
        shape = shape_of(value)
        limits = self._ends(mask, shape, [value])
        sources = self.sources([value, mask] if limits and mask is not None else [value])
        index = self.index(shape, along, self.lanes)
        index[across] = Lanes(UNKNOWN, 0)
        accesses = self.accesses([value], shape, index, self.lanes)
        return Transpose(value, buffer, along, across, shape, self.lanes, accesses, sources, limits)

    def _ends(self, mask: Value | None, shape: Shape, saves: Sequence[Value]) -> dict[int, End]:
        return {} if mask is None else ends(mask, shape, self.affine, self.materialized, saves)

    def _transpose_loads(self, roots: Sequence[Value], shape: Shape, dim: int, mask: Value | None) -> None:
        """Reads, before the nest and in squares, what lies side by side along another dimension than its strips."""
        for value, is_at_index in self.available.reach(roots, shape).items():
            if value.op is None or not is_load(value.op) or not is_at_index:
                continue
            strides = self.affine.strides(value.op.operands[0])
            size = element_size(value.type.element)
            along = next((d for d, stride in enumerate(strides) if stride == size and shape[d] > 1), dim)
            if strides[dim] not in (0, size) and self.is_square(value, along, dim):
                buffer = self.save_buffer(value, dim)
                self.add(self._transpose(value, buffer, along, dim, mask))
                self.materialized[value] = buffer

    def is_square(self, value: Value, along: int, across: int) -> bool:
        """Whether a tensor can be transposed in registers."""
        shape = shape_of(value)
        return along != across and min(shape[along], shape[across]) >= self.lanes and value.type.element != "i1"


def _writes_memory(op: Op) -> bool:
    if op.name in OPS and OPS[op.name].writes:
        return True
    return any(inner.name in OPS and OPS[inner.name].writes for region in op.regions for inner in region.walk())


def _kind(strides: Shape, index: Sequence[Lanes], lanes: int) -> str:
    """How a strip at `index` of a tensor in memory is read."""
    total: int | None = 0
    for lane, distance in zip(index, strides, strict=True):
        if distance and total is not None:
            total = total + lane.stride * distance if isinstance(lane.stride, int) else None
    return kind_of(Lanes(stride=total), 1, lanes)


def shape_of(value: Value) -> Shape:
    assert value.type.shape is not None
    return value.type.shape
