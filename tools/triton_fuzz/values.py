"""The values of a program under construction, and what is known about them: enough for results to be exact."""

from __future__ import annotations

import dataclasses

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class DType:
    """A Triton type of numbers."""

    name: str  # in triton.language
    bits: int
    precision: int  # bits of an exact integer
    limit: int  # of absolute values that results may have
    floating: bool = False
    signed: bool = True

    @property
    def torch_name(self) -> str:
        return {"int1": "bool"}.get(self.name, self.name)


BOOL = DType("int1", 1, 1, 1, signed=False)
SIGNED = tuple(DType(f"int{bits}", bits, bits - 1, 2 ** (bits - 1)) for bits in (8, 16, 32, 64))
UNSIGNED = tuple(DType(f"uint{bits}", bits, bits, 2**bits - 1, signed=False) for bits in (8, 16, 32, 64))
INT8, INT16, INT32, INT64 = SIGNED
UINT8, UINT16, UINT32, UINT64 = UNSIGNED
FP16 = DType("float16", 16, 11, 2**15, floating=True)
BF16 = DType("bfloat16", 16, 8, 2**60, floating=True)
FP32 = DType("float32", 32, 24, 2**60, floating=True)
FP64 = DType("float64", 64, 53, 2**60, floating=True)
FLOATS = (FP16, BF16, FP32, FP64)
INTEGERS = SIGNED + UNSIGNED
NUMBERS = INTEGERS + FLOATS
STORED = NUMBERS + 5 * (INT32,) + 3 * (FP32,)  # types of buffers: those that statements share come more often
# The interpreter does not compute in bfloat16: it is only loaded, stored, moved and converted.
COMPUTED_FLOATS = (FP16, FP32, FP64)
COMPUTED = INTEGERS + COMPUTED_FLOATS

MIN_QUANTUM = -8


@dataclasses.dataclass(frozen=True)
class Value:
    """A name in the program. Its elements are multiples of 2**quantum with absolute values up to `bound`."""

    name: str
    shape: Shape
    dtype: DType
    bound: int
    quantum: int = 0

    def fits(self, dtype: DType) -> bool:
        return is_exact(dtype, self.bound, self.quantum)


def is_exact(dtype: DType, bound: int, quantum: int) -> bool:
    """Whether the type holds all multiples of 2**quantum up to `bound`."""
    if not dtype.floating:
        return quantum >= 0 and bound <= dtype.limit
    return quantum >= MIN_QUANTUM and bound <= dtype.limit and bound << max(-quantum, 0) <= 2**dtype.precision


def numel(shape: Shape) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
