"""A program of the fuzzer: the source of a kernel and what it is called with, both from one seed."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import torch

from tools.triton_fuzz.combine import FUNCTIONS

HEADER = '"""Seed {seed}."""\n\nimport triton\nimport triton.language as tl\n'
KERNEL = "\n@triton.jit\ndef kernel({parameters}):\n{body}\n"

Scalar: TypeAlias = "int | float | None"


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An argument that points to memory. It starts with random numbers from `lowest` on, below `highest`."""

    name: str
    dtype: str  # of torch
    size: int
    lowest: int
    highest: int
    tolerance: float = 0.0  # relative; 0: bit for bit
    aliases: str | None = None  # the buffer whose memory it shares,
    offset: int = 0  # from this element on


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Of the kernel. Its argument is the buffer of the name, or the value."""

    name: str
    value: Scalar = None
    constant: bool = False  # tl.constexpr
    default: str = ""  # its text; with one, the parameter comes behind those without
    left_out: bool = False  # of the call: the default is the value
    by_name: bool = False

    def __str__(self) -> str:
        annotation = ": tl.constexpr" if self.constant else ""
        return f"{self.name}{annotation}{f' = {self.default}' if self.default else ''}"


@dataclasses.dataclass(frozen=True)
class Program:
    seed: int
    lines: tuple[str, ...]  # of the kernel's body
    buffers: tuple[Buffer, ...]
    parameters: tuple[Parameter, ...]
    grid: int
    launched_again: bool = False  # by what the first launch returns
    features: frozenset[str] = frozenset()  # the classes of statements that it has

    @property
    def source(self) -> str:
        body = "\n".join(self.lines)
        functions = [function.source(name) for name, function in FUNCTIONS.items() if name in body]
        kernel = KERNEL.format(parameters=", ".join(map(str, self.parameters)), body=body)
        return "\n".join([HEADER.format(seed=self.seed), *functions, kernel])

    @property
    def call(self) -> str:
        """How the kernel is called, to be read."""
        buffers = {buffer.name: buffer for buffer in self.buffers}
        arguments = [
            f"{f'{parameter.name}=' if parameter.by_name else ''}"
            f"{_described(buffers[parameter.name]) if parameter.name in buffers else parameter.value}"
            for parameter in self.parameters
            if not parameter.left_out
        ]
        return f"kernel[({self.grid},)]({', '.join(arguments)})"

    def tensors(self) -> dict[str, torch.Tensor]:
        """The buffers' contents at the start, on the CPU, without those that share another's memory."""
        generator = torch.Generator().manual_seed(self.seed)
        return {buffer.name: _fill(buffer, generator) for buffer in self.buffers if buffer.aliases is None}

    def arguments(
        self, tensors: dict[str, torch.Tensor]
    ) -> tuple[list[torch.Tensor | Scalar], dict[str, torch.Tensor | Scalar]]:
        """What the kernel is called with, by position and by name."""
        values = self.values(tensors)
        passed = [parameter for parameter in self.parameters if not parameter.left_out]
        by_position = [values[parameter.name] for parameter in passed if not parameter.by_name]
        return by_position, {parameter.name: values[parameter.name] for parameter in passed if parameter.by_name}

    def values(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | Scalar]:
        """Of all parameters."""
        pointers = {buffer.name: tensors[buffer.aliases or buffer.name][buffer.offset :] for buffer in self.buffers}
        return {parameter.name: pointers.get(parameter.name, parameter.value) for parameter in self.parameters}


def _described(buffer: Buffer) -> str:
    if buffer.aliases is not None:
        return f"{buffer.aliases}[{buffer.offset}:]"
    return f"{buffer.dtype}[{buffer.size}]"


def _fill(buffer: Buffer, generator: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, buffer.dtype)
    numbers = torch.randint(buffer.lowest, buffer.highest, (buffer.size,), generator=generator, dtype=torch.int64)
    return numbers.to(dtype)
