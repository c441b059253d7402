"""Operands of LLVM instructions, and types, which are strings in LLVM's spelling (`i32`, `float`, `<16 x float>`).

A `Value` knows its type and, for integers, a few facts that decide whether an access is contiguous (Note [Lanes] in
lanes.py).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

from torch_mtia.triton.analyses.strips import power_of_two_divisor


class Value:
    """An operand of an instruction."""

    __slots__ = ("constant", "divisor", "nonnegative", "ref", "type")

    def __init__(
        self, ref: str, type: str, *, constant: int | None = None, divisor: int = 1, nonnegative: bool = False
    ) -> None:
        self.ref = ref
        self.type = type
        self.constant = constant  # of an integer scalar, where known
        self.divisor = divisor  # a power of two that divides it
        self.nonnegative = nonnegative

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


@functools.cache
def split_type(type: str) -> tuple[int, str]:
    """(lanes, element) of a type; 0 lanes for a scalar."""
    if type[0] != "<":
        return 0, type
    lanes, _, element = type[1:-1].partition(" x ")
    return int(lanes), element


@functools.cache
def vector_type(lanes: int, element: str) -> str:
    return f"<{lanes} x {element}>" if lanes else element


def lanes_of(value: Value) -> int:
    return split_type(value.type)[0]


def element_of(value: Value) -> str:
    return split_type(value.type)[1]


@functools.cache
def bits_of(element: str) -> int:
    return {"float": 32, "double": 64, "ptr": 64, "half": 16}.get(element) or int(element[1:])


def is_float(element: str) -> bool:
    return element in ("float", "double", "half")


def like(value: Value, element: str) -> str:
    return vector_type(lanes_of(value), element)


def float_literal(value: float, element: str) -> str:
    if element == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) < 3.5e38 else value
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    return f"0x{bits:016X}"


def integer(value: int, type: str) -> Value:
    """A constant, also splat over a vector."""
    lanes, element = split_type(type)
    width = int(element[1:])
    wrapped = value & ((1 << width) - 1)
    signed = wrapped - (1 << width) if width > 1 and wrapped >> (width - 1) else wrapped
    if lanes:
        return Value(f"splat ({element} {signed})", type)
    return Value(str(signed), type, constant=signed, divisor=power_of_two_divisor(signed), nonnegative=signed >= 0)


def floating(value: float, type: str) -> Value:
    lanes, element = split_type(type)
    literal = float_literal(value, element)
    return Value(f"splat ({element} {literal})" if lanes else literal, type)


def floating_bits(bits: int, type: str) -> Value:
    """A constant of type float or double, by its bits."""
    lanes, element = split_type(type)
    if element == "float":
        sign, exponent, mantissa = bits >> 31, (bits >> 23) & 0xFF, bits & 0x7FFFFF
        if exponent == 0xFF:
            bits = sign << 63 | 0x7FF << 52 | mantissa << 29
        else:
            bits = struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0]))[0]
    literal = f"0x{bits:016X}"
    return Value(f"splat ({element} {literal})" if lanes else literal, type)


def constant_vector(values: Sequence[int], element: str) -> Value:
    return Value("<" + ", ".join(f"{element} {value}" for value in values) + ">", vector_type(len(values), element))


def floating_vector(values: Sequence[float], element: str) -> Value:
    listed = ", ".join(f"{element} {float_literal(value, element)}" for value in values)
    return Value(f"<{listed}>", vector_type(len(values), element))


def iota(lanes: int, element: str) -> Value:
    return constant_vector(range(lanes), element)


@functools.cache
def suffix(type: str) -> str:
    """How an overloaded intrinsic's name spells a type."""
    lanes, element = split_type(type)
    short = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(element, element)
    return f"v{lanes}{short}" if lanes else short


def undefined(type: str) -> Value:
    return Value("poison", type)


def zero(type: str) -> Value:
    _, element = split_type(type)
    return floating(0.0, type) if is_float(element) else integer(0, type)
