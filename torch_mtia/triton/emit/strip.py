"""Strips, and the values in them: how a nest of loops (Note [Nests] in plan/nests.py) reads what is materialized in
buffers, and evaluates everything else. `index` says which elements a strip is: one lane structure (Note [Lanes]) for
each dimension.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from torch_mtia.triton import vecmath
from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.analyses.strips import known_of
from torch_mtia.triton.analyses.walk import own_dims, walk
from torch_mtia.triton.emit import watching
from torch_mtia.triton.emit.access import read_buffer, write_buffer
from torch_mtia.triton.emit.environment import ELEMENTWISE, PLACED, Environment
from torch_mtia.triton.ir.module import Op, Unsupported
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.ir.ops import INTEGER_DIVISIONS, Dims
from torch_mtia.triton.lanes import Index, Lane, affine, materialize
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, integer, undefined
from torch_mtia.triton.plan.nests import Access, Accesses, Buffer, Sources

LONGEST_CHAIN = 60  # of operations that are evaluated by calls inside calls, three for each
ZERO = Lane(integer(0, "i32"))  # the index along a dimension that is broadcast
TRUE = Lane(integer(1, "i1"))
DIVISIONS = ("arith.divf", *INTEGER_DIVISIONS)


class Strip:
    """The elements of a nest's shape at `index`, `width` of them (0: one, as a scalar)."""

    def __init__(
        self,
        env: Environment,
        sources: Sources,
        index: Index,
        width: int,
        saves: Mapping[Tensor, Buffer] | None = None,
        outer: Mapping[tuple[object, ...], Lane] | None = None,
        place: int = 0,
        accesses: Accesses | None = None,
    ) -> None:
        self.env = env
        self.b: Builder = env.b
        self.sources = sources
        self.index = index
        self.width = width
        self.saves = saves or {}
        self.accesses = accesses or {}
        self.place = place  # of its first element in a round of the loop
        # What was evaluated outside of the innermost loop stays valid inside.
        self.cache: dict[tuple[object, ...], Lane] = dict(outer or {})

    def value(self, value: Tensor, index: Index | None = None) -> Lane:
        """The strip of a tensor at `index`, of a scalar itself."""
        if value.type.shape is None:
            return self.env.scalar(value)
        if value in self.sources.true:
            return TRUE
        index = self.index if index is None else index
        key = (value, *map(id, index))
        found = self.cache.get(key)
        if found is None:
            if self.env.depths.get(value, 0) > LONGEST_CHAIN:
                self._evaluate_pieces(value, index)
            found = self.cache[key] = self._evaluate(value, index)
            # `index` must outlive the cache, or its identity could be reused.
            self.cache[(key, "index")] = Lane(undefined("i1")) if index is self.index else _Kept(index)
        return found

    def access(self, what: Op | Tensor, index: Index) -> Access | None:
        """What the plan says about a load, a division, or a tensor in a buffer, at `index`."""
        if not self.accesses:
            return None
        own = {id(lane): d for d, lane in enumerate(self.index)}
        dims = tuple(None if lane is ZERO else own.get(id(lane), -1) for lane in index)
        return self.accesses.get((what, dims))

    def read(self, buffer: Buffer) -> Lane:
        """What is in a buffer that the step names."""
        return read_buffer(self.env, buffer, self.index, self.width, self.kind(buffer))

    def write(self, buffer: Buffer, lane: Lane) -> None:
        write_buffer(self.env, buffer, self.index, lane, self.width, self.kind(buffer))

    def kind(self, buffer: Buffer) -> str | None:
        """How the plan accesses a buffer that the step names, if it says so."""
        access = self.accesses.get((buffer, ()))
        return None if access is None else access.kind

    def at(self, index: Index) -> Strip:
        """The strip at another index, of the same nest: what both evaluate is evaluated once."""
        other = copy.copy(self)
        other.index = index
        return other

    def vector(self, value: Tensor, index: Index | None = None) -> Value:
        return materialize(self.b, self.value(value, index), self.width)

    def _evaluate_pieces(self, root: Tensor, index: Index) -> None:
        """Evaluates, operands first, what ends a piece of a chain that is too long to follow in calls."""
        own, heights = own_dims(root), dict[Tensor, int]()
        available = Available(self.sources.materialized, self.sources.advanced)

        def place(dims: Dims) -> Index:
            return index if dims == own else tuple(ZERO if d is None else index[d] for d in dims)

        def enter(value: Tensor, dims: Dims) -> Sequence[Tensor] | None:
            is_known = value.type.shape is None or value in self.sources.true
            return None if is_known or (value, *map(id, place(dims))) in self.cache else available.parts(value)

        for value, dims in walk([(root, own)], enter):
            heights[value] = 1 + max((heights.get(part, 0) for part in available.parts(value)), default=0)
            if heights[value] >= LONGEST_CHAIN and value is not root:
                self.value(value, place(dims))
                heights[value] = 0

    def _evaluate(self, value: Tensor, index: Index) -> Lane:
        buffer = self.sources.materialized.get(value)
        if buffer is not None:
            access = self.access(value, index)
            return read_buffer(self.env, buffer, index, self.width, None if access is None else access.kind)
        start = self.sources.advanced.get(value)
        if start is not None:
            return _advance(self.b, self.value(start, index), self.env.distances[value], self.width)
        op = value.op
        if op is None:
            raise AssertionError(f"{value} was not emitted")
        if rule := PLACED.get(op.name):
            lane = rule(self, op, index)
        elif op.name in ELEMENTWISE:
            lanes = [self.value(operand, index) for operand in op.operands]
            access = self.access(op, index) if op.name in DIVISIONS else None
            results = apply(self.b, op, lanes, self.width, None if access is None else access.kind)
            if self.env.follows:
                watching.computed(self.env, op, lanes, results, self.width)
            for result, computed in zip(op.results, results, strict=True):
                if result is not value:
                    place = (result, *map(id, index))
                    self.cache[place] = computed
                    self._save(result, index, computed)
            lane = results[value.number]
        else:
            raise Unsupported(f"operation {op.name}", op.location)
        self._save(value, index, lane)
        return lane

    def _save(self, value: Tensor, index: Index, lane: Lane) -> None:
        if index is self.index and value in self.saves:
            write_buffer(self.env, self.saves[value], index, lane, self.width)


