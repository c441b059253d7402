"""Conversions of Triton's `float8e4b15`, which the dialect knows only as 8 bits: each backend brings its own.

The format is a float16 without the top bit of its exponent and the last seven of its mantissa. As on CUDA, 1.75 is the
largest number that a conversion gives, and ties are rounded away from zero.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

_LARGEST = 0x3F00  # as a float16


def convert(value: Any, to: Any, _rounding: Any = None, _semantic: Any = None) -> Any:
    """Triton's `convert_custom_types`: from or to float8e4b15."""
    if value.type.scalar.is_fp8e4b15():
        return _semantic.cast(_widened(_semantic, value), to)
    if value.type.scalar.is_bf16():
        value = _semantic.cast(value, tl.float32)
    if not value.type.scalar.is_fp16():
        value = _semantic.cast(value, tl.float16, "rtz")
    return _narrowed(_semantic, value)


def _widened(semantic: Any, value: Any) -> Any:
    bits = semantic.cast(semantic.bitcast(value, tl.uint8), tl.uint16)
    sign = semantic.shl(semantic.and_(bits, 0x80), 8)
    magnitude = semantic.shl(semantic.and_(bits, 0x7F), 7)
    return semantic.bitcast(semantic.or_(sign, magnitude), tl.float16)


def _narrowed(semantic: Any, value: Any) -> Any:
    bits = semantic.bitcast(value, tl.uint16)
    sign = semantic.and_(semantic.lshr(bits, 8), 0x80)
    magnitude = semantic.minimum(semantic.and_(bits, 0x7FFF), _LARGEST, tl.PropagateNan.NONE)
    rounded = semantic.lshr(semantic.add(magnitude, 1 << 6, False), 7)
    return semantic.bitcast(semantic.cast(semantic.or_(sign, rounded), tl.uint8), tl.float8e4b15)
