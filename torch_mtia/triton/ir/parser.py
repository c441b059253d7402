"""Reads TTIR, Triton's dialect of MLIR, into plain Python objects.

The bindings in the Triton wheel do not show constants and array attributes, so the text is parsed. MLIR's generic form
(`"dialect.op"(operands) <{properties}> ({regions}) : types`) is the same for every operation and every Triton version;
`generic_text` obtains it. One line of it holds one operation without regions, or the head of one with regions.

    text = generic_text(module)      the module is not valid afterwards
    module = parse(text)             Module -> Function -> Region -> Block -> Op -> Value
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple


class Type(NamedTuple):
    """A scalar (`shape` is None) or a tensor of `element`: f64 f32 f16 bf16 f8... i1 ... i64 index ptr."""

    shape: tuple[int, ...] | None
    element: str
    pointee: str = ""  # of an element `ptr`, in MLIR's spelling

    def scalar(self) -> Type:
        return Type(None, self.element, self.pointee)

    def with_shape(self, shape: tuple[int, ...] | None) -> Type:
        return Type(shape, self.element, self.pointee)

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape or ():
            count *= size
        return count


class Location(NamedTuple):
    file: str
    line: int


@dataclasses.dataclass(slots=True, eq=False)
class Value:
    """One SSA value: the result of `op`, or an argument of `block` when `op` is None."""

    name: str
    type: Type
    op: Op | None = None
    block: Block | None = None
    number: int = 0
    users: list[Op] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        return self.name

    def block_of(self) -> Block | None:
        """The block that defines it."""
        return self.block if self.op is None else self.op.block


@dataclasses.dataclass(slots=True, eq=False)
class Op:
    name: str
    operands: list[Value]
    results: list[Value]
    regions: list[Region]
    successors: list[Block]
    block: Block
    position: int  # in the block
    location: Location
    attribute_text: str
    _attributes: dict[str, Any] | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        if self._attributes is None:
            self._attributes = parse_attributes(self.attribute_text)
        return self._attributes

    def segments(self) -> list[list[Value]]:
        """The operands, split as `operandSegmentSizes` says."""
        groups, first = [], 0
        for size in self.attributes["operandSegmentSizes"]:
            groups.append(self.operands[first : first + size])
            first += size
        return groups


@dataclasses.dataclass(slots=True, eq=False)
class Block:
    region: Region
    arguments: list[Value] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)

    @property
    def terminator(self) -> Op:
        return self.ops[-1]


@dataclasses.dataclass(slots=True, eq=False)
class Region:
    parent: Op | None
    blocks: list[Block] = dataclasses.field(default_factory=list)

    def walk(self) -> Iterator[Op]:
        for block in self.blocks:
            for op in block.ops:
                yield op
                for region in op.regions:
                    yield from region.walk()


@dataclasses.dataclass(slots=True, eq=False)
class Function:
    name: str
    body: Region
    argument_attributes: list[dict[str, Any]]
    public: bool
    location: Location


@dataclasses.dataclass(slots=True, eq=False)
class Module:
    functions: dict[str, Function]

    @property
    def kernel(self) -> Function:
        return next(function for function in self.functions.values() if function.public)


def generic_text(module: Any) -> str:
    """The module in generic form, with locations.

    MLIR prints the generic form of a module that fails verification, so an attribute of the wrong type is set. That is
    silent, quick, and the same in every Triton version that was tried (3.6 to 3.9)."""
    from triton._C.libtriton import ir

    module.set_attr("llvm.data_layout", ir.builder(module.context).get_int32_attr(1))
    return str(module)


_POINTER = re.compile(r"!tt\.ptr<(.*?)(?:, \d+)?>$")


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


# Attributes ----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<number>-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d+(?:[eE][-+]?\d+)?)?))(?![\w])
  | (?P<word>[#!@]?[\w.$]+)
  | (?P<mark>->|[<>{}\[\](),:=?*-])
    )""",
    re.VERBOSE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Dense:
    """A constant tensor: the elements as written, or one for all."""

    splat: bool
    values: tuple[Any, ...]