def _advance(b: Builder, start: Lane, distance: Value, width: int) -> Lane:
    if start.stride is not None:
        exact = start.exact and b.add(start.exact, b.splat(distance, width))
        return Lane(b.add(start.value, distance), start.stride, exact)
    return Lane(b.add(start.value, b.splat(distance, width)), None)


class _Kept(Lane):
    """Keeps an index alive."""

    __slots__ = ("index",)

    def __init__(self, index: Index) -> None:
        super().__init__(undefined("i1"))
        self.index = index


def apply(b: Builder, op: Op, lanes: list[Lane], width: int, kind: str | None = None) -> list[Lane]:
    """An elementwise operation on strips: on scalars or strides where that is enough, else on vectors. `kind`: of a
    division, as the plan says."""
    if all(lane.uniform for lane in lanes):
        computed = ELEMENTWISE[op.name](b, op, [lane.value for lane in lanes])
        if isinstance(computed, list):
            return [Lane(value) for value in computed]
        if lanes:
            known = known_of(op, [lane.value for lane in lanes])
            computed.divisor = max(computed.divisor, known.divisor)
            computed.nonnegative |= known.nonnegative
        return [Lane(computed)]
    if width and kind != "vector" and all(lane.affine for lane in lanes):
        lane = affine(b, op, lanes, width)
        if lane is not None:
            if any(operand.exact for operand in lanes):
                lane = Lane(lane.value, lane.stride, _computed(b, op, lanes, width)[0])
            return [lane]
    assert kind != "scalar", "planned as one division for a strip"
    if op.name == "arith.select" and lanes[0].uniform:
        chosen = b.select(lanes[0].value, *(materialize(b, lane, width) for lane in lanes[1:]))
        return [Lane(chosen, None)]
    if kind == "reciprocal":
        return [Lane(vecmath.divided_by_scalar(b, materialize(b, lanes[0], width), lanes[1].value), None)]
    return [Lane(value, None) for value in _computed(b, op, lanes, width)]


def _computed(b: Builder, op: Op, lanes: list[Lane], width: int) -> list[Value]:
    computed = ELEMENTWISE[op.name](b, op, [materialize(b, lane, width) for lane in lanes])
    return computed if isinstance(computed, list) else [computed]
