"""A program of the fuzzer: the source of a kernel and its arguments, both from one seed."""

from __future__ import annotations

import dataclasses

import torch

HEADER = '"""Seed {seed}."""\n\nimport triton\nimport triton.language as tl\n'

COMBINE_FUNCTIONS = {
    "combine_xor": """
@triton.jit
def combine_xor(a, b):
    return a ^ b
""",
    "combine_add": """
@triton.jit
def combine_add(a, b):
    return a + b
""",
    "combine_max_of_pairs": """
@triton.jit
def combine_max_of_pairs(value_a, index_a, value_b, index_b):
    take = (value_a > value_b) | ((value_a == value_b) & (index_a < index_b))
    return tl.where(take, value_a, value_b), tl.where(take, index_a, index_b)
""",
}

KERNEL = """
@triton.jit
def kernel({parameters}):
{body}
"""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An argument that points to memory. `bound`: the largest absolute value it starts with."""

    name: str
    dtype: str  # of torch
    size: int
    bound: int
    tolerance: float = 0.0  # relative; 0: bit for bit
    aliases: str | None = None  # the buffer whose memory it shares,
    offset: int = 0  # from this element on


@dataclasses.dataclass(frozen=True)
class Program:
    seed: int
    source: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[tuple[str, int], ...]
    grid: int

    def tensors(self) -> dict[str, torch.Tensor]:
        """The buffers' contents at the start, on the CPU, without those that share another's memory."""
        generator = torch.Generator().manual_seed(self.seed)
        return {buffer.name: _fill(buffer, generator) for buffer in self.buffers if buffer.aliases is None}

    def arguments(self, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor | int]:
        """What the kernel is called with."""
        pointers = [tensors[buffer.aliases or buffer.name][buffer.offset :] for buffer in self.buffers]
        return [*pointers, *(value for _, value in self.scalars)]


def _fill(buffer: Buffer, generator: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, buffer.dtype)
    lowest = -buffer.bound if dtype.is_floating_point or dtype.is_signed else 0
    numbers = torch.randint(lowest, buffer.bound, (buffer.size,), generator=generator, dtype=torch.int64)
    return numbers.to(dtype)
