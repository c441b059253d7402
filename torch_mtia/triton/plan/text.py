"""Prints a plan. docs/triton.md explains the text with an example.

A step begins with its `title`. Then come lines of the fields for which plan.py has a text (`shown`), in order.
In both, `{name}` is an attribute, and what is in brackets is left out where the attribute in it is empty.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from torch_mtia.triton.analyses.few_bits import FewBits
from torch_mtia.triton.analyses.masks import End, ReductionEnd
from torch_mtia.triton.analyses.symbolic import TRUE, Expression, conjuncts
from torch_mtia.triton.ir.attributes import Dense
from torch_mtia.triton.ir.module import Block, Op, Value
from torch_mtia.triton.ir.ops import FLOAT_PREDICATES, INTEGER_PREDICATES, is_load
from torch_mtia.triton.plan.plan import Access, Body, Buffer, Factors, Packed, Part, Plan, Steps, Storage

_INDENT = "    "
_ATTRIBUTE = re.compile(r"\{([^}]+)\}")
_OPTIONAL = re.compile(r"\[([^\[\]]*\{(\w+)\}[^\[\]]*)\]")


def plan_text(of: Plan) -> str:
    lines = _Lines(of)
    lines.body(of.body)
    arguments = ", ".join(f"{value}: {value.type.element}" for value in of.arguments)
    head = [f"kernel {of.name}({arguments})", f"strips of {of.lanes} lanes, {of.scratch_size} bytes of scratch memory"]
    if of.in_bands:
        head.append("programs run in bands of the grid")
    buffers = [lines.storage(storage) for storage in sorted(of.lifetimes, key=lambda storage: storage.number)]
    return "\n".join([*head, "", *buffers, *([""] if buffers else []), *lines.lines]) + "\n"


def _attribute(part: Any, path: str) -> Any:
    """What a text calls `{path}`, as "op.operands[0]"."""
    for name in re.findall(r"\w+", path):
        part = part[int(name)] if name.isdigit() else part[name] if isinstance(part, dict) else getattr(part, name)
    return part


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

    def show(self, value: Any) -> str:
        if isinstance(value, Buffer):
            return f"#{value.storage.number}" + (f"+{value.offset}" if value.offset else "")
        if isinstance(value, Block):
            return self.labels.setdefault(value, f"^{len(self.labels) + 1}")
        if isinstance(value, Op):
            return _operation(value)
        if isinstance(value, Access):
            return _access(value)
        if isinstance(value, FewBits):
            return f"bits {value.first} to {value.first + value.count - 1} of {value.source}"
        if isinstance(value, (End, ReductionEnd)):
            end = value.end if isinstance(value, ReductionEnd) else value
            return f"where {end.comparison.results[0]} is false"
        if isinstance(value, Factors):
            return f"{self.show(value.left)} @ {self.show(value.right)}"
        if isinstance(value, Packed):
            return f"{value.value} -> {self.show(value.target)}"
        if isinstance(value, Mapping):
            return self.show(tuple(value.items()))
        if not isinstance(value, (tuple, list)):
            return str(value)
        if len(value) == 2 and isinstance(value[0], Value) and not isinstance(value[1], Value):
            return f"{value[0]} -> {self.show(value[1])}" if isinstance(value[1], Buffer) else str(value[0])
        if value and isinstance(value[0], int):
            return " x ".join(map(str, value))
        return (" + " if value and isinstance(value[0], Factors) else ", ").join(map(self.show, value))

    def filled(self, text: str, part: object) -> str:
        kept = _OPTIONAL.sub(lambda match: match[1] if getattr(part, match[2]) else "", text)
        return _ATTRIBUTE.sub(lambda match: self.show(_attribute(part, match[1])), kept)

    def add(self, text: str) -> None:
        self.lines.append(f"{'':4}{_INDENT * self.depth}{text}")

    def run(self, steps: Steps) -> None:
        for step in steps:
            self.step += 1
            self.lines.append(f"{self.step:3} {_INDENT * self.depth}{self.filled(step.title, step)}")
            self.part(step)

    def inner(self, title: str, steps: Steps | Body) -> None:
        if title:
            self.add(title)
        self.depth += 1
        if isinstance(steps, Body):
            self.body(steps)
        else:
            self.run(steps)
        self.depth -= 1

    def body(self, body: Body) -> None:
        for number, block in enumerate(body.blocks):
            if number:
                self.add(f"{self.show(block.block)}({self.show(tuple(block.block.arguments))}):")
            self.run(block.steps)

    def part(self, part: Part) -> None:
        """The lines of its fields."""
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            value, text, inner = getattr(part, field.name), field.metadata.get("text"), field.metadata.get("steps")
            if isinstance(value, Part):
                self.part(value)
            elif isinstance(value, Body):
                self.inner("", value)
            elif inner is not None and "|" in inner:
                for title, steps in zip(inner.split("|"), value, strict=False):
                    self.inner(title, steps)
            elif inner is not None and value:
                self.inner(self.filled(inner, part), value)
            elif text is None and isinstance(value, tuple):
                for each in value:
                    if isinstance(each, Part):
                        self.part(each)
            elif text is not None and value not in (None, TRUE, False, ()):
                self.shown(text, value, part)

    def shown(self, text: str, value: object, part: object) -> None:
        if isinstance(value, Expression):
            first, *others = conjuncts(value)
            for line in (f"  {text} if {first}", *(f"    and {other}" for other in others)):
                self.add(line)
        elif isinstance(value, Mapping):
            for line in dict.fromkeys(text.format(_key(key), self.show(item)) for key, item in value.items()):
                self.add(f"  {line}")
        else:
            self.add(f"  {self.filled(text, part)}")


def _key(key: object) -> object:
    """What the line of an entry of a mapping is about: of an access, what it does to which tensor."""
    if not isinstance(key, tuple):
        return key
    op = key[0]
    return f"loads {op.results[0]}" if is_load(op) else f"stores {op.operands[1]}"


def _access(access: Access) -> str:
    ahead = access.prefetch
    fetched = (
        "" if ahead is None else f", prefetches {ahead.distance} {'bytes' if ahead.dimension is None else 'rows'} ahead"
    )
    return f"{access.kind}{fetched}{', past the caches' if access.nontemporal else ''}"


def _operation(op: Op) -> str:
    results = f"{', '.join(map(str, op.results))} = " if op.results else ""
    if op.name == "arith.constant":
        value = op.attributes["value"]
        return f"{results}{value.values[0] if isinstance(value, Dense) else value}"
    names = {"arith.cmpi": INTEGER_PREDICATES, "arith.cmpf": FLOAT_PREDICATES}.get(op.name)
    predicate = f" {names[op.attributes['predicate']]}" if names else ""
    axis = f" {'xyz'[op.attributes['axis']]}" if op.name in ("tt.get_program_id", "tt.get_num_programs") else ""
    return f"{results}{op.name}{predicate}{axis}" + (f" {', '.join(map(str, op.operands))}" if op.operands else "")
