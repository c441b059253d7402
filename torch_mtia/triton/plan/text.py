"""Prints a plan, and reads one back that was changed. docs/triton.md explains the text with an example.

A step begins with its `title`. Then come lines of the fields that have a text (`shown`), in order. In both,
`{name}` is an attribute, and what is in brackets is left out where the attribute in it is empty or, if it is a number,
the field's default. What may be changed is written `{=name}`, or `{=name:words}` for a flag that is these words.

A text is read beside the plan that it was printed from, which has the tensors and operations that it names: each line
is as it was, or differs in what may be changed, or is missing, of a field that is `optional`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch_mtia.triton.analyses.few_bits import FewBits
from torch_mtia.triton.analyses.masks import End, ReductionEnd
from torch_mtia.triton.analyses.symbolic import TRUE, Expression, conjuncts
from torch_mtia.triton.ir.attributes import Dense
from torch_mtia.triton.ir.module import Block, Op, Value
from torch_mtia.triton.ir.ops import FLOAT_PREDICATES, INTEGER_DIVISIONS, INTEGER_PREDICATES
from torch_mtia.triton.plan.nests import Buffer, Part
from torch_mtia.triton.plan.plan import Body, Factors, Operand, Plan, Steps

_INDENT = "    "
_PLACE = re.compile(r"\{(=?)([^}:]+)(?::([^}]*))?\}")
_OPTIONAL = re.compile(r"\[([^\[\]{]*\{=?(\w+)[^\[\]]*)\]")
Path = tuple["str | int", ...]  # the fields and places that lead to a part


@dataclasses.dataclass(frozen=True)
class Line:
    text: str
    path: Path = ()  # of the part that it is of
    field: str = ""
    pattern: str = ""  # of the text with anything in the place of what may be changed
    keys: tuple[Any, ...] = ()  # of the entries of a mapping that it is about
    optional: bool = False
    goes_on: bool = False  # with what the line before it says


def plan_text(plan: Plan) -> str:
    return "\n".join(line.text for line in _Printer(False).plan(plan)) + "\n"


def plan_lines(plan: Plan) -> Iterator[Line]:
    """Those of the text, with their patterns."""
    return _Printer(True).plan(plan)


@functools.cache
def _groups(text: str) -> list[tuple[str, str, str]]:
    """Pieces of a text: (what is always shown, then what is in brackets, and the attribute in that)"""
    found, at = [], 0
    for match in _OPTIONAL.finditer(text):
        found.append((text[at : match.start()], match[1], match[2]))
        at = match.end()
    return [*found, (text[at:], "", "")]


class _Printer:
    def __init__(self, with_patterns: bool) -> None:
        self.with_patterns = with_patterns
        self.step = 0
        self.labels: dict[Block, str] = {}

    def plan(self, plan: Plan) -> Iterator[Line]:
        yield Line(self.filled(plan.title, plan)[0])
        yield from self.part(plan, (), -1)
        yield Line("")
        for storage, used in sorted(plan.lifetimes.items(), key=lambda item: item[0].number):
            where = "on the stack" if storage.on_stack else f"in scratch memory at {plan.offsets[storage]}"
            steps = f"steps {used.first} to {used.last}" if used.first != used.last else f"step {used.first}"
            yield Line(f"#{storage.number}: {storage.elements} x {storage.element} {where}, {steps}")
        yield from [Line("")] if plan.lifetimes else []
        yield from self.body(plan.body, ("body",), 0)

    def show(self, value: Any) -> str:
        if isinstance(value, Buffer):
            return _buffer(value)
        if isinstance(value, Block):
            return self.labels.setdefault(value, f"^{len(self.labels) + 1}")
        if isinstance(value, Op):
            return _operation(value)
        if isinstance(value, FewBits):
            return f"bits {value.first} to {value.first + value.count - 1} of {value.source}"
        if isinstance(value, (End, ReductionEnd)):
            end = value.end if isinstance(value, ReductionEnd) else value
            return f"where {end.comparison.results[0]} is false"
        if isinstance(value, Factors):
            return f"{self.show(value.left)} @ {self.show(value.right)}"
        if isinstance(value, Operand):
            return self.show(value.buffer or value.value)
        if isinstance(value, Mapping):
            return self.show(tuple(value.items()))
        if not isinstance(value, (tuple, list)):
            return str(value)
        if len(value) == 2 and isinstance(value[0], Value) and not isinstance(value[1], Value):
            return f"{value[0]} -> {self.show(value[1])}" if isinstance(value[1], Buffer) else str(value[0])
        if value and isinstance(value[0], int):
            return " x ".join(map(str, value))
        return (" + " if value and isinstance(value[0], Factors) else ", ").join(map(self.show, value))

    def filled(self, text: str, part: Any) -> tuple[str, str]:
        """(what `text` says of a part, and its pattern)"""

        def shown(match: re.Match[str]) -> str:
            return match[3] or self.show(_attribute(part, match[2]))

        def pattern(match: re.Match[str]) -> str:
            if not match[1]:
                return re.escape(shown(match))
            word = match[3] or (r"\d+" if isinstance(_attribute(part, match[2]), int) else r"[a-z]+")
            return f"(?P<{match[2]}>{word})"

        result, regex = "", ""
        for plain, group, name in _groups(text):
            result += _PLACE.sub(shown, plain)
            value = _attribute(part, name) if name else None
            is_shown = bool(value) and not (isinstance(value, int) and value == part.__dataclass_fields__[name].default)
            if is_shown:
                result += _PLACE.sub(shown, group)
            if self.with_patterns:
                regex += _each(plain, pattern)
                if "{=" in group:
                    regex += f"(?:{_each(group, pattern)})?"
                elif is_shown:
                    regex += _each(group, pattern)
        return result, regex

    def steps(self, steps: Steps, path: Path, depth: int) -> Iterator[Line]:
        for place, step in enumerate(steps):
            self.step += 1
            text, _ = self.filled(step.title, step)
            yield Line(f"{self.step:3} {_INDENT * depth}{text}")
            yield from self.part(step, (*path, place), depth)

    def body(self, body: Body, path: Path, depth: int) -> Iterator[Line]:
        for number, block in enumerate(body.blocks):
            if number:
                arguments = self.show(tuple(block.block.arguments))
                yield Line(_indented(depth, f"{self.show(block.block)}({arguments}):"))
            yield from self.steps(block.steps, (*path, "blocks", number, "steps"), depth)

    def part(self, part: Part, path: Path, depth: int) -> Iterator[Line]:
        """The lines of its fields."""
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            value = getattr(part, field.name)
            if not field.metadata and not isinstance(value, (Part, tuple)):
                continue
            text, inner, here = field.metadata.get("text"), field.metadata.get("steps"), (*path, field.name)
            if isinstance(value, Body):
                if depth >= 0:
                    yield from self.body(value, here, depth + 1)
            elif isinstance(value, Part):
                yield from self.part(value, here, depth)
            elif inner is not None and "|" in inner:
                for place, (title, steps) in enumerate(zip(inner.split("|"), value, strict=False)):
                    yield Line(_indented(depth, title))
                    yield from self.steps(steps, (*here, place), depth + 1)
            elif inner is not None and value:
                yield Line(_indented(depth, self.filled(inner, part)[0]))
                yield from self.steps(value, here, depth + 1)
            elif text is None and isinstance(value, tuple):
                for place, each in enumerate(value):
                    if isinstance(each, Part):
                        yield from self.part(each, (*here, place), depth)
            elif text is not None and value not in (None, TRUE, False, (), ""):
                yield from self.shown(text, value, part, path, depth, field)

    def shown(
        self, text: str, value: object, part: object, path: Path, depth: int, field: dataclasses.Field[Any]
    ) -> Iterator[Line]:
        optional = bool(field.metadata.get("optional"))
        if isinstance(value, Expression):
            first, *others = conjuncts(value)
            yield Line(_indented(depth, f"  {text} if {first}"), path, field.name, optional=optional)
            for other in others:
                yield Line(_indented(depth, f"    and {other}"), goes_on=True)
        elif isinstance(value, Mapping):
            entries: dict[tuple[str, str], list[Any]] = {}
            for key, item in value.items():
                what = text.format(_key(key), "\0")
                title = "" if isinstance(item, str) else getattr(item, "title", "")
                said, pattern = self.filled(title, item) if title else (self.show(item), "")
                pattern = pattern and re.escape(what).replace(re.escape("\0"), pattern)
                entries.setdefault((what.replace("\0", said), pattern), []).append(key)
            for (line, pattern), keys in entries.items():
                yield Line(_indented(depth, f"  {line}"), path, field.name, pattern, tuple(keys), optional)
        else:
            said, pattern = self.filled(text, part)
            yield Line(_indented(depth, f"  {said}"), path, field.name, pattern, optional=optional)


def _each(text: str, pattern: Any) -> str:
    """A pattern of a text, with those of its attributes."""
    parts, at = [], 0
    for match in _PLACE.finditer(text):
        parts += [re.escape(text[at : match.start()]), pattern(match)]
        at = match.end()
    return "".join([*parts, re.escape(text[at:])])


def _indented(depth: int, text: str) -> str:
    return text.strip() if depth < 0 else f"{'':4}{_INDENT * depth}{text}"


@functools.cache
def _names(path: str) -> list[str]:
    return re.findall(r"\w+", path)


def _attribute(part: Any, path: str) -> Any:
    """What a text calls `{path}`, as "op.operands[0]"."""
    for name in _names(path):
        part = part[int(name)] if name.isdigit() else part[name] if isinstance(part, dict) else getattr(part, name)
    return part


_VERBS = {
    "tt.load": "loads",
    "tt.store": "stores",
    "tt.atomic_rmw": "adds",
    **dict.fromkeys(("arith.divf", *INTEGER_DIVISIONS), "divides to"),
}


def _key(key: object) -> object:
    """What the line of an entry of a mapping is about: of an access, what it does to which tensor."""
    if isinstance(key, Op) or (isinstance(key, tuple) and isinstance(key[0], Op)):
        op = key if isinstance(key, Op) else key[0]
        named = op.operands[1] if op.name in ("tt.store", "tt.atomic_rmw") else op.results[0]
        return f"{_VERBS.get(op.name, op.name)} {named}"
    if isinstance(key, tuple):
        return f"accesses {_buffer(key[0])}" if isinstance(key[0], Buffer) else f"reads {key[0]}"
    return key


def _buffer(buffer: Buffer) -> str:
    return f"#{buffer.storage.number}" + (f"+{buffer.offset}" if buffer.offset else "")


def _operation(op: Op) -> str:
    results = f"{', '.join(map(str, op.results))} = " if op.results else ""
    if op.name == "arith.constant":
        value = op.attributes["value"]
        return f"{results}{value.values[0] if isinstance(value, Dense) else value}"
    names = {"arith.cmpi": INTEGER_PREDICATES, "arith.cmpf": FLOAT_PREDICATES}.get(op.name)
    predicate = f" {names[op.attributes['predicate']]}" if names else ""
    axis = f" {'xyz'[op.attributes['axis']]}" if op.name in ("tt.get_program_id", "tt.get_num_programs") else ""
    return f"{results}{op.name}{predicate}{axis}" + (f" {', '.join(map(str, op.operands))}" if op.operands else "")
