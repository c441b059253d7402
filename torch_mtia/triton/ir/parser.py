"""Reads TTIR, Triton's dialect of MLIR, into plain Python objects (module.py).

The bindings in the Triton wheel do not show constants and array attributes, so the text is parsed. MLIR's generic form
(`"dialect.op"(operands) <{properties}> ({regions}) : types`) is the same for every operation and every Triton version;
`generic_text` obtains it. One line of it holds one operation without regions, or the head of one with regions.

    text = generic_text(module)      the module is not valid afterwards
    module = parse(text)
"""

from __future__ import annotations

import re
from typing import Any

from torch_mtia.triton.ir.attributes import parse_attributes
from torch_mtia.triton.ir.module import Block, Function, Location, Module, Op, Region, Type, Value


def generic_text(module: Any) -> str:
    """The module in generic form, with locations.

    MLIR prints the generic form of a module that fails verification, so an attribute of the wrong type is set. That is
    silent, quick, and the same in every Triton version that was tried (3.6 to 3.9)."""
    from triton._C.libtriton import ir

    module.set_attr("llvm.data_layout", ir.builder(module.context).get_int32_attr(1))
    return str(module)


# An address space is a number up to Triton 3.8, and then a name: that of pointers to tl.const is "constant".
_POINTER = re.compile(r'!tt\.ptr<(.*?)(?:, (?:\d+|"\w+"))?>$')


def parse_type(text: str) -> Type:
    shape: tuple[int, ...] | None = None
    inner = text
    if text.startswith("tensor<"):
        match = re.match(r"tensor<((?:\d+x)*)(.*)>$", text)
        if match is None:
            raise ValueError(f"type {text!r} of TTIR is not known")
        inner = match[2]
        # An encoding follows a comma outside of a pointer type.
        if not inner.startswith("!") and "," in inner:
            inner = inner.partition(",")[0]
        shape = tuple(int(size) for size in match[1].split("x") if size)
    if pointer := _POINTER.match(inner):
        return Type(shape, "ptr", pointer[1])
    if not re.fullmatch(r"\w+", inner):
        raise ValueError(f"type {text!r} of TTIR is not known")
    return Type(shape, inner)


class _TypeCache(dict[str, Type]):
    def __missing__(self, text: str) -> Type:
        self[text] = parsed = parse_type(text)
        return parsed


def _split(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    parts, depth, first = [], 0, 0
    for position, character in enumerate(text):
        if character in "<([{":
            depth += 1
        elif character in ")]}" or (character == ">" and text[position - 1] != "-"):
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[first:position].strip())
            first = position + 1
    if tail := text[first:].strip():
        parts.append(tail)
    return parts


# Locations -----------------------------------------------------------------------------------------------------------

_FILE_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')


class _Locations:
    """Resolves `#loc12` to the line of the kernel: of an inlined call, the place of the call that is in the kernel."""

    def __init__(self, text: str) -> None:
        self.definitions = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
        self.resolved: dict[str, Location] = {}

    def __call__(self, text: str) -> Location:
        location = self.resolved.get(text)
        if location is None:
            location = self.resolved[text] = self.resolve(text)
        return location

    def resolve(self, text: str) -> Location:
        seen = set()
        while text not in seen:
            seen.add(text)
            if text in self.definitions:
                text = self.definitions[text]
            elif text.startswith("callsite("):
                inner = text[len("callsite(") : -1]
                callee, _, caller = inner.rpartition(" at ")
                found = self(caller)
                return found if found.line else self(callee)
            elif match := _FILE_LOCATION.match(text):
                return Location(match[1], int(match[2]))
            elif match := re.match(r'"(?:[^"\\]|\\.)*"\((.*)\)$', text):
                text = match[1]
            elif match := re.match(r"fused.*?\[(.*)\]$", text):
                text = match[1].partition(",")[0]
        return Location("", 0)


# Operations ----------------------------------------------------------------------------------------------------------

