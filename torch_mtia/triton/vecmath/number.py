"""Numbers with Python's operators, and the table of functions of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, Union

from torch_mtia.triton import abi
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import (
    Value,
    bits_of,
    element_of,
    floating,
    floating_vector,
    lanes_of,
    undefined,
    vector_type,
)

Operand = Union["Number", float]


class Number:
    """A value with Python's operators, to write formulas with. Nothing is contracted: `fma` is explicit."""

    __slots__ = ("b", "value")

    def __init__(self, b: Builder, value: Value) -> None:
        self.b = b
        self.value = value

    def lift(self, other: Operand) -> Value:
        return other.value if isinstance(other, Number) else floating(float(other), self.value.type)

    def constant(self, value: float) -> Number:
        return Number(self.b, floating(value, self.value.type))

    def __add__(self, other: Operand) -> Number:
        return Number(self.b, self.b.binary("fadd", self.value, self.lift(other)))

    def __radd__(self, other: float) -> Number:
        return self + other

    def __sub__(self, other: Operand) -> Number:
        return Number(self.b, self.b.binary("fsub", self.value, self.lift(other)))

    def __rsub__(self, other: float) -> Number:
        return Number(self.b, self.b.binary("fsub", self.lift(other), self.value))

    def __mul__(self, other: Operand) -> Number:
        return Number(self.b, self.b.binary("fmul", self.value, self.lift(other)))

    def __rmul__(self, other: float) -> Number:
        return self * other

    def __truediv__(self, other: Operand) -> Number:
        return Number(self.b, self.b.binary("fdiv", self.value, self.lift(other)))

    def __rtruediv__(self, other: float) -> Number:
        return Number(self.b, self.b.binary("fdiv", self.lift(other), self.value))

    def __neg__(self) -> Number:
        return Number(self.b, self.b.fneg(self.value))

    def __abs__(self) -> Number:
        return Number(self.b, self.b.unary_intrinsic("fabs", self.value))

    def fma(self, factor: Operand, addend: Operand) -> Number:
        return Number(self.b, self.b.fma(self.value, self.lift(factor), self.lift(addend)))

    def sqrt(self) -> Number:
        return Number(self.b, self.b.unary_intrinsic("sqrt", self.value))

    def sign_of(self, other: Number) -> Number:
        """The magnitude of this with the sign of `other`."""
        return Number(self.b, self.b.binary_intrinsic("copysign", self.value, other.value))

    def compare(self, predicate: str, other: Operand) -> Value:
        return self.b.fcmp(predicate, self.value, self.lift(other))

    def where(self, condition: Value, other: Operand) -> Number:
        """This where `condition` holds, else `other`."""
        return Number(self.b, self.b.select(condition, self.value, self.lift(other)))

    def clamp(self, low: float, high: float) -> Number:
        """A NaN stays."""
        raised = self.constant(low).where(self.compare("olt", low), self)
        return raised.constant(high).where(raised.compare("ogt", high), raised)

    def bits(self) -> Value:
        return self.b.bitcast(self.value, f"i{bits_of(element_of(self.value))}")

    def polynomial(self, coefficients: Sequence[float]) -> Number:
        """sum of coefficients[i] * self**i"""
        result = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = result.fma(self, coefficient)
        return result

    def looked_up(self, table: Sequence[float]) -> Number:
        """What the last five bits of each lane choose of 32 numbers; of sixteen f32 with AVX-512."""
        type = self.value.type
        low, high = (floating_vector(table[first : first + 16], "float") for first in (0, 16))
        return Number(self.b, self.b.intrinsic("llvm.x86.avx512.vpermi2var.ps.512", type, low, self.bits(), high))

    def cast(self, element: str) -> Number:
        if element_of(self.value) == element:
            return self
        return Number(self.b, self.b.cast("fpext" if element == "double" else "fptrunc", self.value, element))

    @property
    def single(self) -> bool:
        return element_of(self.value) == "float"


def from_bits(b: Builder, bits: Value, element: str) -> Number:
    return Number(b, b.bitcast(bits, element))


Function = Callable[..., Number]
FUNCTIONS: dict[str, Function] = {}
F = TypeVar("F", bound="Callable[..., Number]")


def function(name: str) -> Callable[[F], F]:
    """Registers a function of Numbers that works for f32 and f64."""

    def register(implementation: F) -> F:
        FUNCTIONS[name] = implementation
        return implementation

    return register


def through_double(name: str) -> Callable[[F], F]:
    """Registers a function that computes in f64, for both."""

    def register(implementation: F) -> F:
        def widened(*operands: Number) -> Number:
            element = element_of(operands[0].value)
            return implementation(*(operand.cast("double") for operand in operands)).cast(element)

        FUNCTIONS[name] = widened
        return implementation

    return register


def call(b: Builder, name: str, *operands: Value) -> Value:
    return FUNCTIONS[name](*(Number(b, operand) for operand in operands)).value


def rare(b: Builder, name: str, operands: Sequence[Value]) -> Value:
    """A function of the driver's table, of doubles (and an i32), lane by lane: what is long and rare."""
    # The table reaches kernels through their context parameter.
    table = b.load("ptr", b.offset(Value("%context", "ptr"), abi.KERNEL_CONTEXT_RARE_FUNCTIONS), 8)
    target = b.load("ptr", b.offset(table, 8 * abi.RARE_FUNCTIONS[name]), 8)

    def one(values: Sequence[Value]) -> Value:
        return b.define("double", f"call double {target.ref}({', '.join(map(str, values))})")

    lanes = lanes_of(operands[-1])
    if not lanes:
        return one(operands)
    result = undefined(vector_type(lanes, "double"))
    for lane in range(lanes):
        result = b.insert(result, one([b.extract(operand, lane) for operand in operands]), lane)
    return result
