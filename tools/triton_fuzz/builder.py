"""A program under construction: its text, the values in scope, and the memory it may touch.

Note [Regions]
Each program of the grid owns one region of every buffer, `region` elements from program_id * region on, and touches
nothing else but through atomics. So programs of a grid do not race.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator

from tools.triton_fuzz.program import Buffer, Parameter, Program, Scalar
from tools.triton_fuzz.values import BF16, INT32, NUMBERS, DType, Shape, Value, is_exact, numel

ELEMENTS_BOUND = 6  # of floating-point buffers at the start


@dataclasses.dataclass
class Memory:
    """What the elements of a buffer are known to be, now."""

    dtype: DType
    bound: int
    quantum: int = 0


@dataclasses.dataclass(frozen=True)
class Pointer:
    """A buffer that the program loads from and stores to."""

    name: str
    memory: Memory


class Builder:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.tile: Shape = self.random.choice(
            (
                (1,),
                (4,),
                (16,),
                (32,),
                (64,),
                (128,),
                (256,),
                (2, 8),
                (8, 4),
                (16, 16),
                (4, 32),
                (64, 2),
                (2, 4, 8),
                (8, 2, 4),
                (4, 4, 4),
            )
        )
        self.region = 4 * max(numel(self.tile), 4)
        self.grid = self.random.choice((1, 1, 2, 3))
        self.pointers: list[Pointer] = []
        self._buffers: list[Buffer] = []
        self._parameters: list[Parameter] = []
        self._lines: list[str] = []
        self._depth = 1
        self._scopes: list[list[Value]] = [[]]
        self._names = 0
        self.features: set[str] = set()
        self.tastes: dict[str, int] = {}  # of statements, see table.py

    # Text ---------------------------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def name(self, prefix: str = "v") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def define(self, expression: str, shape: Shape, dtype: DType, bound: int, quantum: int = 0) -> Value:
        """A new value, in scope from here on."""
        value = Value(self.name(), shape, dtype, bound, quantum)
        self.emit(f"{value.name} = {expression}")
        self._scopes[-1].append(value)
        return value

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """An indented block. What it defines goes out of scope with it."""
        self.emit(head)
        self._depth += 1
        self._scopes.append([])
        yield
        self._scopes.pop()
        self._depth -= 1

    def add_to_scope(self, value: Value) -> None:
        self._scopes[-1].append(value)

    @property
    def depth(self) -> int:
        return self._depth - 1

    # Values -------------------------------------------------------------------------------------------------------

    def values(self) -> list[Value]:
        return [value for scope in self._scopes for value in scope]

    def pick(self, condition: Callable[[Value], bool]) -> Value | None:
        """A value for which the condition holds, recent ones rather than old ones."""
        found = [value for value in self.values() if condition(value)]
        if not found:
            return None
        return self.random.choice(found[-6:] if self.random.random() < 0.7 else found)

    def cast(self, value: Value, dtype: DType) -> str:
        if value.dtype == dtype:
            return value.name
        # Other conversions of bfloat16 are wrong in the interpreter.
        via = ".to(tl.float32)" if BF16 in (value.dtype, dtype) else ""
        return f"{value.name}{via}.to(tl.{dtype.name})"

    def constant(self, dtype: DType) -> Value:
        """A number of this type, as an expression."""
        low = -4 if dtype.signed else 0
        number = self.random.randint(low, 5)
        text = f"tl.full((), {number}, tl.{dtype.name})"
        if dtype == BF16:  # the interpreter has no constants of it
            text = f"tl.full((), {number}, tl.float32).to(tl.bfloat16)"
        return Value(text, (), dtype, max(abs(number), 1))

    def operand(self, dtype: DType, shape: Shape) -> Value:
        """Of this type, and of a shape that broadcasts to `shape`; the name is an expression."""
        value = self.pick(lambda value: broadcasts(value.shape, shape) and converts(value, dtype))
        if value is None or self.random.random() < 0.1:
            return self.constant(dtype)
        bound = min(value.bound, dtype.limit) if not dtype.floating else value.bound
        quantum = max(value.quantum, 0) if not dtype.floating else value.quantum
        if not dtype.floating and value.bound > dtype.limit:
            bound = dtype.limit
        if not dtype.floating and (not dtype.signed or not value.dtype.signed) and dtype != value.dtype:
            bound = dtype.limit  # a negative number wraps
        return Value(self.cast(value, dtype), value.shape, dtype, bound, quantum)

    def condition(self, shape: Shape) -> str:
        """A comparison of integers whose shape broadcasts to `shape`."""
        value = self.pick(lambda value: broadcasts(value.shape, shape) and not value.dtype.floating)
        assert value is not None
        dtype = INT32 if value.dtype.bits == 1 else value.dtype
        comparison = self.random.choice(("<", "<=", ">", ">=", "==", "!="))
        return f"({self.cast(value, dtype)} {comparison} {self.random.randint(0, 3)})"

    def along(self, axis: int) -> str:
        """The numbers of the elements along an axis of the tile, in a shape that broadcasts to it."""
        numbers = f"tl.arange(0, {self.tile[axis]})"
        if len(self.tile) == 1:
            return numbers
        return f"{numbers}[{', '.join(':' if d == axis else 'None' for d in range(len(self.tile)))}]"

    # Memory -------------------------------------------------------------------------------------------------------

    def parameter(self, value: Scalar, *, constant: bool = False) -> str:
        """A parameter that is a number or None, with or without a default, which may be left to the kernel."""
        name = f"{'N' if constant else 'n'}{len(self._parameters)}"
        default, left_out = "", False
        if self.random.random() < 0.3:
            left_out = self.random.random() < 0.5
            default = str(value if left_out else self.random.choice((0, 1, 7)))
        self._parameters.append(Parameter(name, value, constant, default, left_out))
        return name

    def scalar(self, value: int) -> str:
        """A number that the kernel is called with. Triton compiles for what it is: 1, a multiple of 16, or another."""
        return self.parameter(value)

    def buffer(self, dtype: DType, tolerance: float = 0.0) -> Pointer:
        """A new buffer, or one that shares the memory of another of the type."""
        name = f"p{len(self._buffers)}"
        same = [pointer for pointer in self.pointers if pointer.memory.dtype == dtype]
        size = self.region * (self.grid + 1)
        bound = ELEMENTS_BOUND if dtype.floating else min(dtype.limit, 2**40)
        if same and not tolerance and self.random.random() < 0.4:
            other = self.random.choice(same)
            owner = next(buffer for buffer in self._buffers if buffer.name == other.name)
            offset = owner.offset
            if self.grid == 1 and owner.aliases is None:  # else its regions would overlap those of other programs
                offset = self.random.choice((0, 1, 2, 3, 4, 5, 16, numel(self.tile)))
            self._buffers.append(
                dataclasses.replace(owner, name=name, aliases=owner.aliases or owner.name, offset=offset)
            )
            pointer = Pointer(name, other.memory)
            self.features.add("alias, shifted" if offset != owner.offset else "alias")
        else:
            # Of one sign, the extreme of few elements is not that of many, nor what another operand is.
            lowest, highest = self.random.choice(((-bound, bound), (-bound, bound), (-bound, 0), (1, bound)))
            if not dtype.signed or bound < 4:
                lowest, highest = 0, bound
            self._buffers.append(Buffer(name, dtype.torch_name, size, lowest, highest, tolerance))
            pointer = Pointer(name, Memory(dtype, bound))
        if not tolerance:
            self.pointers.append(pointer)
        return pointer

    def atomics(self, dtype: DType, size: int) -> str:
        """A buffer that all programs share and only touch with one kind of atomic operation."""
        name = f"p{len(self._buffers)}"
        self._buffers.append(Buffer(name, dtype.torch_name, size, -100 if dtype.signed else 0, 100))
        return name

    def optional_pointer(self, dtype: DType) -> Pointer:
        """A parameter whose argument is a buffer or None."""
        if self.random.random() < 0.5:
            return Pointer(self.parameter(None), Memory(dtype, ELEMENTS_BOUND))
        name = self.name("q")
        size = self.region * (self.grid + 1)
        self._buffers.append(Buffer(name, dtype.torch_name, size, -ELEMENTS_BOUND, ELEMENTS_BOUND))
        return Pointer(name, Memory(dtype, ELEMENTS_BOUND))

    def program(self) -> Program:
        parameters = tuple(self._called_parameters())
        launched_again = self.random.random() < 0.1
        if launched_again:
            self.features.add("launched directly")
        self.features.add(f"{len(self.tile)} dimensions")
        return Program(
            self.seed,
            tuple(self._lines),
            tuple(self._buffers),
            parameters,
            self.grid,
            launched_again,
            frozenset(self.features),
        )

    def _called_parameters(self) -> Iterator[Parameter]:
        """All parameters in an order that Python takes, and how the arguments are passed."""
        parameters = [*(Parameter(buffer.name) for buffer in self._buffers), *self._parameters]
        if self.random.random() < 0.3:
            self.random.shuffle(parameters)
        parameters.sort(key=lambda parameter: parameter.default != "")
        names_from = self.random.choice((self.random.randint(0, len(parameters)), len(parameters), len(parameters)))
        for index, parameter in enumerate(parameters):
            if parameter.left_out:
                names_from = min(names_from, index)
                self.features.add("default left out")
            elif index >= names_from:
                self.features.add("argument by name")
            yield dataclasses.replace(parameter, by_name=index >= names_from and not parameter.left_out)


def broadcasts(shape: Shape, to: Shape) -> bool:
    if shape == () or shape == to:
        return True
    return len(shape) == len(to) and all(a in (1, b) for a, b in zip(shape, to, strict=True))


def converts(value: Value, dtype: DType) -> bool:
    """Whether a cast has a defined result, and to floating-point an exact one."""
    if dtype.floating:
        return is_exact(dtype, value.bound, value.quantum)
    if value.dtype.floating:
        return dtype.signed and value.bound < dtype.limit
    return True


def shape_text(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def tile_value(b: Builder, dtypes: tuple[DType, ...] = NUMBERS) -> Value | None:
    return b.pick(lambda value: value.shape == b.tile and value.dtype in dtypes)
