"""Element types: which are floating-point numbers, in what format, what they take in memory, what LLVM calls them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Format:
    """A format narrower than f32: 1 sign bit, `exponent` and `mantissa` bits."""

    exponent: int
    mantissa: int
    bias: int
    largest: int  # code of the largest finite number
    infinity: int | None  # its code
    nan: int
    overflow: int  # what PyTorch makes of numbers that are too large

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa


FORMATS = {
    "f16": Format(5, 10, 15, 0x7BFF, 0x7C00, 0x7E00, 0x7C00),
    "f8E5M2": Format(5, 2, 15, 0x7B, 0x7C, 0x7F, 0x7C),
    "f8E4M3FN": Format(4, 3, 7, 0x7E, None, 0x7F, 0x7E),
    "f8E5M2FNUZ": Format(5, 2, 16, 0x7F, None, 0x80, 0x80),
    "f8E4M3FNUZ": Format(4, 3, 8, 0x7F, None, 0x80, 0x80),
    "f8E4M3B11FNUZ": Format(4, 3, 11, 0x7F, None, 0x80, 0x7F),
}
WIDE = {"f32": "float", "f64": "double"}
NARROW = ("f16", "bf16", *(name for name in FORMATS if name != "f16"))


def is_float_element(element: str) -> bool:
    return element in WIDE or element in NARROW


def llvm_element(element: str) -> str:
    """The LLVM type that values of a TTIR element type have."""
    if element in WIDE:
        return WIDE[element]
    if element in ("f16", "bf16"):
        return "i16"
    if element in FORMATS:
        return "i8"
    if element in ("ptr", "index"):
        return "i64"
    if element[0] == "i" and element[1:].isdigit():
        return element
    raise ValueError(f"element type {element}")


def element_size(element: str) -> int:
    """Bytes in memory."""
    llvm = llvm_element(element)
    return {"float": 4, "double": 8}.get(llvm) or (int(llvm[1:]) + 7) // 8
