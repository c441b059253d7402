"""A program under construction: its lines, executed on the CPU as they are written, and the values in scope.

Note [Errors]
A value has a bound on its elements and one on its error. Whole numbers below what their type holds exactly have none,
whatever the order in which they are added: they are compared bit for bit. Where a function rounds, its result has an
error, which later operations carry on. A value with an error goes through continuous functions only, not into
comparisons, sorting, conversions to integers.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

import torch

from tools.compile_fuzz.program import Input, Program, arguments, reach

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
INTEGERS = (*SIGNED, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
MAX_ELEMENTS = 20_000  # of what is computed
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)


def limit(dtype: torch.dtype) -> int:
    """The largest number up to which whole numbers are exact."""
    if dtype == torch.bool:
        return 1
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps)
    return torch.iinfo(dtype).max


@dataclasses.dataclass
class Value:
    name: str
    tensor: torch.Tensor  # as it is in the execution on the CPU
    bound: float
    error: float = 0.0
    special: bool = False
    fresh: bool = False  # input data: no negative zeros

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dim(self) -> int:
        return self.tensor.dim()

    @property
    def floating(self) -> bool:
        return self.dtype.is_floating_point

    @property
    def storage(self) -> int:
        address: int = self.tensor.untyped_storage()._cdata
        return address

    def is_exact(self) -> bool:
        return self.error == 0 and (not self.floating or self.bound <= limit(self.dtype))


class Refused(Exception):
    """What was written cannot be part of a program."""


def anything(_value: Value) -> bool:
    return True


class Builder:
    def __init__(self, seed: int, attempt: int) -> None:
        self.seed = seed
        self.random = random.Random(f"{seed} {attempt}")
        self.training = self.random.random() < 0.5
        self.inputs: list[Input] = []
        self.values: list[Value] = []
        self.lines: list[str] = []
        self.features: list[str] = []
        self._namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        self._make_inputs()
        given = arguments(seed, tuple(self.inputs), 0, "cpu")
        self._kept = given  # storages are told apart by their addresses
        for each, tensor in zip(self.inputs, given.tensors, strict=True):
            self._namespace[each.name] = tensor
            self.values.append(Value(each.name, tensor, each.bound, 0.0, each.special, fresh=not each.special))

    # Inputs -------------------------------------------------------------------------------------------------------

    def _make_inputs(self) -> None:
        main = self.shape()
        special = not self.training and self.random.random() < 0.25
        for number in range(self.random.randint(1, 4)):
            kind = self.random.random()
            shape = main if kind < 0.6 else self.shape() if kind < 0.8 else broadcastable(self.random, main)
            dtype = torch.float32 if number == 0 and self.training else self.random.choice(DTYPES)
            bound = 1 if dtype == torch.bool else self.random.choice((1, 3, 6, 6))
            if not dtype.is_floating_point and dtype != torch.bool and self.random.random() < 0.3:
                bound = limit(dtype) - 1 if dtype != torch.int64 else 2**40
            order = list(range(len(shape)))
            if self.random.random() < 0.3:
                self.random.shuffle(order)
            padding = [self.random.choice((0, 0, 0, 1, 3)) if self.random.random() < 0.5 else 0 for _ in shape]
            gradient = ""
            if self.training and dtype.is_floating_point and (number == 0 or self.random.random() < 0.6):
                gradient = "no leaf" if self.random.random() < 0.4 else "a leaf"
            expanded: tuple[int, ...] = ()
            if not gradient and shape and self.random.random() < 0.06:
                expanded = (self.random.randrange(len(shape)),)
            self.inputs.append(
                Input(
                    f"a{number}",
                    shape,
                    dtype,
                    bound,
                    special and dtype.is_floating_point,
                    gradient,
                    tuple(order),
                    tuple(padding),
                    expanded,
                )
            )
        if self.random.random() < 0.12:
            self._alias_input()

    def _alias_input(self) -> None:
        """Two inputs in one storage, overlapping or not."""
        whole = [each for each in self.inputs if not each.gradient and not each.expanded and 0 not in each.shape]
        if not whole:
            return
        owner = self.random.choice(whole)
        room = reach(owner.shape, owner.stride(owner.shape))
        size = self.random.randint(1, room)
        self.inputs.append(
            Input(
                f"a{len(self.inputs)}",
                (size,),
                owner.dtype,
                owner.bound,
                owner.special,
                order=(0,),
                padding=(0,),
                within=owner.name,
                shift=self.random.randint(0, room - size),
            )
        )

    def shape(self) -> tuple[int, ...]:
        chance = self.random.random()
        if chance < 0.03:
            return (self.random.choice((5000, 9001)),)
        if chance < 0.05:
            return self.random.choice(((130, 65), (3, 4100), (2050, 3)))
        while True:
            shape = tuple(self.random.choice(SIZES) for _ in range(self.random.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))))
            if shape and self.random.random() < 0.04:
                place = self.random.randrange(len(shape))
                shape = (*shape[:place], 0, *shape[place + 1 :])
            if torch.Size(shape).numel() <= 1200:
                return shape

    # Values -------------------------------------------------------------------------------------------------------

    def pick(self, condition: Callable[[Value], bool] = anything) -> Value | None:
        """A value for which the condition holds, recent ones rather than old ones."""
        found = [value for value in self.values if condition(value)]
        if not found:
            return None
        return self.random.choice(found[-4:] if self.random.random() < 0.6 else found)

    def exact(self, condition: Callable[[Value], bool] = anything) -> Value | None:
        return self.pick(lambda value: value.is_exact() and condition(value))

    def other(self, like: Value, condition: Callable[[Value], bool] = anything) -> Value | None:
        """A second operand, of a shape that broadcasts with that of the first."""
        return self.pick(lambda value: broadcasts(value.shape, like.shape) and condition(value))

    def number(self) -> int:
        return self.random.choice((-3, -2, -1, 0, 1, 2, 3))

    def axis(self, value: Value) -> int:
        axis = self.random.randrange(value.dim)
        return axis - value.dim if self.random.random() < 0.3 else axis

    def size(self, value: Value, axis: int) -> int:
        return value.shape[axis]

    def run(self, line: str) -> None:
        """Executes a line and adds it. Raises what it raises."""
        exec(line, self._namespace)
        self.lines.append(line)

    def define(
        self,
        expression: str,
        operands: tuple[Value, ...],
        bound: float,
        error: float = 0.0,
        *,
        rounds: bool = False,
        fresh: bool = False,
    ) -> Value | None:
        """A new value; None, and nothing is written, if PyTorch refuses it or it is too large.

        Args:
            bound: of its elements, if they did not wrap.
            error: what the errors of the operands make of it.
            rounds: it is inexact, even of whole numbers.
        """
        try:
            tensor = eval(expression, self._namespace)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return None
        if not isinstance(tensor, torch.Tensor) or tensor.numel() > MAX_ELEMENTS or tensor.dtype not in DTYPES:
            return None
        value = Value(f"v{len(self.lines)}", tensor, bound, 0.0, any(each.special for each in operands), fresh)
        if not self._settle(value, error, rounds):
            return None
        self.lines.append(f"{value.name} = {expression}")
        self._namespace[value.name] = tensor
        self.values.append(value)
        return value

    def _settle(self, value: Value, error: float, rounds: bool) -> bool:
        """Bounds and error of a new value; false if they are beyond its type."""
        if value.floating:
            if value.bound > min(1e12, torch.finfo(value.dtype).max / 8):
                return False
            if error or rounds or value.bound > limit(value.dtype):
                value.error = error + 8 * torch.finfo(value.dtype).eps * value.bound
        else:
            value.special = False
            if error:
                return False
            if value.bound > limit(value.dtype):
                value.bound = limit(value.dtype) + 1
            if value.dtype == torch.uint8:
                value.bound = 255  # numbers below 0 wrap
        tensor = value.tensor.detach()
        if value.floating:
            tensor = tensor[tensor.isfinite()]
        if tensor.numel() and tensor.double().abs().max() > value.bound + value.error:
            raise AssertionError(f"{self.lines[-3:]}: {tensor.double().abs().max()} > {value.bound}")
        return True

    def mutate(
        self, target: Value, line: str, operands: tuple[Value, ...], bound: float, error: float = 0.0
    ) -> Value | None:
        """A line that writes into `target`. What else lies in its storage has its elements from there on."""
        shared = [value for value in self.values if value.storage == target.storage]
        if not target.floating and any(value.floating for value in shared):
            return None
        written = Value(target.name, target.tensor, bound, 0.0, any(each.special for each in (*operands, target)))
        try:
            exec(line, self._namespace)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return None
        if not self._settle(written, error, rounds=False) or (written.bound > 1e6 and written.floating):
            raise Refused(line)
        self.lines.append(line)
        for value in shared:
            if value.floating != target.floating or value.dtype.itemsize != target.dtype.itemsize:
                self.values.remove(value)
                continue
            value.bound = max(value.bound, written.bound)
            value.error = max(value.error, written.error)
            value.special = value.special or written.special
            value.fresh = False
        return target

    # The result ---------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        used = collections.Counter(re.findall(r"\bv\d+", "\n".join(self.lines)))
        results = [value for value in self.values if value.name.startswith("v") and used[value.name] == 1][-6:]
        for _ in range(self.random.choice((0, 0, 1, 2))):
            results.append(self.random.choice(self.values))
        by_storage = {value.storage: value.error for value in self.values if value.name.startswith("a")}
        errors = {value.name: value.error for value in self.values if value in results}
        for each in self.inputs:
            errors[each.name] = by_storage.get(self._namespace[each.name].untyped_storage()._cdata, 0.0)
        return Program(
            self.seed,
            tuple(self.inputs),
            tuple(self.lines),
            tuple(value.name for value in results),
            errors,
            self.training,
            tuple(self.features),
        )


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def broadcastable(choice: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one."""
    kept = shape[choice.randint(0, len(shape)) :]
    return tuple(size if choice.random() < 0.6 else 1 for size in kept)
