"""Prints a plan. docs/triton.md explains the text with an example."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.analyses.few_bits import FewBits
from torch_mtia.triton.analyses.masks import End
from torch_mtia.triton.analyses.symbolic import TRUE, Expression, conjuncts
from torch_mtia.triton.ir.attributes import Dense
from torch_mtia.triton.ir.module import Block, Op, Value
from torch_mtia.triton.ir.ops import FLOAT_PREDICATES, INTEGER_PREDICATES, is_load
from torch_mtia.triton.plan import plan
from torch_mtia.triton.plan.plan import Body, Buffer, Carried, Nest, Plan, Sources, Step, Steps, Storage

_INDENT = "    "


def plan_text(of: Plan) -> str:
    lines = _Lines(of)
    lines.body(of.body)
    arguments = ", ".join(f"{value}: {value.type.element}" for value in of.arguments)
    head = [f"kernel {of.name}({arguments})", f"strips of {of.lanes} lanes, {of.scratch_size} bytes of scratch memory"]
    if of.in_bands:
        head.append("programs run in bands of the grid")
    buffers = [lines.storage(storage) for storage in sorted(of.lifetimes, key=lambda storage: storage.number)]
    return "\n".join([*head, "", *buffers, *([""] if buffers else []), *lines.lines]) + "\n"


class _Lines:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lines: list[str] = []
        self.depth = 0
        self.step = 0
        self.labels: dict[Block, str] = {}

    def storage(self, storage: Storage) -> str:
        where = "on the stack" if storage.on_stack else f"in scratch memory at {self.plan.offsets[storage]}"
        first, last = dataclasses.astuple(self.plan.lifetimes[storage])
        kept = f"steps {first} to {last}" if first != last else f"step {first}"
        return f"#{storage.number}: {storage.elements} x {storage.element} {where}, {kept}"

    def buffer(self, buffer: Buffer) -> str:
        return f"#{buffer.storage.number}" + (f"+{buffer.offset}" if buffer.offset else "")

    def label(self, block: Block) -> str:
        return self.labels.setdefault(block, f"^{len(self.labels) + 1}")

    def add(self, text: str) -> None:
        self.lines.append(f"{'':4}{_INDENT * self.depth}{text}")

    def begin(self, text: str) -> None:
        """A step of its own, with a number."""
        self.lines.append(f"{self.step:3} {_INDENT * self.depth}{text}")

    def run(self, steps: Steps) -> None:
        for step in steps:
            self.step += 1
            _PRINTERS[type(step)](self, step)

    def condition(self, what: str, condition: Expression) -> None:
        first, *others = conjuncts(condition)
        self.add(f"  {what} if {first}")
        for other in others:
            self.add(f"    and {other}")

    def inner(self, title: str, steps: Steps) -> None:
        self.add(title)
        self.depth += 1
        self.run(steps)
        self.depth -= 1

    def body(self, body: Body) -> None:
        for number, block in enumerate(body.blocks):
            if number:
                self.add(f"{self.label(block.block)}({_names(block.block.arguments)}):")
            self.run(block.steps)

    def nest(self, nest: Nest) -> None:
        size = " x ".join(map(str, nest.shape))
        along = f" along dimension {nest.dim}" if len(nest.shape) > 1 else ""
        strips = f"{nest.lanes} at a time{along}" if nest.lanes else "one by one"
        self.add(f"  over {size}, {strips}" + (f", {nest.together} strips in a round" if nest.together > 1 else ""))
        self.sources(nest.sources, nest.roots)
        for value, buffer in nest.saves.items():
            self.add(f"  keeps {value} in {self.buffer(buffer)}")
        if nest.hoisted:
            self.add(f"  outside of the innermost loop: {_names(value for value, _ in nest.hoisted)}")
        self.ends(nest.ends)

    def ends(self, ends: Mapping[int, End]) -> None:
        for dimension, end in ends.items():
            self.add(f"  ends along dimension {dimension} {_end(end)}")

    def few_bits(self, value: Value, few_bits: FewBits | None) -> None:
        if few_bits is not None:
            last = few_bits.first + few_bits.count - 1
            self.add(f"  looks {value} up by bits {few_bits.first} to {last} of {few_bits.source}")

    def sources(self, sources: Sources, roots: Iterable[Value]) -> None:
        evaluated, _ = Available(sources.held, sources.moved).reach(list(roots), ())
        loads = [value for value in evaluated if is_load(value.op)]
        if loads:
            self.add(f"  loads {_names(loads)}")
        for value, buffer in sources.held.items():
            self.add(f"  reads {value} from {self.buffer(buffer)}")
        for value, before in sources.moved.items():
            self.add(f"  moves {value} from {before}")


def _names(values: Iterable[Value]) -> str:
    return ", ".join(map(str, values))


def _end(end: End) -> str:
    return f"where {end.comparison.results[0]} is false"


def _operation(op: Op) -> str:
    results = f"{_names(op.results)} = " if op.results else ""
    if op.name == "arith.constant":
        value = op.attributes["value"]
        return f"{results}{value.values[0] if isinstance(value, Dense) else value}"
    names = {"arith.cmpi": INTEGER_PREDICATES, "arith.cmpf": FLOAT_PREDICATES}.get(op.name)
    predicate = f" {names[op.attributes['predicate']]}" if names else ""
    axis = f" {'xyz'[op.attributes['axis']]}" if op.name in ("tt.get_program_id", "tt.get_num_programs") else ""
    return f"{results}{op.name}{predicate}{axis}" + (f" {_names(op.operands)}" if op.operands else "")


def _do(lines: _Lines, step: plan.Do) -> None:
    buffers = [lines.buffer(buffer) for buffer in (*step.reads, *filter(None, step.writes))]
    lines.begin(_operation(step.op) + (f" with {', '.join(buffers)}" if buffers else ""))
    for nest in step.nests:
        lines.nest(nest)


def _evaluate(lines: _Lines, step: plan.Evaluate) -> None:
    lines.begin("evaluate " + ", ".join(f"{value} -> {lines.buffer(buffer)}" for value, buffer in step.writes))
    lines.nest(step.nest)


def _transpose(lines: _Lines, step: plan.Transpose) -> None:
    lines.begin(f"evaluate {step.value} -> {lines.buffer(step.target)}, in squares turned in registers")
    size = " x ".join(map(str, step.target.shape))
    lines.add(f"  over {size}, {step.lanes} at a time along dimension {step.along}, written along {step.across}")
    lines.sources(step.sources, [step.value])
    lines.ends(step.ends)


def _copy(lines: _Lines, step: plan.Copy) -> None:
    lines.begin(f"copy {lines.buffer(step.source)} -> {lines.buffer(step.target)}")
    lines.nest(step.nest)


def _store(lines: _Lines, step: plan.Store) -> None:
    stored = ", ".join(f"{store.operands[1]} to {store.operands[0]}" for store in step.stores)
    lines.begin(f"store {stored}")
    lines.nest(step.nest)
    if step.whole is not None:
        lines.add(f"  without {step.whole} where no loop ends early")
    if step.at_once is not TRUE:
        lines.condition("at once", step.at_once)
    if step.streams is not None:
        lines.condition("past the caches", step.streams)
    if step.staged:
        staged = ", ".join(lines.buffer(buffer) for buffer in step.staged)
        lines.inner(f"  otherwise by way of {staged}", step.afterwards)


def _store_staged(lines: _Lines, step: plan.StoreStaged) -> None:
    lines.begin(f"store {lines.buffer(step.source)} to {step.store.operands[0]}")
    lines.nest(step.nest)


def _reduce(lines: _Lines, step: plan.Reduce) -> None:
    op, size = step.op, step.nest.shape[step.axis]
    targets = [lines.buffer(target) for target in step.targets if target is not None]
    written = f" -> {', '.join(targets)}" if targets else ""
    lines.begin(f"reduce {_names(op.operands)} along dimension {step.axis} to {_names(op.results)}{written}")
    lines.nest(step.nest)
    order = "any order" if step.any_order else "order of the indices"
    if step.across:
        lines.add(f"  in {order}, {step.side} strips side by side")
    elif step.any_order:
        lines.add(f"  in {order}, {step.chains} accumulators of {max(step.nest.lanes, 1)} lanes")
    else:
        lines.add(f"  in {order}, {step.group} strips at a time")
    if step.end is not None:
        lines.add(f"  ends before {size} {_end(step.end.end)}, if what is behind changes nothing")


def _scan(lines: _Lines, step: plan.Scan) -> None:
    targets = ", ".join(map(lines.buffer, step.targets))
    order = "backward" if step.reverse else "forward"
    op = step.op
    lines.begin(
        f"scan {_names(op.operands)} along dimension {step.axis}, {order}, to {_names(op.results)} -> {targets}"
    )
    lines.nest(step.nest)


def _pack(lines: _Lines, step: plan.Pack) -> None:
    form = f"in words of {step.words}" if step.words else f"as {step.tensors[0].target.element}"
    form += ", turned" if step.turned else ""
    packed = ", ".join(f"{each.value} -> {lines.buffer(each.target)}" for each in step.tensors)
    lines.begin(f"pack {packed}, {form}")
    for each in step.tensors:
        lines.few_bits(each.value, each.few_bits)
    lines.nest(step.nest)


def _decode(lines: _Lines, step: plan.Decode) -> None:
    scales = f" times {lines.buffer(step.scales)}" if step.scales is not None else ""
    lines.begin(f"decode {lines.buffer(step.source)}{scales} -> {lines.buffer(step.target)}, from {step.format}")
    lines.nest(step.nest)


def _multiply(lines: _Lines, step: plan.Multiply) -> None:
    def operand(of: Buffer | Value) -> str:
        return lines.buffer(of) if isinstance(of, Buffer) else str(of)

    products = " + ".join(f"{operand(each.left)} @ {operand(each.right)}" for each in step.products)
    sums = f"= {step.initial} +" if step.initial is not None else "=" if step.from_zero else "+="
    lines.begin(f"multiply {lines.buffer(step.target)} {sums} {products}")
    rows, n = step.target.shape[-2:]
    lines.add(f"  {rows} x {step.inner} @ {step.inner} x {n}, {step.depth} products at a time")
    if step.tiles:
        lines.add(f"  accumulators: {step.rows // step.lanes} x {step.vectors} tiles of {step.lanes} x {step.lanes}")
    else:
        lines.add(f"  accumulators: {step.rows} x {step.vectors} vectors of {step.lanes} lanes")
    if step.upcoming is not None:
        lines.add(f"  fetches what is behind {step.upcoming.results[0]}")
    for each in step.products:
        if isinstance(each.right, Value):
            lines.few_bits(each.right, each.few_bits)
    lines.sources(step.sources, step.roots)


def _convert(lines: _Lines, step: plan.Convert) -> None:
    lines.begin(f"convert {lines.buffer(step.source)} -> {lines.buffer(step.target)}, to {step.target.element}")
    lines.nest(step.nest)


def _clear(lines: _Lines, step: plan.Clear) -> None:
    lines.begin(f"clear {lines.buffer(step.target)}")
    lines.nest(step.nest)


def _carries(lines: _Lines, carried: Sequence[Carried]) -> None:
    for item in carried:
        if item.buffer is not None:
            how = f"in {lines.buffer(item.buffer)}, from {item.initial}"
        elif item.moves is not None:
            how = f"moved from {item.initial} by {_names(source for _, source in item.moves)}"
        else:
            how = f"from {item.initial}"
        lines.add(f"  carries {item.argument} {how}, then {item.following}")


def _for(lines: _Lines, step: plan.For) -> None:
    begin, end, by = step.op.operands[:3]
    counter = step.op.regions[0].blocks[0].arguments[0]
    lines.begin(f"for {counter} from {begin} to {end} by {by}")
    _carries(lines, step.carried)
    lines.inner("do", step.body)


def _while(lines: _Lines, step: plan.While) -> None:
    lines.begin("while")
    _carries(lines, step.carried)
    lines.inner("check", step.head)
    lines.inner(f"do, if {step.op.regions[0].blocks[0].terminator.operands[0]}", step.body)


def _if(lines: _Lines, step: plan.If) -> None:
    results = [f"{value} -> {lines.buffer(buffer)}" for value, buffer in step.buffers.items()]
    lines.begin(f"if {step.op.operands[0]}" + (f", for {', '.join(results)}" if results else ""))
    for title, branch in zip(("then", "else"), step.branches, strict=False):
        lines.inner(title, branch)


def _jump(lines: _Lines, step: plan.Jump) -> None:
    lines.begin(f"go to {lines.label(step.block)}({_names(step.values)})")


def _branch(lines: _Lines, step: plan.Branch) -> None:
    lines.begin(f"if {step.condition}")
    for title, way in zip(("then", "else"), step.ways, strict=True):
        lines.inner(title, way)


def _leave(lines: _Lines, step: plan.Leave) -> None:
    lines.begin("return" + (f" {_names(step.values)}" if step.values else ""))


def _unreachable(lines: _Lines, step: plan.Unreachable) -> None:
    lines.begin("unreachable")


def _call(lines: _Lines, step: plan.Call) -> None:
    lines.begin(f"call {step.op.attributes['callee']} for {_names(step.op.results)}")
    lines.depth += 1
    lines.body(step.body)
    lines.depth -= 1


def _map_elements(lines: _Lines, step: plan.MapElements) -> None:
    buffers = [", ".join(map(lines.buffer, group)) for group in (step.sources, step.targets)]
    lines.begin(f"for each element of {buffers[0]} -> {buffers[1]}, {step.pack} at a time")
    lines.depth += 1
    lines.body(step.body)
    lines.depth -= 1


_PRINTERS: dict[type[Step], Callable[[_Lines, Any], None]] = {
    plan.Do: _do,
    plan.Evaluate: _evaluate,
    plan.Transpose: _transpose,
    plan.Copy: _copy,
    plan.Store: _store,
    plan.StoreStaged: _store_staged,
    plan.Reduce: _reduce,
    plan.Scan: _scan,
    plan.Pack: _pack,
    plan.Decode: _decode,
    plan.Multiply: _multiply,
    plan.Convert: _convert,
    plan.Clear: _clear,
    plan.For: _for,
    plan.While: _while,
    plan.If: _if,
    plan.Jump: _jump,
    plan.Branch: _branch,
    plan.Leave: _leave,
    plan.Unreachable: _unreachable,
    plan.Call: _call,
    plan.MapElements: _map_elements,
}
