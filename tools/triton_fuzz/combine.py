"""Functions for tl.reduce and tl.associative_scan. To add one: a row of FUNCTIONS.

All are associative, also where integers wrap: a result has one value, however the compiler groups the elements. Those
that do not commute have it only if the order is kept. tests/test_triton_fuzz.py checks both for each of them.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CombineFunction:
    parameters: str
    result: str
    commutes: bool
    floats: bool = False  # also for floating-point numbers: it only selects

    @property
    def operands(self) -> int:
        return len(self.parameters.split(", ")) // 2

    def source(self, name: str) -> str:
        return f"\n@triton.jit\ndef {name}({self.parameters}):\n    return {self.result}\n"


def _one(result: str, *, commutes: bool = False, floats: bool = False) -> CombineFunction:
    return CombineFunction("a, b", result, commutes, floats)


def _pair(first: str, second: str, *, commutes: bool = False, floats: bool = False) -> CombineFunction:
    return CombineFunction("a, x, b, y", f"{first}, {second}", commutes, floats)


def _selected(condition: str, *, commutes: bool = False) -> CombineFunction:
    """Of two pairs, the left one where the condition holds."""
    return _pair(f"tl.where({condition}, a, b)", f"tl.where({condition}, x, y)", commutes=commutes, floats=True)


FUNCTIONS = {
    "combine_add": _one("a + b", commutes=True),
    "combine_multiply": _one("a * b", commutes=True),
    "combine_xor": _one("a ^ b", commutes=True),
    "combine_and": _one("a & b", commutes=True),
    "combine_or": _one("a | b", commutes=True),
    "combine_circle": _one("a + b + a * b", commutes=True),
    "combine_minimum": _one("tl.minimum(a, b)", commutes=True, floats=True),
    "combine_greater": _one("tl.where(a > b, a, b)", commutes=True, floats=True),
    "combine_left": _one("a", floats=True),
    "combine_right": _one("b", floats=True),
    "combine_first_negative": _one("tl.where(a < 0, a, b)", floats=True),
    "combine_last_positive": _one("tl.where(b > 0, b, a)", floats=True),
    "combine_first_odd": _one("tl.where((a & 1) == 1, a, b)"),
    "combine_first_maximum": _selected("a >= b"),
    "combine_last_maximum": _selected("a > b"),
    "combine_first_minimum": _selected("a <= b"),
    "combine_maximum_of_pairs": _selected("(a > b) | ((a == b) & (x <= y))", commutes=True),
    "combine_affine": _pair("a * b", "x * b + y"),
    "combine_affine_reversed": _pair("a * b", "a * y + x"),
    "combine_segmented_sum": _pair("a | b", "tl.where(b != 0, y, x + y)"),
    "combine_fields": _pair("a + b", "tl.where(y == 0, x, y)"),
    "combine_matrices": CombineFunction(
        "a, b, c, d, p, q, r, s", "a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s", commutes=False
    ),
}
