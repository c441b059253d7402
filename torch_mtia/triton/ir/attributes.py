"""Reads MLIR's attribute dictionaries: numbers, texts, lists, dense constants. What is not needed stays text."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator
from typing import Any

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
