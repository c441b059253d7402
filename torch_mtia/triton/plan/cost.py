"""A pass over a plan: how long one program takes, about. The driver hands programs out to its threads by it until it
has measured some.

The model counts instructions: what a strip evaluates, by the facts of ir/ops.py, as often as its nest has strips. Of 20
kernels (elementwise, reductions, scans, a sort, a transpose, an atomic, matmuls) on a core of an AMD EPYC with AVX-512,
19 took between a third and twice of what it says, with the rounds that their loops had; a sine took four times as long.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.analyses.walk import own_dims, walk
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Dims, facts, is_load
from torch_mtia.triton.plan.nests import Accesses, Nest, Sources
from torch_mtia.triton.plan.plan import (
    AddNeighbours,
    Body,
    Call,
    Clear,
    Convert,
    Copy,
    Decode,
    Do,
    Evaluate,
    For,
    If,
    MapElements,
    Multiply,
    Pack,
    Plan,
    Reduce,
    Scan,
    Step,
    Steps,
    Store,
    Transpose,
    While,
    per_word,
)

INSTRUCTIONS_PER_NANOSECOND = 4.0
ROUND = 2  # instructions of a round of a loop
BY_ITSELF = 3  # of an element that is read or written by itself
ATOMIC = 20
ROUNDS = 16  # of a loop whose bounds are not constant


def estimate(plan: Plan, affine: Affine) -> Plan:
    instructions = _Model(affine).body(plan.body)
    return dataclasses.replace(plan, cost=int(instructions / INSTRUCTIONS_PER_NANOSECOND))


class _Model:
    def __init__(self, affine: Affine) -> None:
        self.affine = affine

    def body(self, body: Body) -> float:
        return sum(self.steps(block.steps) for block in body.blocks)

    def steps(self, steps: Steps) -> float:
        return sum(map(self.step, steps))

    def step(self, step: Step) -> float:
        if isinstance(step, For):
            return _rounds(step.op) * (ROUND + self.steps(step.body))
        if isinstance(step, While):
            return ROUNDS * (self.steps(step.head) + self.steps(step.body))
        if isinstance(step, If):
            return max(map(self.steps, step.branches))
        if isinstance(step, (Call, MapElements)):
            elements = step.targets[0].storage.elements // step.pack if isinstance(step, MapElements) else 1
            return elements * self.body(step.body)
        if isinstance(step, Do):
            known = facts(step.op)
            cost = 1 if known is None or known.reads else known.cost
            cost = ATOMIC if step.op.name.startswith("tt.atomic") else cost
            return sum(self.nest(nest, cost) for nest in step.nests) if step.nests else cost
        if isinstance(step, Transpose):
            strip = self.strip([step.value], step.accesses, step.sources, step.lanes)
            return step.value.type.numel / step.lanes * (strip + 1 + math.log2(step.lanes))
        if isinstance(step, AddNeighbours):
            return self.nest(step.nest, ATOMIC * step.nest.lanes / step.piece)
        if isinstance(step, Store):
            return self.nest(step.nest, len(step.stores))
        if isinstance(step, (Reduce, Scan)):
            return self.across(step)
        if isinstance(step, Pack):
            numbers = per_word(step.words) if step.words else 1
            return self.nest(step.nest, 2 * len(step.operands), numbers)
        if isinstance(step, Multiply):
            return self.products(step)
        extra = {Evaluate: 1, Copy: 2, Clear: 1, Convert: 3, Decode: 10}.get(type(step))
        return 1 if extra is None else self.nest(step.nest, extra)  # type: ignore[attr-defined]

    def nest(self, nest: Nest, extra: float, times: int = 1) -> float:
        hoisted = {value for value, _ in nest.hoisted}
        strip = self.strip(nest.roots, nest.accesses, nest.sources, nest.lanes, hoisted)
        return nest.strips * (times * strip + len(nest.saves) + extra + ROUND / nest.unroll)

    def across(self, step: Reduce | Scan) -> float:
        combine = sum(_cost(op) for op in step.op.regions[0].walk())
        lanes = max(step.nest.lanes, 1)
        folds = combine * 2 * math.log2(lanes) if step.step > 1 else 0
        rows = (
            step.nest.strips if isinstance(step, Scan) else step.nest.strips * step.step // step.nest.shape[step.axis]
        )
        return self.nest(step.nest, combine) + rows * folds

    def products(self, step: Multiply) -> float:
        (*batch, rows, columns), tile = step.target.shape, step.accumulators
        blocks = math.prod(batch) * (rows // tile.rows) * (columns // tile.columns) * step.inner
        if tile.tiles:
            return blocks * tile.vectors * tile.rows / tile.lanes
        evaluated = [each.right.value for each in step.products if each.right.buffer is None]
        numbers = per_word(step.words) if step.words else 1
        right = tile.vectors * (numbers * self.strip(evaluated, step.accesses, step.sources, tile.lanes) + 1)
        return blocks * (len(step.products) * tile.rows * (tile.vectors + 1) + right)

    def strip(
        self, roots: Sequence[Value], accesses: Accesses, sources: Sources, lanes: int, known: set[Value] | None = None
    ) -> float:
        """What evaluating a strip of `roots` takes, where `known` is evaluated outside of the loop."""
        available, total = Available(sources.materialized, sources.advanced), 0.0

        def enter(value: Value, dims: Dims) -> Sequence[Value] | None:
            nonlocal total
            if known is not None and value in known:
                return None
            access = accesses.get((value if value.op is None or not is_load(value.op) else value.op, dims))
            if access is not None and access.kind in ("strided", "gather"):
                total += BY_ITSELF * lanes
            elif value in sources.materialized or is_load(value.op):
                total += 1
            elif value.op is not None and not self.affine.is_index(value):  # which is scalar, and mostly hoisted
                total += _cost(value.op) * max(element_size(value.type.element) / 4, 1)
            return available.parts(value)

        walk([(root, own_dims(root)) for root in roots if root.type.shape is not None], enter)
        return total


def _cost(op: Op) -> int:
    known = facts(op)
    return 0 if known is None else known.cost


def _rounds(loop: Op) -> float:
    bounds = [bound.op for bound in loop.operands[:3]]
    if any(op is None or op.name != "arith.constant" for op in bounds):
        return ROUNDS
    begin, end, step = (op.attributes["value"] for op in bounds if op is not None)
    return max(0, -(-(end - begin) // step)) if step > 0 else ROUNDS
