"""What a program is: its inputs, its statements, what it returns; and what it is called with."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch

CALLS = 3
LARGER = CALLS  # the number of one call more, of larger inputs
OFFSETS = (0, 1, 2, 3, 4, 7, 8, 16, 33)  # of inputs in the tensors that they are slices of, in elements


@dataclasses.dataclass(frozen=True)
class Input:
    """An argument. Its elements are whole numbers of at most `bound`; those of `special` also nan and infinities."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bound: int
    special: bool = False
    gradient: str = ""  # of "a leaf" or "no leaf"
    order: tuple[int, ...] = ()  # of the dimensions in memory, the outermost first
    padding: tuple[int, ...] = ()  # for each dimension, what it has more in memory
    expanded: tuple[int, ...] = ()  # dimensions with a stride of 0
    within: str = ""  # the input in whose storage it lies, shifted by `shift` elements
    shift: int = 0

    def stride(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        strides = [0] * len(shape)
        step = 1
        for dim in reversed(self.order):
            if dim not in self.expanded:
                strides[dim] = step
                step *= max(shape[dim], 1) + self.padding[dim]
        return tuple(strides)


def reach(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many elements of memory it extends over."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0


@dataclasses.dataclass
class Arguments:
    """Of one call: what is passed, whose gradients are asked for, and the tensors that the arguments are slices of."""

    tensors: list[torch.Tensor]
    leaves: list[torch.Tensor]
    bases: list[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Program:
    seed: int
    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    errors: dict[str, float]  # how far values of inputs and results may be off, after the program; 0: not at all
    training: bool
    features: tuple[str, ...]  # names of its statements

    @property
    def source(self) -> str:
        names = ", ".join(each.name for each in self.inputs)
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def program({names}):\n{body}    return ({''.join(f'{name}, ' for name in self.results)})\n"

    def description(self) -> str:
        """The source, and as comments what it is called with."""
        notes = []
        for each in self.inputs:
            defaults = {field.name: field.default for field in dataclasses.fields(each)}
            said = {name: getattr(each, name) for name in defaults}
            kept = [f"{name}={value}" for name, value in said.items() if value != defaults[name]]
            notes.append(f"# {', '.join(kept)}\n")
        return "".join(notes) + f"# {'forward and backward' if self.training else 'forward'}\n" + self.source

    def function(self) -> Callable[..., Any]:
        namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(self.source, f"<seed {self.seed}>", "exec"), namespace)
        function: Callable[..., Any] = namespace["program"]
        return function

    def arguments(self, call: int, device: str) -> Arguments:
        return arguments(self.seed, self.inputs, call, device)


def arguments(seed: int, inputs: tuple[Input, ...], call: int, device: str) -> Arguments:
    """What the call of this number passes: other data each time, at another address, at another offset."""
    choice = random.Random(f"{seed} {call}")
    generator = torch.Generator().manual_seed(choice.getrandbits(60))
    bases: dict[str, tuple[torch.Tensor, int]] = {}
    result = Arguments([], [], [])
    for each in inputs:
        shape = tuple(size + (call == LARGER and size > 1) for size in each.shape)
        stride = each.stride(shape)
        if each.within:
            base, offset = bases[each.within]
            offset += each.shift
        else:
            shared = any(other.within == each.name for other in inputs)
            offset, rest = (3, 1) if shared else (choice.choice(OFFSETS), choice.choice(OFFSETS))
            values = _fill(each, offset + reach(shape, stride) + rest, generator)
            base = values.to(device)
            bases[each.name] = base, offset
            result.bases.append(base)
        tensor = base.as_strided(shape, stride, offset)
        if each.gradient:
            tensor = tensor.detach().requires_grad_()
            result.leaves.append(tensor)
        if each.gradient == "no leaf":
            tensor = tensor.clone()
        result.tensors.append(tensor)
    return result


def _fill(each: Input, size: int, generator: torch.Generator) -> torch.Tensor:
    unsigned = each.dtype in (torch.uint8, torch.bool)
    low = 0 if unsigned else -each.bound
    numbers = torch.randint(low, each.bound + 1, (size,), generator=generator, dtype=torch.int64).to(each.dtype)
    if each.special:
        kinds = torch.randint(0, 12, (size,), generator=generator)
        for kind, value in enumerate((float("nan"), float("inf"), -float("inf"))):
            numbers[kinds == kind] = value
    return numbers