class _Attributes:
    """Recursive descent over the tokens of an attribute dictionary. What is not needed stays text."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                if not text[position:].strip():
                    break
                raise ValueError(f"attributes {text!r} of TTIR: cannot read {text[position : position + 20]!r}")
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            position = match.end()
        self.tokens.append(("end", ""))
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][1]

    def take(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, text: str) -> bool:
        if self.peek() == text and self.tokens[self.at][0] != "string":
            self.at += 1
            return True
        return False

    def dictionary(self, end: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while self.tokens[self.at][0] != "end" and not self.accept(end):
            _, name = self.take()
            result[name.strip('"')] = self.value() if self.accept("=") else True
            self.accept(",")
        return result

    def skip_type(self) -> None:
        depth = 0
        while self.tokens[self.at][0] != "end":
            token = self.peek()
            if depth == 0 and token in (",", "}", "]", ">", ")"):
                return
            if token in "<([{":
                depth += 1
            elif token in ")]}>":
                depth -= 1
            self.at += 1

    def value(self) -> Any:
        kind, text = self.take()
        result: Any = text
        if kind == "string":
            result = unescape(text[1:-1])
        elif kind == "number":
            result = number(text)
        elif text == "[":
            items = []
            while not self.accept("]"):
                items.append(self.value())
                self.accept(",")
            result = items
        elif text == "{":
            result = self.dictionary("}")
        elif text == "(":
            depth = 1
            while depth:
                _, token = self.take()
                depth += {"(": 1, ")": -1}.get(token, 0)
            if self.accept("->"):
                self.skip_type()
        elif text in ("true", "false"):
            result = text == "true"
        elif text == "array":
            self.take()
            self.take()  # the element type
            items = []
            self.accept(":")
            while not self.accept(">"):
                items.append(self.value())
                self.accept(",")
            result = items
        elif text == "dense":
            self.take()
            if self.accept(">"):
                result = Dense(False, ())
            else:
                value = self.value()
                self.accept(">")
                flat = tuple(_flatten(value))
                result = Dense(not isinstance(value, list), flat)
        elif self.peek() == "<":  # a dialect's attribute, #arith.fastmath<none>, or a type
            first = self.at
            depth = 0
            while True:
                _, token = self.take()
                depth += {"<": 1, ">": -1}.get(token, 0)
                if depth == 0:
                    break
            result = text + "".join(token for _, token in self.tokens[first : self.at])
        if self.accept(":"):
            self.skip_type()
        return result


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


def unescape(text: str) -> str:
    """MLIR writes unprintable characters of a string as a backslash and two hexadecimal digits."""
    raw = re.sub(
        rb'\\([0-9A-Fa-f]{2}|["\\nt])',
        lambda match: (
            bytes([int(match[1], 16)]) if len(match[1]) == 2 else {b"n": b"\n", b"t": b"\t"}.get(match[1], match[1])
        ),
        text.encode(),
    )
    return raw.decode(errors="replace")


@dataclasses.dataclass(frozen=True, slots=True)
class Bits:
    """A floating-point constant written as its bits."""

    value: int


def number(text: str) -> int | float | Bits:
    if "0x" in text:
        return Bits(int(text, 16))
    if "." in text or "e" in text:
        return float(text)
    return int(text)


def parse_attributes(text: str) -> dict[str, Any]:
    return _Attributes(text).dictionary("") if text else {}


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


def float_bits(value: int | float | Bits, element: str) -> int:
    """The bits of a floating-point constant that MLIR wrote for `element`."""
    if isinstance(value, Bits):
        return value.value
    if element == "f64":
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    if element == "f16":
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    single = int(struct.unpack("<I", struct.pack("<f", value))[0])
    if element == "f32":
        return single
    if element == "bf16":
        return (single + 0x7FFF + ((single >> 16) & 1)) >> 16
    raise ValueError(f"constant {value} of type {element}")
