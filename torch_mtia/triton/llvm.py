"""Writes LLVM IR as text: instructions, loops and functions, of the values of llvm_value.py.

Text is several times quicker to make than the object trees of llvmlite.ir, and the kernels are small. Every function
here works on a scalar or, lane by lane, on a vector; `like` gives a scalar type the width of another value's type.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from torch_mtia.triton.analyses.strips import MAX_DIVISOR, NARROW, power_of_two_divisor
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.llvm_value import (
    Value,
    bits_of,
    element_of,
    floating,
    integer,
    like,
    suffix,
    vector_type,
)


@dataclasses.dataclass
class CarriedLoop:
    """A loop between `open_loop` and `close_loop`; `carried` are the values at the head of a round."""

    counter: Value
    carried: list[Value]
    head: str
    before: str
    start: list[tuple[Value, str]]
    end: int
    step: int
    slot: int = 0
    begin: int = 0
    limit: Value | None = None


class Builder:
    """Appends instructions to the function that is being written."""

    def __init__(self, features: frozenset[str], saturates_fp8: bool, guards: Mapping[Op, str]) -> None:
        self.features = features
        self.saturates_fp8 = saturates_fp8
        self.guards = guards  # Plan.guards
        self.lines: list[str] = []
        self.entry: list[str] = []  # stack slots
        self.counter = 0
        self.block = "entry"
        self.declarations: dict[str, str] = {}
        self.globals: list[str] = []
        self.functions: dict[str, str] = {}  # definitions, by name

    # Functions --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def function(
        self,
        name: str,
        result: str,
        parameters: Sequence[Value],
        attributes: str = "#0",
        linkage: str = "internal",
        noalias: Collection[Value] = (),
    ) -> Iterator[None]:
        """Writes what is emitted inside the `with` as the body of a function of this module. `noalias`: the parameters
        through which alone their memory is accessed."""
        saved = self.lines, self.entry, self.block
        self.lines, self.entry, self.block = [], [], "entry"
        yield
        listed = ", ".join(f"{value.type} {'noalias ' if value in noalias else ''}{value.ref}" for value in parameters)
        body = "\n".join(["entry:", *self.entry, *self.lines])
        self.functions[name] = f"define {linkage} {result} @{name}({listed}) {attributes} {{\n{body}\n}}\n"
        self.lines, self.entry, self.block = saved

    def name(self, stem: str = "v") -> str:
        self.counter += 1
        return f"%{stem}{self.counter}"

    def emit(self, text: str) -> None:
        self.lines.append("  " + text)

    def define(self, type: str, text: str) -> Value:
        self.counter += 1
        ref = f"%v{self.counter}"
        self.lines.append(f"  {ref} = {text}")
        return Value(ref, type)

    def declare(self, name: str, result: str, parameters: Sequence[str]) -> None:
        self.declarations[name] = f"declare {result} @{name}({', '.join(parameters)})"

    def intrinsic(self, name: str, result: str, *arguments: Value) -> Value:
        self.declare(name, result, [argument.type for argument in arguments])
        listed = ", ".join(map(str, arguments))
        if result == "void":
            self.emit(f"call void @{name}({listed})")
            return Value("undef", "void")
        return self.define(result, f"call {result} @{name}({listed})")

    def module_text(self, triple: str, layout: str) -> str:
        return "\n".join(
            [
                f'target datalayout = "{layout}"',
                f'target triple = "{triple}"',
                *self.globals,
                *self.declarations.values(),
                *self.functions.values(),
            ]
        )

    # Control flow -----------------------------------------------------------------------------------------------------

    def label(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        self.emit(f"br i1 {condition.ref}, label %{yes}, label %{no}")

    def phi(self, type: str, incoming: Sequence[tuple[Value, str]]) -> Value:
        listed = ", ".join(f"[ {value.ref}, %{label} ]" for value, label in incoming)
        return self.define(type, f"phi {type} {listed}")

    @contextlib.contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Runs the body of the `with` if `condition` is true."""
        yes, done = self.label("then"), self.label("endif")
        self.branch(condition, yes, done)
        self.start(yes)
        yield
        self.jump(done)
        self.start(done)

    @contextlib.contextmanager
    def loop(self, begin: int, end: int, step: int, limit: Value | None = None) -> Iterator[Value]:
        """A counted loop with constant bounds; without a branch where it runs once. It may end, after a first round,
        where the counter reaches `limit`."""
        type = "i32"
        if begin + step >= end:
            yield integer(begin, type)
            return
        head, exit_ = self.label("loop"), self.label("exit")
        before = self.block
        self.jump(head)
        self.start(head)
        counter, following = self.name("i"), self.name("n")
        slot = len(self.lines)
        self.lines.append("")
        divisor = min(power_of_two_divisor(begin), power_of_two_divisor(step))
        yield Value(counter, type, divisor=divisor, nonnegative=begin >= 0)
        self.emit(f"{following} = add nuw nsw {type} {counter}, {step}")
        last = f"icmp eq {type} {following}, {end}" if limit is None else f"icmp sge {type} {following}, {limit.ref}"
        done = self.define("i1", last)
        self.lines[slot] = f"  {counter} = phi {type} [ {begin}, %{before} ], [ {following}, %{self.block} ]"
        self.branch(done, exit_, head)
        self.start(exit_)

    def open_loop(
        self, begin: int, end: int, step: int, initial: Sequence[Value], limit: Value | None = None
    ) -> CarriedLoop:
        """A counted loop that carries values; runs at least once. `close_loop` ends it. See `loop` for the limit."""
        once = begin + step >= end
        if once:
            return CarriedLoop(integer(begin, "i32"), list(initial), "", "", [], end, step)
        head, before = self.label("carry"), self.block
        self.jump(head)
        self.start(head)
        counter = self.name("i")
        carried = [Value(self.name("c"), value.type) for value in initial]
        slot = len(self.lines)
        self.lines += [""] * (1 + len(carried))
        divisor = min(power_of_two_divisor(begin), power_of_two_divisor(step))
        start = [(value, before) for value in initial]
        loop = CarriedLoop(
            Value(counter, "i32", divisor=divisor, nonnegative=begin >= 0), carried, head, before, start, end, step
        )
        loop.slot, loop.begin, loop.limit = slot, begin, limit
        return loop

    def close_loop(self, loop: CarriedLoop, following: Sequence[Value]) -> list[Value]:
        """The carried values after the loop, `following` being those after one round."""
        if not loop.head:
            return list(following)
        counter = loop.counter.ref
        advanced = self.name("n")
        self.emit(f"{advanced} = add nuw nsw i32 {counter}, {loop.step}")
        limit = str(loop.end) if loop.limit is None else loop.limit.ref
        done = self.define("i1", f"icmp sge i32 {advanced}, {limit}")
        end = self.block
        self.lines[loop.slot] = f"  {counter} = phi i32 [ {loop.begin}, %{loop.before} ], [ {advanced}, %{end} ]"
        for number, (carried, (start, before), value) in enumerate(
            zip(loop.carried, loop.start, following, strict=True)
        ):
            self.lines[loop.slot + 1 + number] = (
                f"  {carried.ref} = phi {carried.type} [ {start.ref}, %{before} ], [ {value.ref}, %{end} ]"
            )
        exit_ = self.label("exit")
        self.branch(done, exit_, loop.head)
        self.start(exit_)
        return list(following)

    # Memory -----------------------------------------------------------------------------------------------------------

    def alloca(self, count: int, element: str) -> Value:
        ref = self.name("slot")
        self.entry.append(f"  {ref} = alloca [{count} x {element}], align 64")
        # Stores of vectors alone, not in the order of their addresses, LLVM 22's SROA merges into code that uses a
        # value before it is there. It does not merge with a store of one element, which vanishes.
        self.entry.append(f"  store {element} poison, ptr {ref}")
        return Value(ref, "ptr")

    def constant_array(self, values: Sequence[int], element: str) -> Value:
        """A table in read-only data."""
        name = f"@table{len(self.globals)}"
        listed = ", ".join(f"{element} {value}" for value in values)
        self.globals.append(f"{name} = private unnamed_addr constant [{len(values)} x {element}] [{listed}], align 64")
        return Value(name, "ptr")

    def string(self, text: bytes) -> Value:
        """A zero-terminated text in read-only data."""
        return self.constant_array([*text, 0], "i8")

    def load(self, type: str, address: Value, align: int) -> Value:
        return self.define(type, f"load {type}, ptr {address.ref}, align {align}")

    def store(self, value: Value, address: Value, align: int) -> None:
        self.emit(f"store {value}, ptr {address.ref}, align {align}")

    def prefetch(self, address: Value, level: int = 1) -> None:
        """Starts to fetch what will be read at an address, which need not be valid, into a level of the caches."""
        locality = integer(4 - level, "i32")
        self.intrinsic("llvm.prefetch.p0", "void", address, integer(0, "i32"), locality, integer(1, "i32"))

    def offset(self, pointer: Value, bytes_: Value | int) -> Value:
        if isinstance(bytes_, int):
            if bytes_ == 0:
                return pointer
            bytes_ = integer(bytes_, "i64")
        return self.define("ptr", f"getelementptr i8, ptr {pointer.ref}, {bytes_}")

    def element_address(self, pointer: Value, element: str, index: Value) -> Value:
        return self.define("ptr", f"getelementptr {element}, ptr {pointer.ref}, {index}")

    # Arithmetic -------------------------------------------------------------------------------------------------------

    def binary(self, name: str, left: Value, right: Value) -> Value:
        return self.define(left.type, f"{name} {left.type} {left.ref}, {right.ref}")

    def add(self, left: Value, right: Value) -> Value:
        if left.constant is not None and right.constant is not None:
            return integer(left.constant + right.constant, left.type)
        if right.constant == 0:
            return left
        if left.constant == 0:
            return right
        result = self.binary("add", left, right)
        result.divisor = min(left.divisor, right.divisor)
        result.nonnegative = left.nonnegative and right.nonnegative and left.type not in NARROW
        return result

    def sub(self, left: Value, right: Value) -> Value:
        if left.constant is not None and right.constant is not None:
            return integer(left.constant - right.constant, left.type)
        if right.constant == 0:
            return left
        result = self.binary("sub", left, right)
        result.divisor = min(left.divisor, right.divisor)
        return result

    def mul(self, left: Value, right: Value) -> Value:
        if left.constant is not None and right.constant is not None:
            return integer(left.constant * right.constant, left.type)
        if right.constant == 1:
            return left
        if left.constant == 1:
            return right
        result = self.binary("mul", left, right)
        result.divisor = min(left.divisor * right.divisor, MAX_DIVISOR)
        result.nonnegative = left.nonnegative and right.nonnegative and left.type not in NARROW
        return result

    def fdiv(self, left: Value, right: Value) -> Value:
        return self.binary("fdiv", left, right)

    def fneg(self, value: Value) -> Value:
        return self.define(value.type, f"fneg {value}")

    def icmp(self, predicate: str, left: Value, right: Value) -> Value:
        return self.define(like(left, "i1"), f"icmp {predicate} {left}, {right.ref}")

    def fcmp(self, predicate: str, left: Value, right: Value) -> Value:
        return self.define(like(left, "i1"), f"fcmp {predicate} {left}, {right.ref}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        result = self.define(yes.type, f"select {condition}, {yes}, {no}")
        result.divisor = min(yes.divisor, no.divisor)
        result.nonnegative = yes.nonnegative and no.nonnegative
        return result

    def cast(self, name: str, value: Value, element: str) -> Value:
        type = like(value, element)
        if type == value.type:
            return value
        result = self.define(type, f"{name} {value} to {type}")
        if name in ("sext", "zext", "trunc"):
            result.divisor = value.divisor
            result.nonnegative = value.nonnegative and name != "trunc"
        return result

    def sext(self, value: Value, element: str) -> Value:
        if value.constant is not None:
            return integer(value.constant, element)
        return self.cast("sext", value, element)

    def zext(self, value: Value, element: str) -> Value:
        if value.constant is not None:
            return integer(value.constant & ((1 << bits_of(value.type)) - 1), element)
        return self.cast("zext", value, element)

    def trunc(self, value: Value, element: str) -> Value:
        if value.constant is not None:
            return integer(value.constant, element)
        return self.cast("trunc", value, element)

    def bitcast(self, value: Value, element: str) -> Value:
        return self.cast("bitcast", value, element)

    def integer_like(self, number: int, value: Value) -> Value:
        return integer(number, value.type)

    def float_like(self, number: float, value: Value) -> Value:
        return floating(number, value.type)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x * y + z, rounded once where the machine can."""
        if "fma" not in self.features:
            return self.binary("fadd", self.binary("fmul", x, y), z)
        return self.intrinsic(f"llvm.fma.{suffix(x.type)}", x.type, x, y, z)

    def unary_intrinsic(self, name: str, value: Value) -> Value:
        return self.intrinsic(f"llvm.{name}.{suffix(value.type)}", value.type, value)

    def binary_intrinsic(self, name: str, left: Value, right: Value) -> Value:
        return self.intrinsic(f"llvm.{name}.{suffix(left.type)}", left.type, left, right)

    # Vectors ----------------------------------------------------------------------------------------------------------

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """The columns of a square matrix of as many vectors as each has lanes, a power of two."""
        result = list(rows)
        size = len(result)
        distance = 1
        while distance < size:
            low = [lane if not lane & distance else size + lane - distance for lane in range(size)]
            high = [lane + distance if not lane & distance else size + lane for lane in range(size)]
            for first in range(size):
                if not first & distance:
                    pair = result[first], result[first + distance]
                    result[first], result[first + distance] = self.shuffle(*pair, low), self.shuffle(*pair, high)
            distance *= 2
        return result

    def opaque(self, vector: Value) -> Value:
        """A vector that LLVM's passes know nothing about."""
        register = "v" if "sse" in self.features else "w"  # LLVM's names of vector registers
        return self.define(vector.type, f'call {vector.type} asm "", "={register},0"({vector})')

    def splat(self, value: Value, lanes: int) -> Value:
        if not lanes:
            return value
        type = vector_type(lanes, value.type)
        if value.ref[0] not in "%@":
            return Value(f"splat ({value})", type)
        one = self.define(type, f"insertelement {type} poison, {value}, i64 0")
        return self.define(type, f"shufflevector {one}, {type} poison, <{lanes} x i32> zeroinitializer")

    def extract(self, vector: Value, lane: int | Value) -> Value:
        index = f"i64 {lane}" if isinstance(lane, int) else str(lane)
        return self.define(element_of(vector), f"extractelement {vector}, {index}")

    def insert(self, vector: Value, value: Value, lane: int | Value) -> Value:
        index = f"i64 {lane}" if isinstance(lane, int) else str(lane)
        return self.define(vector.type, f"insertelement {vector}, {value}, {index}")

    def shuffle(self, left: Value, right: Value | None, lanes: Sequence[int]) -> Value:
        other = right.ref if right is not None else "poison"
        listed = ", ".join(f"i32 {lane}" for lane in lanes)
        type = vector_type(len(lanes), element_of(left))
        return self.define(type, f"shufflevector {left}, {left.type} {other}, <{len(lanes)} x i32> <{listed}>")


class Phi:
    """A phi node whose incoming values become known later; begins at the head of a block."""

    def __init__(self, b: Builder, type: str) -> None:
        self.b = b
        self.value = Value(b.name("p"), type)
        self.lines = b.lines
        self.slot = len(b.lines)
        b.lines.append("")
        self.incoming: list[tuple[Value, str]] = []

    def add(self, value: Value) -> None:
        """The value when control comes from the block that is being written."""
        self.incoming.append((value, self.b.block))

    def finish(self) -> None:
        listed = ", ".join(f"[ {value.ref}, %{label} ]" for value, label in self.incoming)
        self.lines[self.slot] = f"  {self.value.ref} = phi {self.value.type} {listed}"