_OP = re.compile(
    r'\s*(?:(?P<results>%[^=]+?) = )?"(?P<name>[\w.]+)"\((?P<operands>[^)]*)\)(?:\[(?P<successors>[^\]]*)\])?'
    r'(?: <\{(?P<properties>(?:[^"}]|"(?:[^"\\]|\\.)*"|\}(?!>))*)\}>)?(?P<rest>.*)$'
)
_CLOSE = re.compile(r'\s*\}\)(?: \{(?P<attributes>(?:[^"}]|"(?:[^"\\]|\\.)*"|\{[^}]*\})*)\})?(?P<rest> : .*)$')
_TRAILING = re.compile(r' \{(?P<attributes>(?:[^"{}]|"(?:[^"\\]|\\.)*"|\{[^}]*\})*)\}(?P<rest> : .*)$')
_ARGUMENT = re.compile(r"(%[^:\s]+): (.*?)(?: loc\((?:(?!, %).)*\))?(?=, %|$)")


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.at = 0
        self.locations = _Locations(text)
        self.types = _TypeCache()
        self.values: dict[str, Value] = {}

    def module(self) -> Module:
        functions: dict[str, Function] = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            match = _OP.match(line)
            if match is None or match["name"] != "tt.func":
                continue
            attributes = parse_attributes(match["properties"])
            self.values = {}
            regions, tail = self.regions(None)
            location = self.locations(_location_text(tail))
            for region in regions:
                name = attributes["sym_name"]
                functions[name] = Function(
                    name,
                    region,
                    attributes.get("arg_attrs") or [],
                    attributes.get("sym_visibility") != "private",
                    location,
                )
        return Module(functions)

    def regions(self, parent: Op | None) -> tuple[list[Region], str]:
        """Reads regions up to the line that closes the operation; also returns that line's rest."""
        found = []
        while True:
            region = Region(parent)
            self.region(region)
            if region.blocks:
                found.append(region)
            line = self.lines[self.at]
            self.at += 1
            if line.strip() == "}, {":
                continue
            return found, line

    def region(self, region: Region) -> None:
        labels: dict[str, Block] = {}

        def block_named(label: str) -> Block:
            if label not in labels:
                labels[label] = Block(region)
            return labels[label]

        current: Block | None = None
        while True:
            line = self.lines[self.at]
            stripped = line.lstrip()
            if stripped.startswith("}"):
                return
            self.at += 1
            if stripped.startswith("^"):
                label = re.match(r"\^\w+", stripped)
                assert label is not None
                current = block_named(label[0])
                region.blocks.append(current)
                head = stripped[label.end() :]
                if head.startswith("("):
                    text = head[1 : head.rindex("):")]
                    for number_, argument in enumerate(_ARGUMENT.finditer(text)):
                        value = Value(argument[1], self.types[argument[2]], None, current, number_)
                        current.arguments.append(value)
                        self.values[value.name] = value
                continue
            if not stripped or stripped.startswith("//"):
                continue
            if current is None:
                current = Block(region)
                region.blocks.append(current)
            self.operation(line, current, block_named)

    def operation(self, line: str, block: Block, block_named: Any) -> None:
        match = _OP.match(line)
        if match is None:
            raise ValueError(f"TTIR: cannot read the line {line!r}")
        operands = [self.values[name] for name in match["operands"].split(", ")] if match["operands"] else []
        successors = [block_named(label.strip()) for label in (match["successors"] or "").split(",") if label.strip()]
        op = Op(match["name"], operands, [], [], successors, block, len(block.ops), Location("", 0), "")
        rest, attributes = match["rest"], match["properties"] or ""
        block.ops.append(op)
        if rest.endswith("({"):
            op.regions, closing = self.regions(op)
            closed = _CLOSE.match(closing)
            if closed is None:
                raise ValueError(f"TTIR: cannot read the line {closing!r}")
            rest, extra = closed["rest"], closed["attributes"]
        else:
            trailing = _TRAILING.match(rest)
            extra = trailing["attributes"] if trailing else None
            rest = trailing["rest"] if trailing else rest
        op.attribute_text = f"{attributes}, {extra}" if extra and attributes else attributes or extra or ""
        op.location = self.locations(_location_text(rest))
        types = rest[: rest.rfind(" loc(")] if " loc(" in rest else rest
        result_types = types.rpartition(") -> ")[2]
        if match["results"]:
            listed = _split(result_types[1:-1]) if result_types.startswith("(") else [result_types]
            names: list[str] = []
            for part in match["results"].split(", "):
                name, _, count = part.partition(":")
                names += [f"{name}#{index}" for index in range(int(count))] if count else [name]
            for index, (name, text) in enumerate(zip(names, listed, strict=True)):
                value = Value(name, self.types[text], op, block, index)
                op.results.append(value)
                self.values[name] = value
        for operand in operands:
            operand.users.append(op)


def _location_text(rest: str) -> str:
    first = rest.rfind(" loc(")
    return rest[first + len(" loc(") : -1] if first >= 0 else ""


def parse(text: str) -> Module:
    return _Parser(text).module()
